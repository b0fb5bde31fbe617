package plan

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// conflict is a fence that would keep addresses of a block to unfence.
type conflict struct {
	block netip.Prefix
	fence volume.Fence
}

// refusal explains how to proceed.
func refusal(owner volume.FenceOwner, conflicts []conflict) error {
	const most = 5
	var why []string
	for _, c := range conflicts[:min(len(conflicts), most)] {
		why = append(why, c.explain(owner))
	}
	if more := len(conflicts) - most; more > 0 {
		why = append(why, fmt.Sprintf("and %d more", more))
	}
	return errs.Errorf(errs.Precondition, "nothing was unfenced: %s", strings.Join(why, "; "))
}

func (c conflict) explain(owner volume.FenceOwner) string {
	subject := fmt.Sprintf("%s is", c.block)
	switch {
	case c.fence.Block.Bits() < c.block.Bits():
		subject = fmt.Sprintf("%s lies in %s, which is", c.block, c.fence.Block)
	case c.fence.Block.Bits() > c.block.Bits():
		subject = fmt.Sprintf("%s contains %s, which is", c.block, c.fence.Block)
	}
	own := c.fence.Owner.Digest == owner.Digest
	switch {
	case own && c.fence.Phase == volume.Lifting:
		return fmt.Sprintf("%s still being unfenced: repeat that call first", subject)
	case own:
		return fmt.Sprintf("%s fenced by these parameters: unfence that block", subject)
	case c.fence.Phase == volume.Lifting:
		return fmt.Sprintf("%s still being unfenced by another parameter set (%s): wait until that call has completed", subject, Describe(c.fence.Owner))
	default:
		return fmt.Sprintf("%s fenced by another parameter set (%s): unfence it with those parameters, or by force", subject, Describe(c.fence.Owner))
	}
}

// Describe identifies an owner by keys and digest prefix, without values.
func Describe(o volume.FenceOwner) string {
	const (
		most   = 8
		digits = 12
	)
	keys := "no parameters"
	if len(o.Keys) > 0 {
		quoted := make([]string, 0, most)
		for _, key := range o.Keys[:min(len(o.Keys), most)] {
			quoted = append(quoted, errs.Quote(key))
		}
		keys = "keys " + strings.Join(quoted, ", ")
		if more := len(o.Keys) - most; more > 0 {
			keys += fmt.Sprintf(" and %d more", more)
		}
	}
	return fmt.Sprintf("%s, digest %s", keys, o.Digest[:min(len(o.Digest), digits)])
}

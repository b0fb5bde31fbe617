// Package request checks and translates what arrives over the fence service of
// CSI-Addons. It is pure: a function per RPC takes the message as it came and
// returns a value that the service can rely on, or an error of kind
// errs.Invalid that names everything that was wrong with it. Secrets are
// never looked at and never quoted.
package request

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	addons "github.com/csi-addons/spec/lib/go/fence"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/volume"
)

// MaxBlocks bounds the blocks of one request.
const MaxBlocks = 65536

// Fence checks a FenceClusterNetworkRequest. Whether its blocks may be cut off
// is another question: see CheckReach.
func Fence(r *addons.FenceClusterNetworkRequest) (plan.Ask, error) {
	return ask(r.GetParameters(), r.GetCidrs())
}

// Unfence checks an UnfenceClusterNetworkRequest.
func Unfence(r *addons.UnfenceClusterNetworkRequest) (plan.Ask, error) {
	return ask(r.GetParameters(), r.GetCidrs())
}

// List checks a ListClusterFenceRequest and returns whose fences are wanted;
// nil, when the request has no parameters that make an owner, is everybody's.
func List(r *addons.ListClusterFenceRequest) (*volume.FenceOwner, error) {
	if _, err := parameters(r.GetParameters()); err != nil {
		return nil, err
	}
	owner := Owner(r.GetParameters())
	if len(owner.Keys) == 0 {
		return nil, nil
	}
	return &owner, nil
}

// Clients checks a GetFenceClientsRequest.
func Clients(r *addons.GetFenceClientsRequest) error {
	_, err := parameters(r.GetParameters())
	return err
}

func ask(params map[string]string, cidrs []*addons.CIDR) (plan.Ask, error) {
	force, err := parameters(params)
	if err != nil {
		return plan.Ask{}, err
	}
	blocks, err := blocks(cidrs)
	if err != nil {
		return plan.Ask{}, err
	}
	return plan.Ask{Owner: Owner(params), Blocks: blocks, Force: force}, nil
}

// blocks reads a list of CIDRs; duplicates are one.
func blocks(cidrs []*addons.CIDR) ([]netip.Prefix, error) {
	switch {
	case len(cidrs) == 0:
		return nil, invalidf("cidrs is empty: name at least one block, such as 192.0.2.7/32")
	case len(cidrs) > MaxBlocks:
		return nil, invalidf("cidrs holds %d blocks, at most %d are taken in one request: divide it, or name larger blocks", len(cidrs), MaxBlocks)
	}
	var wrong findings
	out := make([]netip.Prefix, 0, len(cidrs))
	for i, cidr := range cidrs {
		block, err := Block(cidr.GetCidr())
		if err != nil {
			wrong.add("cidrs[%d]: %v", i, err)
			continue
		}
		out = append(out, block)
	}
	if err := wrong.err(); err != nil {
		return nil, err
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out), nil
}

// findings are what is wrong with one request; the first of them are told.
type findings struct {
	told []string
	all  int
}

func (f *findings) add(format string, args ...any) {
	const most = 8
	if f.all++; f.all <= most {
		f.told = append(f.told, fmt.Sprintf(format, args...))
	}
}

// err is nil when nothing is wrong.
func (f *findings) err() error {
	if f.all == 0 {
		return nil
	}
	text := strings.Join(f.told, "; ")
	if more := f.all - len(f.told); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return invalidf("%s", text)
}

func invalidf(format string, args ...any) error {
	return errs.Errorf(errs.Invalid, format, args...)
}

// Fingerprint is equal for equal requests, so that a repeated call joins the one
// in flight. It does not depend on secrets.
func Fingerprint(call string, ask plan.Ask) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "%q %s %t", call, ask.Owner.Digest, ask.Force)
	for _, block := range ask.Blocks {
		fmt.Fprintf(hash, " %s", block)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// Keys returns the names of the locks for a request: one for each block and its
// owner. Two owners have separate records of one block and do not conflict.
func Keys(ask plan.Ask) []string {
	keys := make([]string, len(ask.Blocks))
	for i, block := range ask.Blocks {
		keys[i] = "fence:" + ask.Owner.Digest + ":" + block.String()
	}
	return keys
}

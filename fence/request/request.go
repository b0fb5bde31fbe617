// Package request validates and converts CSI-Addons fence requests. A pure
// function per RPC returns a valid value, or an errs.Invalid with every
// problem. Secrets are not read.
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

// MaxBlocks bounds a request's blocks.
const MaxBlocks = 65536

// Fence checks a FenceClusterNetworkRequest, but not its reach (CheckReach).
func Fence(r *addons.FenceClusterNetworkRequest) (plan.Request, error) {
	return newRequest(r.GetParameters(), r.GetCidrs())
}

// Unfence checks an UnfenceClusterNetworkRequest.
func Unfence(r *addons.UnfenceClusterNetworkRequest) (plan.Request, error) {
	return newRequest(r.GetParameters(), r.GetCidrs())
}

// List checks a ListClusterFenceRequest and returns the requested owner; nil,
// without own parameters, is all owners.
func List(r *addons.ListClusterFenceRequest) (*volume.FenceOwner, error) {
	if err := checkParameters(r.GetParameters()); err != nil {
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
	return checkParameters(r.GetParameters())
}

func newRequest(params map[string]string, cidrs []*addons.CIDR) (plan.Request, error) {
	if err := checkParameters(params); err != nil {
		return plan.Request{}, err
	}
	blocks, err := blocks(cidrs)
	if err != nil {
		return plan.Request{}, err
	}
	return plan.Request{
		Owner: Owner(params), Blocks: blocks,
		Force: params[ForceParameter] == "true", Restarted: params[RestartedParameter] == "true",
	}, nil
}

func blocks(cidrs []*addons.CIDR) ([]netip.Prefix, error) {
	switch {
	case len(cidrs) == 0:
		return nil, invalidf("cidrs is empty: specify at least one block, such as 192.0.2.7/32")
	case len(cidrs) > MaxBlocks:
		return nil, invalidf("cidrs has %d blocks, at most %d are allowed in one request: split the request, or use larger blocks", len(cidrs), MaxBlocks)
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

// findings are a request's problems; the error has the first few.
type findings struct {
	listed []string
	all    int
}

func (f *findings) add(format string, args ...any) {
	const most = 8
	if f.all++; f.all <= most {
		f.listed = append(f.listed, fmt.Sprintf(format, args...))
	}
}

func (f *findings) err() error {
	if f.all == 0 {
		return nil
	}
	text := strings.Join(f.listed, "; ")
	if more := f.all - len(f.listed); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return invalidf("%s", text)
}

func invalidf(format string, args ...any) error {
	return errs.Errorf(errs.Invalid, format, args...)
}

// Fingerprint is equal for equal requests, so that a repeated call joins the
// one in flight; secrets do not count.
func Fingerprint(call string, req plan.Request) string {
	hash := sha256.New()
	fmt.Fprintf(hash, "%q %s %t %t", call, req.Owner.Digest, req.Force, req.Restarted)
	for _, block := range req.Blocks {
		fmt.Fprintf(hash, " %s", block)
	}
	return hex.EncodeToString(hash.Sum(nil))
}

// Keys returns a request's lock names, by block and owner. Owners have separate
// records, and do not conflict.
func Keys(req plan.Request) []string {
	keys := make([]string, len(req.Blocks))
	for i, block := range req.Blocks {
		keys[i] = "fence:" + req.Owner.Digest + ":" + block.String()
	}
	return keys
}

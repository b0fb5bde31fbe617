package request

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	addons "github.com/csi-addons/spec/lib/go/fence"
	"google.golang.org/protobuf/proto"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/internal/cidr"
)

func fenceRequest(blocks ...string) *addons.FenceClusterNetworkRequest {
	r := &addons.FenceClusterNetworkRequest{Parameters: map[string]string{"clusterID": "one"}, Secrets: map[string]string{"token": "s3cret"}}
	for _, block := range blocks {
		r.Cidrs = append(r.Cidrs, &addons.CIDR{Cidr: block})
	}
	return r
}

// checkError holds that an error is of kind Invalid and says something; want
// is empty when there must be none.
func checkError(t *testing.T, err error, want, format string, args ...any) {
	t.Helper()
	switch about := fmt.Sprintf(format, args...); {
	case want == "" && err != nil:
		t.Errorf("%s: %v", about, err)
	case want == "":
	case err == nil || !errors.Is(err, errs.Invalid) || errs.KindOf(err) != errs.Invalid:
		t.Errorf("%s: got %v, want an error of kind Invalid", about, err)
	case !strings.Contains(err.Error(), want):
		t.Errorf("%s: got %v; want %q in it", about, err, want)
	case len(err.Error()) > 2000:
		t.Errorf("%s: a message of %d bytes", about, len(err.Error()))
	}
}

func TestAsk(t *testing.T) {
	r := fenceRequest("2001:db8::/64", "192.0.2.7", "192.0.2.0/24", "::ffff:192.0.2.7", "192.0.2.7/32")
	ask, err := Fence(r)
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(ask.Blocks); got != "[192.0.2.0/24 192.0.2.7/32 2001:db8::/64]" {
		t.Errorf("blocks are %s", got)
	}
	if ask.Force || ask.Owner.Digest != Owner(r.Parameters).Digest {
		t.Errorf("%+v", ask)
	}
	other, err := Unfence(&addons.UnfenceClusterNetworkRequest{Parameters: r.Parameters, Cidrs: r.Cidrs})
	if err != nil || !slices.Equal(other.Blocks, ask.Blocks) || other.Owner.Digest != ask.Owner.Digest {
		t.Errorf("unfence reads %+v, %v", other, err)
	}
}

func TestAskRefuses(t *testing.T) {
	many := make([]string, MaxBlocks+1)
	for i := range many {
		many[i] = netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String()
	}
	if _, err := Fence(fenceRequest(many[:MaxBlocks]...)); err != nil {
		t.Errorf("%d blocks: %v", MaxBlocks, err)
	}
	for want, blocks := range map[string][]string{
		"cidrs is empty: name at least one block":                                        nil,
		"cidrs[0]: the block is empty":                                                   {""},
		`cidrs[1]: "x" is no block`:                                                      {"192.0.2.7", "x"},
		`cidrs[0]: "192.0.2.7/24" has bits`:                                              {"192.0.2.7/24", "192.0.2.9"},
		"write 10.1.0.0/16 for the block, or 10.1.2.3/32 for that one address; cidrs[2]": {"10.1.2.3/16", "192.0.2.9", "10.1.2.4/16"},
		"; and 12 more": slices.Repeat([]string{"wrong"}, 20),
		"cidrs holds 65537 blocks, at most 65536": many,
	} {
		_, err := Fence(fenceRequest(blocks...))
		checkError(t, err, want, "fence %.60q", blocks)
		_, err = Unfence(&addons.UnfenceClusterNetworkRequest{Cidrs: fenceRequest(blocks...).Cidrs})
		checkError(t, err, want, "unfence %.60q", blocks)
	}
	_, err := Fence(&addons.FenceClusterNetworkRequest{Cidrs: []*addons.CIDR{nil}})
	checkError(t, err, "cidrs[0]: the block is empty", "an element that is nil")
	_, err = Fence(nil)
	checkError(t, err, "cidrs is empty", "no request")
}

func TestList(t *testing.T) {
	for _, m := range []map[string]string{nil, {}, {ForceParameter: "true"}} {
		if owner, err := List(&addons.ListClusterFenceRequest{Parameters: m}); err != nil || owner != nil {
			t.Errorf("%v: got %v, %v; want everybody's", m, owner, err)
		}
	}
	m := map[string]string{"clusterID": "one"}
	if owner, err := List(&addons.ListClusterFenceRequest{Parameters: m}); err != nil || owner == nil || owner.Digest != Owner(m).Digest {
		t.Errorf("got %v, %v", owner, err)
	}
}

func TestFingerprintAndKeys(t *testing.T) {
	ask, err := Fence(fenceRequest("192.0.2.0/24", "2001:db8::/64"))
	if err != nil {
		t.Fatal(err)
	}
	forced, fewer, other := ask, ask, ask
	forced.Force = true
	fewer.Blocks = ask.Blocks[:1]
	other.Owner = Owner(nil)
	seen := map[string]string{}
	for name, a := range map[string]plan.Ask{"ask": ask, "forced": forced, "fewer": fewer, "other": other} {
		for _, call := range []string{"fence", "unfence"} {
			print := Fingerprint(call, a)
			if print != Fingerprint(call, a) {
				t.Errorf("%s %s has two fingerprints", call, name)
			}
			if twin, known := seen[print]; known {
				t.Errorf("%s %s has the fingerprint of %s", call, name, twin)
			}
			seen[print] = call + " " + name
		}
	}
	keys := Keys(ask)
	for i, block := range []string{"192.0.2.0/24", "2001:db8::/64"} {
		if len(keys) != 2 || !strings.HasSuffix(keys[i], block) {
			t.Errorf("keys are %q", keys)
		}
	}
	for _, key := range Keys(other) {
		if slices.Contains(keys, key) {
			t.Errorf("%s is a key of two owners", key)
		}
	}
}

// FuzzFence reads requests as they may come over the wire.
func FuzzFence(f *testing.F) {
	for _, r := range []*addons.FenceClusterNetworkRequest{
		{}, fenceRequest("192.0.2.7", "2001:db8::/64"), fenceRequest("192.0.2.7/24", ""), {Cidrs: []*addons.CIDR{{}}},
		{Parameters: map[string]string{ForceParameter: "true", ViaParameter: "x", OwnerParameter: Owner(nil).Digest}, Cidrs: []*addons.CIDR{{Cidr: "0.0.0.0/0"}}},
	} {
		data, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	own := []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("::1")}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r addons.FenceClusterNetworkRequest
		if proto.Unmarshal(data, &r) != nil {
			return
		}
		before := proto.Clone(&r)
		ask, err := Fence(&r)
		if !proto.Equal(before, &r) {
			t.Error("the request was changed")
		}
		if err != nil {
			checkError(t, err, err.Error(), "refused")
			return
		}
		if len(ask.Blocks) == 0 || !slices.IsSortedFunc(ask.Blocks, netip.Prefix.Compare) || len(slices.Compact(slices.Clone(ask.Blocks))) != len(ask.Blocks) {
			t.Errorf("blocks %v", ask.Blocks)
		}
		for _, block := range ask.Blocks {
			holdBlock(t, block)
		}
		if err := CheckReach(ask, Network{Own: own}); err != nil {
			checkError(t, err, ForceParameter, "refused")
		} else if !ask.Force && slices.ContainsFunc(ask.Blocks, func(b netip.Prefix) bool { return b.Contains(own[0]) || b.Contains(own[1]) }) {
			t.Errorf("%v covers the server", ask.Blocks)
		}
		// What was read is planned without complaint.
		next := plan.Fence(nil, ask, time.Unix(0, 0))
		wanted, err := plan.Wanted(next)
		if err != nil {
			t.Fatal(err)
		}
		if missing, err := cidr.Missing(wanted, ask.Blocks); err != nil || len(missing) != 0 || len(next) != len(ask.Blocks) {
			t.Errorf("%v is planned as %v: %v missing, %v", ask.Blocks, next, missing, err)
		}
	})
}

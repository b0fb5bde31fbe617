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
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/internal/cidr"
	"github.com/cleatproject/cleat/test/testkit"
)

func fenceRequest(blocks ...string) *addons.FenceClusterNetworkRequest {
	r := &addons.FenceClusterNetworkRequest{Parameters: map[string]string{"clusterID": "one"}, Secrets: map[string]string{"token": "s3cret"}}
	for _, block := range blocks {
		r.Cidrs = append(r.Cidrs, &addons.CIDR{Cidr: block})
	}
	return r
}

// checkError checks for kind Invalid and a text; an empty want is no error.
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

func TestFenceRequest(t *testing.T) {
	r := fenceRequest("2001:db8::/64", "192.0.2.7", "192.0.2.0/24", "::ffff:192.0.2.7", "192.0.2.7/32")
	req := testkit.Value(Fence(r))(t)
	if got := fmt.Sprint(req.Blocks); got != "[192.0.2.0/24 192.0.2.7/32 2001:db8::/64]" {
		t.Errorf("blocks are %s", got)
	}
	if req.Force || req.Owner.Digest != Owner(r.Parameters).Digest {
		t.Errorf("%+v", req)
	}
	other, err := Unfence(&addons.UnfenceClusterNetworkRequest{Parameters: r.Parameters, Cidrs: r.Cidrs})
	if err != nil || !slices.Equal(other.Blocks, req.Blocks) || other.Owner.Digest != req.Owner.Digest {
		t.Errorf("unfence reads %+v, %v", other, err)
	}
}

func TestFenceRequestRejects(t *testing.T) {
	many := make([]string, MaxBlocks+1)
	for i := range many {
		many[i] = netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String()
	}
	if _, err := Fence(fenceRequest(many[:MaxBlocks]...)); err != nil {
		t.Errorf("%d blocks: %v", MaxBlocks, err)
	}
	for want, blocks := range map[string][]string{
		"cidrs is empty: specify at least one block":                                       nil,
		"cidrs[0]: the block is empty":                                                     {""},
		`cidrs[1]: "x" is not a CIDR`:                                                      {"192.0.2.7", "x"},
		`cidrs[0]: "192.0.2.7/24" has host bits`:                                           {"192.0.2.7/24", "192.0.2.9"},
		"write 10.1.0.0/16 for the block, or 10.1.2.3/32 for the single address; cidrs[2]": {"10.1.2.3/16", "192.0.2.9", "10.1.2.4/16"},
		"; and 12 more":                         slices.Repeat([]string{"wrong"}, 20),
		"cidrs has 65537 blocks, at most 65536": many,
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
	for _, m := range []map[string]string{nil, {}, {ForceParameter: "true"}, {RestartedParameter: "true"}} {
		if owner, err := List(&addons.ListClusterFenceRequest{Parameters: m}); err != nil || owner != nil {
			t.Errorf("%v: got %v, %v; want all owners", m, owner, err)
		}
	}
	m := map[string]string{"clusterID": "one"}
	if owner, err := List(&addons.ListClusterFenceRequest{Parameters: m}); err != nil || owner == nil || owner.Digest != Owner(m).Digest {
		t.Errorf("got %v, %v", owner, err)
	}
}

func TestFingerprintAndKeys(t *testing.T) {
	req := testkit.Value(Fence(fenceRequest("192.0.2.0/24", "2001:db8::/64")))(t)
	forced, restarted, fewer, other := req, req, req, req
	forced.Force, restarted.Restarted = true, true
	fewer.Blocks = req.Blocks[:1]
	other.Owner = Owner(nil)
	seen := map[string]string{}
	for name, a := range map[string]plan.Request{"ask": req, "forced": forced, "restarted": restarted, "fewer": fewer, "other": other} {
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
	keys := Keys(req)
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

func FuzzFence(f *testing.F) {
	for _, r := range []*addons.FenceClusterNetworkRequest{
		{}, fenceRequest("192.0.2.7", "2001:db8::/64"), fenceRequest("192.0.2.7/24", ""), {Cidrs: []*addons.CIDR{{}}},
		{Parameters: map[string]string{ForceParameter: "true", ViaParameter: "x", OwnerParameter: Owner(nil).Digest}, Cidrs: []*addons.CIDR{{Cidr: "0.0.0.0/0"}}},
	} {
		data := testkit.Value(proto.Marshal(r))(f)
		f.Add(data)
	}
	own := []netip.Addr{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("::1")}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r addons.FenceClusterNetworkRequest
		if proto.Unmarshal(data, &r) != nil {
			return
		}
		before := proto.Clone(&r)
		req, err := Fence(&r)
		if !proto.Equal(before, &r) {
			t.Error("the request was changed")
		}
		if err != nil {
			checkError(t, err, err.Error(), "refused")
			return
		}
		if len(req.Blocks) == 0 || !slices.IsSortedFunc(req.Blocks, netip.Prefix.Compare) || len(slices.Compact(slices.Clone(req.Blocks))) != len(req.Blocks) {
			t.Errorf("blocks %v", req.Blocks)
		}
		for _, block := range req.Blocks {
			checkBlock(t, block)
		}
		if err := CheckReach(req, Network{Own: own}); err != nil {
			checkError(t, err, ForceParameter, "refused")
		} else if !req.Force && slices.ContainsFunc(req.Blocks, func(b netip.Prefix) bool { return b.Contains(own[0]) || b.Contains(own[1]) }) {
			t.Errorf("%v covers the server", req.Blocks)
		}
		next := plan.Fence(nil, req, time.Unix(0, 0))
		wanted, err := plan.Desired(next)
		if err != nil {
			t.Fatal(err)
		}
		if missing, err := cidr.Missing(wanted, req.Blocks); err != nil || len(missing) != 0 || len(next) != len(req.Blocks) {
			t.Errorf("%v is planned as %v: %v missing, %v", req.Blocks, next, missing, err)
		}
	})
}

func TestParameters(t *testing.T) {
	digest := Owner(nil).Digest
	for _, c := range []struct {
		parameters map[string]string
		want       string
	}{
		{nil, ""},
		{map[string]string{"clusterID": "x", "": "y", "force": "what it means there"}, ""},
		{map[string]string{ForceParameter: "true"}, ""},
		{map[string]string{ForceParameter: "false"}, ""},
		{map[string]string{RestartedParameter: "true"}, ""},
		{map[string]string{RestartedParameter: "1"}, "parameters[fence.cleat.dev/restarted]"},
		{map[string]string{ForceParameter: "yes"}, `parameters[fence.cleat.dev/force] is "yes": it must be true or false`},
		{map[string]string{ForceParameter: ""}, "it must be true or false"},
		{map[string]string{ForceParameter: "True"}, "it must be true or false"},
		{map[string]string{"fence.cleat.dev/forec": "true"}, `unknown parameter "fence.cleat.dev/forec"; did you mean fence.cleat.dev/force?`},
		{map[string]string{"Fence.cleat.dev/Force": "true"}, "did you mean fence.cleat.dev/force?"},
		{map[string]string{"fence.cleat.dev/ownr": "true"}, "did you mean fence.cleat.dev/owner?"},
		{map[string]string{"fence.cleat.dev/something-else": "true"}, "those that begin with fence.cleat.dev/ are"},
		{map[string]string{OwnerParameter: digest, ViaParameter: "cleat"}, ""},
		{map[string]string{OwnerParameter: strings.ToUpper(digest)}, "SHA-256 in lower-case hex, 64 digits"},
		{map[string]string{OwnerParameter: digest[:62]}, "SHA-256"},
		{map[string]string{OwnerParameter: "anna"}, "SHA-256"},
		{map[string]string{ViaParameter: ""}, "parameters[fence.cleat.dev/via] is empty"},
		{map[string]string{ForceParameter: "1", ViaParameter: ""}, "true or false; parameters[fence.cleat.dev/via]"},
		{map[string]string{"k": strings.Repeat("v", maxMap-1)}, ""},
		{map[string]string{"k": strings.Repeat("v", maxMap)}, "parameters has 4097 bytes"},
	} {
		cidrs := []*addons.CIDR{{Cidr: "192.0.2.7"}}
		req, err := Fence(&addons.FenceClusterNetworkRequest{Parameters: c.parameters, Cidrs: cidrs})
		_, err2 := Unfence(&addons.UnfenceClusterNetworkRequest{Parameters: c.parameters, Cidrs: cidrs})
		_, err3 := List(&addons.ListClusterFenceRequest{Parameters: c.parameters})
		err4 := Clients(&addons.GetFenceClientsRequest{Parameters: c.parameters})
		for i, err := range []error{err, err2, err3, err4} {
			checkError(t, err, c.want, "call %d, %.60q", i, c.parameters)
		}
		if err == nil && (req.Force != (c.parameters[ForceParameter] == "true") || req.Restarted != (c.parameters[RestartedParameter] == "true")) {
			t.Errorf("%v: force is %v, restarted is %v", c.parameters, req.Force, req.Restarted)
		}
	}
}

func TestOwner(t *testing.T) {
	base := Owner(map[string]string{"b": "2", "a": "1"})
	if !slices.Equal(base.Keys, []string{"a", "b"}) || len(base.Digest) != 64 {
		t.Errorf("%+v", base)
	}
	if forced := Owner(map[string]string{"a": "1", "b": "2", ForceParameter: "true"}); forced.Digest != base.Digest || !slices.Equal(forced.Keys, base.Keys) {
		t.Errorf("force changes the owner: %+v", forced)
	}
	// The digest is stored and must not change between releases. By hand:
	// printf 'cleat fence owner 1\n1:a1:11:b1:2' | sha256sum
	if want := "0de19f1fe766c834"; !strings.HasPrefix(base.Digest, want) {
		t.Errorf("the digest is %s, want %s...", base.Digest, want)
	}
}

func TestOwnersDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab1:]{0,4}`)
		a := rapid.MapOfN(word, word, 0, 3).Draw(t, "a")
		b := rapid.MapOfN(word, word, 0, 3).Draw(t, "b")
		equal := len(a) == len(b)
		for k, v := range a {
			if w, found := b[k]; !found || v != w {
				equal = false
			}
		}
		if same := Owner(a).Digest == Owner(b).Digest; same != equal {
			t.Fatalf("%q and %q: equal %v, same owner %v", a, b, equal, same)
		}
	})
}

func TestCheckReach(t *testing.T) {
	own := []netip.Addr{
		netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1"), netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("::ffff:198.51.100.1"),
		netip.MustParseAddr("2001:db8::10"), netip.MustParseAddr("fe80::10%eth0"),
	}
	for blocks, want := range map[string]string{
		"192.0.2.11":                 "",
		"192.0.2.11 2001:db8:1::/48": "",
		"192.0.2.10":                 "192.0.2.10/32 covers 192.0.2.10, an address of this server or of a peer; nothing was fenced. Remove the block, or force it with the parameter fence.cleat.dev/force=true",
		"192.0.2.0/24":               "192.0.2.0/24 covers 192.0.2.10",
		"198.51.100.1":               "covers 198.51.100.1",
		"203.0.113.1 192.0.2.0/28":   "192.0.2.0/28 covers 192.0.2.10",
		"2001:db8::/64":              "2001:db8::/64 covers 2001:db8::10",
		"fe80::/64":                  "fe80::/64 covers fe80::10",
		"::1":                        "covers ::1",
		"127.0.0.53":                 "127.0.0.53/32 covers 127.0.0.53",
		"126.0.0.0/7":                "126.0.0.0/7 covers 127.0.0.1",
		"0.0.0.0/0":                  "the blocks together cover 0.0.0.0/0, which is all clients and this server too",
		"::/0":                       "the blocks together cover ::/0",
		"0.0.0.0/1 128.0.0.0/1":      "the blocks together cover 0.0.0.0/0",
		"0.0.0.0/0 ::/0":             "0.0.0.0/0, which is all clients and this server too; the blocks together cover ::/0",
		"128.0.0.0/1 0.0.0.0/2 64.0.0.0/3 96.0.0.0/3": "the blocks together cover 0.0.0.0/0",
	} {
		req := testkit.Value(Fence(fenceRequest(strings.Fields(blocks)...)))(t)
		checkError(t, CheckReach(req, Network{Own: own}), want, "%s", blocks)
		req.Force = true
		checkError(t, CheckReach(req, Network{Own: own}), "", "%s by force", blocks)
	}
}

// Loopback addresses are rejected without being listed.
func TestCheckReachKnowsLoopback(t *testing.T) {
	req := testkit.Value(Fence(fenceRequest("127.1.0.0/16")))(t)
	checkError(t, CheckReach(req, Network{}), "127.1.0.0/16 covers 127.1.0.0", "127.1.0.0/16")
}

func TestCheckReachIsBounded(t *testing.T) {
	var many []string
	var own []netip.Addr
	for i := range 100 {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		many, own = append(many, addr.String()), append(own, addr)
	}
	req := testkit.Value(Fence(fenceRequest(many...)))(t)
	checkError(t, CheckReach(req, Network{Own: own}), "and 92 more; nothing was fenced", "all own")
}

func TestCheckReachOfNonClients(t *testing.T) {
	network := Network{Broadcast: []netip.Addr{netip.MustParseAddr("10.0.1.255")}}
	for block, want := range map[string]string{
		"255.255.255.255":    "255.255.255.255/32 is a broadcast address, which is never a source address; nothing was fenced",
		"255.255.255.254/31": "",
		"0.0.0.0/8":          "0.0.0.0/8 is in 0.0.0.0/8",
		"0.1.2.3":            "0.1.2.3/32 is in 0.0.0.0/8",
		"0.0.0.0/7":          "",
		"::10.77.0.2":        "::a4d:2/128 is an IPv4 address in the deprecated form ::a.b.c.d",
		"::/96":              "::/96 is an IPv4 address in the deprecated form",
		"::1":                "",
		"::/64":              "",
		"10.0.1.255":         "10.0.1.255/32 is a broadcast address",
		"10.0.0.255":         "",
		"10.0.0.0/23":        "",
	} {
		req := testkit.Value(Fence(fenceRequest(block)))(t)
		for _, req.Force = range []bool{false, true} {
			checkError(t, CheckReach(req, network), want, "%s, force %v", block, req.Force)
		}
	}
}

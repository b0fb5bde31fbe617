package csi_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func addrs(list ...string) (all []netip.Addr) {
	for _, a := range list {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

func TestFormatNodeID(t *testing.T) {
	for name, c := range map[string]struct {
		in   volume.Client
		want string
		kind errs.Kind
	}{
		"one address":  {volume.Client{Node: "node-1", Addrs: addrs("192.0.2.7")}, "node-1@192.0.2.7", ""},
		"dual stack":   {volume.Client{Node: "n", Addrs: addrs("2001:db8::7", "192.0.2.7")}, "n@192.0.2.7,2001:db8::7", ""},
		"twice":        {volume.Client{Node: "n", Addrs: addrs("192.0.2.7", "::ffff:192.0.2.7")}, "n@192.0.2.7", ""},
		"no address":   {volume.Client{Node: "n"}, "", errs.Precondition},
		"loopback":     {volume.Client{Node: "n", Addrs: addrs("127.0.0.1")}, "", errs.Invalid},
		"zone":         {volume.Client{Node: "n", Addrs: addrs("fe80::1%eth0")}, "", errs.Invalid},
		"no name":      {volume.Client{Addrs: addrs("192.0.2.7")}, "", errs.Invalid},
		"name with @":  {volume.Client{Node: "a@b", Addrs: addrs("192.0.2.7")}, "", errs.Invalid},
		"over 256":     {volume.Client{Node: strings.Repeat("n", 250), Addrs: addrs("192.0.2.7")}, "", errs.Invalid},
		"exactly 256":  {volume.Client{Node: strings.Repeat("n", 246), Addrs: addrs("192.0.2.7")}, strings.Repeat("n", 246) + "@192.0.2.7", ""},
		"control byte": {volume.Client{Node: "a\nb", Addrs: addrs("192.0.2.7")}, "", errs.Invalid},
	} {
		got, err := csi.FormatNodeID(c.in)
		if got != c.want || (err == nil) != (c.kind == "") || err != nil && errs.KindOf(err) != c.kind {
			t.Errorf("%s: %q, %v; want %q, kind %q", name, got, err, c.want, c.kind)
		}
	}
}

func TestParseNodeID(t *testing.T) {
	got := testkit.Value(csi.ParseNodeID("n@192.0.2.7,2001:db8::7"))(t)
	want := volume.Client{Node: "n", Addrs: addrs("192.0.2.7", "2001:db8::7")}
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	for _, id := range []string{
		"", "node-1", "node-1@", "@192.0.2.7", "n@192.0.2.7,", "n@192.0.2.7,192.0.2.7", "n@192.0.2.8,192.0.2.7",
		"n@192.0.2.007", "n@node-1.example", "n@127.0.0.1", "n@fe80::1%eth0", "n@0.0.0.0", "n@2001:DB8::7", "n@a@192.0.2.7",
	} {
		if c, err := csi.ParseNodeID(id); errs.KindOf(err) != errs.NotFound {
			t.Errorf("%q: %+v, %v; want NotFound", id, c, err)
		}
	}
}

func FuzzParseNodeID(f *testing.F) {
	for _, seed := range []string{"n@192.0.2.7", "n@192.0.2.7,2001:db8::7", "n@::ffff:192.0.2.7", "@", "n@,"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, id string) {
		c, err := csi.ParseNodeID(id)
		if err != nil {
			if errs.KindOf(err) != errs.NotFound {
				t.Errorf("%q: %v has kind %q", id, err, errs.KindOf(err))
			}
			return
		}
		if again, err := csi.FormatNodeID(c); err != nil || again != id {
			t.Errorf("%q is formatted as %q, %v", id, again, err)
		}
	})
}

package blocklist

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func prefixes(texts string) (all []netip.Prefix) {
	for text := range strings.FieldsSeq(texts) {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}

func clientOf(node, addrs string) volume.Client {
	c := volume.Client{Node: node}
	for a := range strings.FieldsSeq(addrs) {
		c.Addrs = append(c.Addrs, netip.MustParseAddr(a))
	}
	return c
}

func TestRequired(t *testing.T) {
	for name, c := range map[string]struct {
		set       volume.FenceSet
		instances []volume.Instance
		noRanges  bool
		want      string // or the words of an error
	}{
		"nothing":         {want: "[] [] []"},
		"one address":     {set: volume.FenceSet{Blocks: prefixes("192.0.2.7/32 2001:db8::1/128")}, want: "[192.0.2.7 2001:db8::1] [] []"},
		"ranges":          {set: volume.FenceSet{Blocks: prefixes("192.0.2.0/31 2001:db8::/64")}, want: "[192.0.2.0/31 2001:db8::/64] [] []"},
		"every address":   {set: volume.FenceSet{Blocks: prefixes("0.0.0.0/0 ::/0")}, want: "[0.0.0.0/1 128.0.0.0/1 ::/1 8000::/1] [] []"},
		"without ranges":  {set: volume.FenceSet{Blocks: prefixes("192.0.2.2/31 255.255.255.254/31 2001:db8::/127")}, noRanges: true, want: "[192.0.2.2 192.0.2.3 255.255.255.254 255.255.255.255 2001:db8:: 2001:db8::1] [] []"},
		"too large":       {set: volume.FenceSet{Blocks: prefixes("192.0.2.0/24 198.51.0.0/23")}, noRanges: true, want: "block 198.51.0.0/23 has more than 256 addresses"},
		"too large, IPv6": {set: volume.FenceSet{Blocks: prefixes("2001:db8::/64")}, noRanges: true, want: "2001:db8::/64"},
		"other addresses of a client": {
			set:  volume.FenceSet{Blocks: prefixes("192.0.2.0/24"), Clients: []volume.Client{clientOf("a", "192.0.2.1 198.51.100.1"), clientOf("b", "198.51.100.1 192.0.2.2")}},
			want: "[192.0.2.0/24] [198.51.100.1] []",
		},
		"instances": {
			set: volume.FenceSet{Blocks: prefixes("192.0.2.7/32")},
			instances: []volume.Instance{
				{Volume: "v", Addr: netip.MustParseAddr("192.0.2.7"), Nonce: 5}, {Volume: "w", Addr: netip.MustParseAddr("192.0.2.7"), Nonce: 5},
				{Volume: "w", Addr: netip.MustParseAddr("2001:db8::1"), Nonce: 4294967295},
			},
			want: "[192.0.2.7] [] [192.0.2.7:0/5 [2001:db8::1]:0/4294967295]",
		},
	} {
		got, err := required(c.set, c.instances, !c.noRanges)
		if err != nil {
			testkit.WantError(t, name, err, errs.Unsupported, c.want, "update Ceph")
			continue
		}
		if text := fmt.Sprint(got.blocks, got.clients, got.instances); text != c.want {
			t.Errorf("%s: got %s, want %s", name, text, c.want)
		}
	}
}

func TestCommands(t *testing.T) {
	for want, c := range map[string]command{
		`{"prefix":"osd blocklist","blocklistop":"add","addr":"192.0.2.7","expire":3600.0}`:                 {single("192.0.2.7", 0), time.Hour},
		`{"prefix":"osd blocklist","blocklistop":"add","addr":"[2001:db8::1]:0/5","expire":157680000.0}`:    {single("2001:db8::1", 5), expiry},
		`{"prefix":"osd blocklist","range":"range","blocklistop":"add","addr":"192.0.2.0/24","expire":0.5}`: {ranged("192.0.2.0/24"), time.Second / 2},
		`{"prefix":"osd blocklist","range":"range","blocklistop":"rm","addr":"2001:db8::/32"}`:              {ranged("2001:db8::/32"), 0},
		`{"prefix":"osd blocklist","blocklistop":"rm","addr":"192.0.2.7"}`:                                  {single("192.0.2.7", 0), 0},
	} {
		if got, err := c.json(); err != nil || string(got) != want {
			t.Errorf("%+v: got %s, %v, want %s", c, got, err, want)
		}
	}
}

func TestPlan(t *testing.T) {
	now := at(t, "2026-11-24T05:00:00Z")
	long, short := now.Add(expiry), now.Add(time.Hour)
	a, b, r, i := single("192.0.2.1", 0), single("192.0.2.2", 0), ranged("192.0.2.0/24"), single("192.0.2.1", 5)
	ours := func(e entry, foreign time.Time) own {
		return own{Block: e.block, Range: e.ranged, OfFence: true, Foreign: foreign}
	}
	for name, c := range map[string]struct {
		want     entries
		owned    []own
		observed map[entry]time.Time
		steps    string
	}{
		"new": {want: entries{blocks: []entry{a, r}, clients: []entry{b}, instances: []entry{i}},
			steps: "record 192.0.2.1 of a fence, 192.0.2.0/24 of a fence, 192.0.2.2; add 192.0.2.1 43800h0m0s, 192.0.2.0/24 43800h0m0s, 192.0.2.2 43800h0m0s, 192.0.2.1:0/5 43800h0m0s"},
		"in force":                       {want: entries{blocks: []entry{a}, instances: []entry{i}}, owned: []own{ours(a, time.Time{})}, observed: map[entry]time.Time{a: long, i: long}},
		"interrupted before the command": {want: entries{blocks: []entry{a}}, owned: []own{ours(a, time.Time{})}, steps: "add 192.0.2.1 43800h0m0s"},
		"about to expire": {want: entries{blocks: []entry{a}, instances: []entry{i}}, owned: []own{ours(a, time.Time{})}, observed: map[entry]time.Time{a: short, i: short},
			steps: "add 192.0.2.1 43800h0m0s, 192.0.2.1:0/5 43800h0m0s"},
		"unfenced":           {owned: []own{ours(a, time.Time{}), ours(r, time.Time{})}, observed: map[entry]time.Time{a: long, r: long, i: long, b: long}, steps: "remove 192.0.2.1, 192.0.2.0/24; forget 192.0.2.1, 192.0.2.0/24"},
		"unfenced and gone":  {owned: []own{ours(a, time.Time{})}, steps: "forget 192.0.2.1"},
		"of another program": {observed: map[entry]time.Time{a: long, r: long, i: long}},
		"also of another program": {want: entries{blocks: []entry{a}}, observed: map[entry]time.Time{a: short},
			steps: "record 192.0.2.1 of a fence (05:00 to 06:00); add 192.0.2.1 43800h0m0s"},
		"also, for long":                        {want: entries{blocks: []entry{a}}, observed: map[entry]time.Time{a: long}, steps: "record 192.0.2.1 of a fence (05:00 to 05:00)"},
		"also, expired":                         {want: entries{blocks: []entry{a}}, observed: map[entry]time.Time{a: now}, steps: "record 192.0.2.1 of a fence; add 192.0.2.1 43800h0m0s"},
		"unfenced, still of the other program":  {owned: []own{ours(a, short)}, observed: map[entry]time.Time{a: long}, steps: "remove 192.0.2.1 1h0m0s; forget 192.0.2.1"},
		"unfenced, unchanged":                   {owned: []own{ours(a, long)}, observed: map[entry]time.Time{a: long}, steps: "forget 192.0.2.1"},
		"unfenced, the other program's is over": {owned: []own{ours(a, now.Add(-time.Hour))}, observed: map[entry]time.Time{a: long}, steps: "remove 192.0.2.1; forget 192.0.2.1"},
		"a client's address is fenced": {want: entries{blocks: []entry{b}}, owned: []own{{Block: b.block, Foreign: short}}, observed: map[entry]time.Time{b: long},
			steps: "record 192.0.2.2 of a fence (05:00 to 06:00)"},
		"a wider block": {want: entries{blocks: []entry{r}}, owned: []own{ours(a, time.Time{})}, observed: map[entry]time.Time{a: long},
			steps: "record 192.0.2.0/24 of a fence; add 192.0.2.0/24 43800h0m0s; remove 192.0.2.1; forget 192.0.2.1"},
	} {
		got := describe(makePlan(c.want, c.owned, osdMap{until: c.observed}, now), now)
		if got != c.steps {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c.steps)
		}
	}
}

func describe(s steps, now time.Time) string {
	var parts []string
	add := func(name string, list []string) {
		if len(list) > 0 {
			parts = append(parts, name+" "+strings.Join(list, ", "))
		}
	}
	commands := func(list []command) (texts []string) {
		for _, c := range list {
			text := c.entry.String()
			if c.expire > 0 {
				text += " " + c.expire.String()
			}
			texts = append(texts, text)
		}
		return texts
	}
	var record, forget []string
	for _, o := range s.record {
		text := o.entry().String()
		if o.OfFence {
			text += " of a fence"
		}
		if !o.Foreign.IsZero() {
			text += fmt.Sprintf(" (%s to %s)", now.Format("15:04"), o.Foreign.Format("15:04"))
		}
		record = append(record, text)
	}
	for _, o := range s.forget {
		forget = append(forget, o.entry().String())
	}
	add("record", record)
	add("add", commands(s.add))
	add("remove", commands(s.remove))
	add("forget", forget)
	return strings.Join(parts, "; ")
}

func TestBlockInstance(t *testing.T) {
	got := string(testkit.Value(BlockInstance("v2:192.0.2.7:0/12"))(t))
	if want := `{"prefix":"osd blocklist","blocklistop":"add","addr":"192.0.2.7:0/12","expire":157680000.0}`; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	for _, bad := range []string{"", "192.0.2.7", "192.0.2.7:0/0", "192.0.2.7:6800/12", "192.0.2.0/24", "cidr:192.0.2.0:0/24"} {
		testkit.WantError(t, bad, testkit.Err(BlockInstance(bad)), nil, "address")
	}
}

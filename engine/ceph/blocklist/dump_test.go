package blocklist

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

// recordedMap is from Ceph 16.2.15, shortened.
const recordedMap = `{"epoch":33,"osds":[{"osd":0,"up":1,"in":1},{"osd":1,"up":0,"in":1},{"osd":7,"up":1,"in":0}],
"blocklist":{"[2001:db8:0:1::]:0/0":"2026-11-24T05:25:11.546842+0000","192.0.2.77:0/4294967295":"2026-11-24T05:25:11.526762+0000",
"[2001:db8::1]:0/5":"2026-11-24T05:25:11.504263+0000","192.0.2.7:0/0":"2031-11-23T04:25:11.115211+0000","192.0.2.7:6800/10216":"2031-11-23T04:25:11.115211+0000"},
"range_blocklist":{"cidr:0.0.0.0:0/1":"2026-11-24T05:25:11.197731+0000","cidr:10.1.2.3:0/24":"2026-11-24T05:25:11.343571+0000",
"cidr:203.0.113.9:0/32":"2026-11-24T05:25:11.358553+0000","cidr:[2001:db8::]:0/32":"2026-11-24T05:25:11.369584+0000"}}`

func at(t *testing.T, text string) time.Time {
	t.Helper()
	return testkit.Value(time.Parse(time.RFC3339Nano, text))(t).UTC()
}

func single(addr string, nonce uint32) entry {
	e := addressEntry(netip.MustParseAddr(addr))
	e.nonce = nonce
	return e
}

func ranged(block string) entry { return entry{block: netip.MustParsePrefix(block), ranged: true} }

func TestParseMap(t *testing.T) {
	m := testkit.Value(parseMap([]byte(recordedMap)))(t)
	for e := range m.until {
		m.until[e] = m.until[e].UTC()
	}
	want := map[entry]time.Time{
		single("2001:db8:0:1::", 0):      at(t, "2026-11-24T05:25:11.546842Z"),
		single("192.0.2.77", 4294967295): at(t, "2026-11-24T05:25:11.526762Z"),
		single("2001:db8::1", 5):         at(t, "2026-11-24T05:25:11.504263Z"),
		single("192.0.2.7", 0):           at(t, "2031-11-23T04:25:11.115211Z"),
		ranged("0.0.0.0/1"):              at(t, "2026-11-24T05:25:11.197731Z"),
		ranged("10.1.2.3/24"):            at(t, "2026-11-24T05:25:11.343571Z"),
		ranged("203.0.113.9/32"):         at(t, "2026-11-24T05:25:11.358553Z"),
		ranged("2001:db8::/32"):          at(t, "2026-11-24T05:25:11.369584Z"),
	}
	testkit.Diff(t, "entries", want, m.until, cmp.AllowUnexported(entry{}), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
	if m.epoch != 33 || !m.hasRanges || !slices.Equal(m.up, []int{0, 7}) {
		t.Errorf("parsed %+v", m)
	}
	blocked := testkit.Value(Instances([]byte(`{"epoch":1,"blocklist":{"192.0.2.7:0/0":"2026-11-24T05:25:11.546842+0000","192.0.2.8:0/12":"2026-11-24T05:25:11.546842+0000"}}`)))(t)
	for address, want := range map[string]bool{"192.0.2.8:0/12": true, "192.0.2.8:0/13": false, "192.0.2.7:0/12": false} {
		if got := blocked(testkit.Value(ParseWatcher(address))(t)); got != want {
			t.Errorf("%s is blocked: %t", address, got)
		}
	}
	if m := testkit.Value(parseMap([]byte(`{"epoch":1,"blocklist":{}}`)))(t); m.hasRanges || len(m.up) != 0 {
		t.Errorf("without ranges: %+v", m)
	}
	for _, bad := range []string{"", "[]", "{}", `{"epoch":1}`, `{"epoch":0,"blocklist":{}}`, `{"epoch":"1","blocklist":{}}`} {
		testkit.WantError(t, bad, testkit.Err(parseMap([]byte(bad))), nil, "osd dump")
	}
}

// Nodes write to the pools of images and of files.
func TestPoolsOfVolumes(t *testing.T) {
	m := testkit.Value(parseMap([]byte(`{"epoch":1,"blocklist":{},"pools":[
		{"pool":1,"pg_num":1,"application_metadata":{"rbd":{}}},{"pool":2,"pg_num":2,"application_metadata":{"cephfs":{"data":"files"}}},
		{"pool":3,"pg_num":1,"application_metadata":{"cephfs":{"metadata":"files"}}},{"pool":4,"pg_num":1,"application_metadata":{"rgw":{}}},
		{"pool":5,"pg_num":1,"application_metadata":{}},{"pool":6,"pg_num":1,"application_metadata":{"cephfs":{"data":"a","metadata":"a"}}}]}`)))(t)
	testkit.Diff(t, "placement groups", []string{"1.0", "2.0", "2.1", "5.0", "6.0"}, m.pgs)
}

func TestParseWatcher(t *testing.T) {
	for text, want := range map[string]Watcher{
		"192.0.2.1:0/3710147553":    {Addr: netip.MustParseAddr("192.0.2.1"), Nonce: 3710147553},
		"v1:192.0.2.1:0/1":          {Addr: netip.MustParseAddr("192.0.2.1"), Nonce: 1},
		"v2:[2001:db8::1]:0/12":     {Addr: netip.MustParseAddr("2001:db8::1"), Nonce: 12},
		"any:192.0.2.1:0/1":         {Addr: netip.MustParseAddr("192.0.2.1"), Nonce: 1},
		"[::ffff:192.0.2.1]:0/7":    {Addr: netip.MustParseAddr("192.0.2.1"), Nonce: 7},
		"[fe80::1%eth0]:0/7":        {Addr: netip.MustParseAddr("fe80::1"), Nonce: 7},
		"192.0.2.1:6800/4294967295": {Addr: netip.MustParseAddr("192.0.2.1"), Nonce: 4294967295},
	} {
		if got, err := ParseWatcher(text); err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, bad := range []string{"", "192.0.2.1", "192.0.2.1:0", "192.0.2.1/5", "a:0/1", "192.0.2.1:0/", "192.0.2.1:0/4294967296", "192.0.2.1:0/-1", "2001:db8::1:0/1"} {
		testkit.WantError(t, bad, testkit.Err(ParseWatcher(bad)), nil, "of a")
	}
}

// Entries that are parsed can be written in a command, and an entry that was
// added is parsed as the same.
func FuzzEntry(f *testing.F) {
	f.Add("192.0.2.77:0/4294967295")
	f.Add("cidr:[2001:db8::]:0/32")
	f.Add("[fe80::1%eth0]:0/0")
	f.Fuzz(func(t *testing.T, text string) {
		if e, ok := parseAddressEntry(text); ok {
			printed := e.String()
			if e.nonce == 0 {
				printed = netip.AddrPortFrom(e.block.Addr(), 0).String() + "/0"
			}
			if again, ok := parseAddressEntry(printed); !ok || again != e {
				t.Errorf("%q is %+v, printed as %s", text, e, printed)
			}
		}
		if e, ok := parseRangeEntry(text); ok {
			b, err := netip.ParsePrefix(e.String())
			if err != nil || b != e.block {
				t.Errorf("%q is %+v, printed as %s", text, e, e)
			}
		}
	})
}

func FuzzMap(f *testing.F) {
	f.Add([]byte(recordedMap))
	f.Add([]byte(strings.ReplaceAll(recordedMap, "+0000", "")))
	f.Fuzz(func(t *testing.T, data []byte) {
		if m, err := parseMap(data); err == nil && m.epoch == 0 {
			t.Errorf("parsed %+v", m)
		}
	})
}

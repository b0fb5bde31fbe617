package request

import (
	"net/netip"
	"strings"
	"testing"
)

func TestCheckReach(t *testing.T) {
	own := []netip.Addr{
		netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("::1"), netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("::ffff:198.51.100.1"),
		netip.MustParseAddr("2001:db8::10"), netip.MustParseAddr("fe80::10%eth0"),
	}
	for blocks, want := range map[string]string{
		"192.0.2.11":                 "",
		"192.0.2.11 2001:db8:1::/48": "",
		"192.0.2.10":                 "192.0.2.10/32 covers 192.0.2.10, an address of this server or of a peer; nothing was fenced. Leave it out, or insist with the parameter fence.cleat.dev/force=true",
		"192.0.2.0/24":               "192.0.2.0/24 covers 192.0.2.10",
		"198.51.100.1":               "covers 198.51.100.1",
		"203.0.113.1 192.0.2.0/28":   "192.0.2.0/28 covers 192.0.2.10",
		"2001:db8::/64":              "2001:db8::/64 covers 2001:db8::10",
		"fe80::/64":                  "fe80::/64 covers fe80::10",
		"::1":                        "covers ::1",
		"127.0.0.53":                 "127.0.0.53/32 covers 127.0.0.53",
		"126.0.0.0/7":                "126.0.0.0/7 covers 127.0.0.1",
		"0.0.0.0/0":                  "the blocks together are 0.0.0.0/0, which is everybody and this server too",
		"::/0":                       "the blocks together are ::/0",
		"0.0.0.0/1 128.0.0.0/1":      "the blocks together are 0.0.0.0/0",
		"0.0.0.0/0 ::/0":             "0.0.0.0/0, which is everybody and this server too; the blocks together are ::/0",
		"128.0.0.0/1 0.0.0.0/2 64.0.0.0/3 96.0.0.0/3": "the blocks together are 0.0.0.0/0",
	} {
		ask, err := Fence(fenceRequest(strings.Fields(blocks)...))
		if err != nil {
			t.Fatal(err)
		}
		checkError(t, CheckReach(ask, Network{Own: own}), want, "%s", blocks)
		ask.Force = true
		checkError(t, CheckReach(ask, Network{Own: own}), "", "%s by force", blocks)
	}
}

// Without loopback in the list of the server's addresses, what is loopback by
// definition is refused all the same.
func TestCheckReachKnowsLoopback(t *testing.T) {
	ask, err := Fence(fenceRequest("127.1.0.0/16"))
	if err != nil {
		t.Fatal(err)
	}
	checkError(t, CheckReach(ask, Network{}), "127.1.0.0/16 covers 127.1.0.0", "127.1.0.0/16")
}

func TestCheckReachIsBounded(t *testing.T) {
	var many []string
	var own []netip.Addr
	for i := range 100 {
		addr := netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		many, own = append(many, addr.String()), append(own, addr)
	}
	ask, err := Fence(fenceRequest(many...))
	if err != nil {
		t.Fatal(err)
	}
	checkError(t, CheckReach(ask, Network{Own: own}), "and 92 more; nothing was fenced", "all own")
}

// TestCheckReachOfNobody: a fence that can match no client is a slip, and not a
// fence that holds.
func TestCheckReachOfNobody(t *testing.T) {
	network := Network{Broadcast: []netip.Addr{netip.MustParseAddr("10.0.1.255")}} // of 10.0.0.0/23
	for block, want := range map[string]string{
		"255.255.255.255":    "255.255.255.255/32 is a broadcast address, from which no client sends; nothing was fenced",
		"255.255.255.254/31": "",
		"0.0.0.0/8":          "0.0.0.0/8 is in 0.0.0.0/8",
		"0.1.2.3":            "0.1.2.3/32 is in 0.0.0.0/8",
		"0.0.0.0/7":          "",
		"::10.77.0.2":        "::a4d:2/128 is an IPv4 address in the old form ::a.b.c.d",
		"::/96":              "::/96 is an IPv4 address in the old form",
		"::1":                "", // loopback, which this network does not list
		"::/64":              "",
		"10.0.1.255":         "10.0.1.255/32 is a broadcast address",
		"10.0.0.255":         "",
		"10.0.0.0/23":        "",
	} {
		ask, err := Fence(fenceRequest(block))
		if err != nil {
			t.Fatal(err)
		}
		for _, ask.Force = range []bool{false, true} {
			checkError(t, CheckReach(ask, network), want, "%s, force %v", block, ask.Force)
		}
	}
}

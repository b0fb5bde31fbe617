package netaddr

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func addrs(texts string) (all []netip.Addr) {
	for _, text := range strings.Fields(texts) {
		all = append(all, netip.MustParseAddr(text))
	}
	return all
}

func TestAddressesOfLinks(t *testing.T) {
	on := func(link int, prefix string, flags int) address {
		return address{netip.MustParsePrefix(prefix), link, flags}
	}
	all := []address{
		on(1, "127.0.0.1/8", unix.IFA_F_PERMANENT),
		on(2, "192.0.2.1/24", unix.IFA_F_PERMANENT),
		on(2, "192.0.2.2/24", unix.IFA_F_PERMANENT|unix.IFA_F_SECONDARY),
		on(2, "192.0.2.100/32", unix.IFA_F_PERMANENT), // keepalived
		on(2, "2001:db8::a/64", unix.IFA_F_TEMPORARY),
		on(2, "2001:db8::9/64", unix.IFA_F_TEMPORARY|unix.IFA_F_DEPRECATED),
		on(2, "2001:db8::5/64", unix.IFA_F_MANAGETEMPADDR),
		on(2, "2001:db8::4/64", unix.IFA_F_DEPRECATED),
		on(2, "2001:db8::6/128", 0),                    // DHCPv6
		on(2, "2001:db8::7/128", unix.IFA_F_PERMANENT), // kube-vip
		on(2, "2001:db8::8/64", unix.IFA_F_DADFAILED),
		on(2, "fe80::1/64", unix.IFA_F_PERMANENT),
		on(3, "10.244.0.1/24", unix.IFA_F_PERMANENT), // of pods
		on(4, "198.51.100.1/32", unix.IFA_F_PERMANENT),
		on(5, "2001:db8:5::a/64", unix.IFA_F_TEMPORARY),
	}
	const link2 = "192.0.2.1 192.0.2.2 2001:db8::4 2001:db8::5 2001:db8::6 2001:db8::9 2001:db8::a"
	for _, c := range []struct{ sources, onLinks, stable string }{
		{"", "", ""},
		{"192.0.2.1 2001:db8::a", "192.0.2.1 2001:db8::a 192.0.2.2 2001:db8::4 2001:db8::5 2001:db8::6 2001:db8::9", "192.0.2.1 2001:db8::5"},
		{"192.0.2.1", link2, "192.0.2.1"},
		{"192.0.2.2", "192.0.2.2 192.0.2.1 2001:db8::4 2001:db8::5 2001:db8::6 2001:db8::9 2001:db8::a", "192.0.2.2"},
		{"198.51.100.1", "198.51.100.1", "198.51.100.1"}, // GCE, routing on the host
		{"203.0.113.1", "203.0.113.1", "203.0.113.1"},    // behind NAT
		{"2001:db8:5::a", "2001:db8:5::a", ""},
	} {
		if got := onLinks(all, addrs(c.sources)); !slices.Equal(got, addrs(c.onLinks)) {
			t.Errorf("on the links of %s: %v\nwant %s", c.sources, got, c.onLinks)
		}
		if got := stable(all, addrs(c.sources)); !slices.Equal(got, addrs(c.stable)) {
			t.Errorf("stable for %s: %v, want %s", c.sources, got, c.stable)
		}
	}
}

// With the kernel's privacy extensions the source is temporary.
func TestPrivacyExtensions(t *testing.T) {
	ip := network(t)
	ip("link set lo up")
	ip("link add near type veth peer name far")
	for _, setting := range []string{"use_tempaddr=2", "accept_dad=0"} {
		name, value, _ := strings.Cut(setting, "=")
		testkit.Must(t, os.WriteFile("/proc/sys/net/ipv6/conf/near/"+name, []byte(value), 0o644))
	}
	ip("link set far up")
	ip("link set near up")
	ip("address add 192.0.2.1/24 dev near")
	ip("address add 192.0.2.100/32 dev near")
	ip("-6 address add 2001:db8::5/64 dev near mngtmpaddr valid_lft 7200 preferred_lft 3600")
	ip("-6 address add 2001:db8::4/64 dev near nodad valid_lft 7200 preferred_lft 0")
	ip("-6 route add default via 2001:db8::fe dev near")
	ip("route add default via 192.0.2.254")
	var preferred []netip.Addr
	testkit.EventuallyNil(t, "the kernel prefers a temporary address", func() (err error) {
		if preferred, err = Preferred(); err == nil && (len(preferred) != 2 || slices.Contains(addrs("2001:db8::4 2001:db8::5"), preferred[1])) {
			err = fmt.Errorf("it prefers %v", preferred)
		}
		return err
	})
	temporary := preferred[1].String()
	got, err := OnLinks(preferred)
	want(t, "on the link", got, err, "192.0.2.1", temporary, "2001:db8::4", "2001:db8::5")
	got, err = Stable(preferred)
	want(t, "stable", got, err, "192.0.2.1", "2001:db8::5")
}

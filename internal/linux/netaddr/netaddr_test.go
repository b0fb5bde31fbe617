package netaddr

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func network(t *testing.T) (ip func(words string)) {
	t.Helper()
	testkit.EnterNetNS(t)
	ip = func(words string) { testkit.Run(t, "ip", strings.Fields(words)...) }
	ip("link set lo down")
	return ip
}

func want(t *testing.T, what string, got []netip.Addr, err error, texts ...string) {
	t.Helper()
	all := []netip.Addr{}
	for _, text := range texts {
		all = append(all, netip.MustParseAddr(text))
	}
	if err != nil || !slices.Equal(got, all) {
		t.Errorf("%s: got %v, %v; want %v", what, got, err, all)
	}
}

func TestOwn(t *testing.T) {
	ip := network(t)
	got, err := Own()
	want(t, "nothing is up", got, err, "127.0.0.1", "::1")
	ip("link set lo up")
	ip("link add near type veth peer name far")
	ip("address add 192.0.2.1/24 dev near")
	ip("address add 192.0.2.2/24 dev near") // secondary
	ip("address add 2001:db8::1/64 dev near nodad")
	ip("address add 198.51.100.4/29 dev far")
	ip("address add 198.51.100.20/31 dev far")
	ip("address add 198.51.100.1 peer 198.51.100.2/32 dev far")
	got, err = Own()
	want(t, "some are down", got, err, "127.0.0.1", "192.0.2.1", "192.0.2.2", "198.51.100.1", "198.51.100.4", "198.51.100.20", "::1", "2001:db8::1")
	got, err = Broadcast()
	want(t, "broadcast", got, err, "192.0.2.255", "198.51.100.7")
	ip("address add fe80::5/64 dev near nodad")
	if got, err := Own(); err != nil || !slices.Contains(got, netip.MustParseAddr("fe80::5")) {
		t.Errorf("the link-local address without its zone: %v, %v", got, err)
	}
}

func TestPreferred(t *testing.T) {
	ip := network(t)
	got, err := Preferred()
	want(t, "no route", got, err)
	ip("link set lo up")
	ip("link add near type veth peer name far")
	ip("link set far up")
	ip("link set near up")
	ip("address add 203.0.113.7/24 dev far")
	ip("address add 192.0.2.1/24 dev near")
	ip("address add 192.0.2.2/24 dev near")
	ip("address add 2001:db8::1/64 dev near nodad")
	got, err = Preferred()
	want(t, "no default route", got, err)
	ip("route add default via 192.0.2.254")
	got, err = Preferred()
	want(t, "IPv4", got, err, "192.0.2.1")
	ip("-6 route add default via 2001:db8::fe dev near")
	got, err = Preferred()
	want(t, "both", got, err, "192.0.2.1", "2001:db8::1")
	ip("route replace default via 192.0.2.254 src 192.0.2.2")
	got, err = Preferred()
	want(t, "another source", got, err, "192.0.2.2", "2001:db8::1")
	for _, refusing := range []string{"unreachable", "prohibit", "blackhole"} {
		ip("-4 route flush exact default")
		ip("-6 route flush exact default")
		ip("-4 route add " + refusing + " default")
		ip("-6 route add " + refusing + " default")
		got, err = Preferred()
		want(t, refusing, got, err)
	}
	ip("-4 route flush exact default")
	ip("-6 route flush exact default")
	ip("-4 route add default dev lo src 127.0.0.1")
	ip("-6 route add default dev near")
	ip("-6 address del 2001:db8::1/64 dev near")
	got, err = Preferred()
	want(t, "loopback and link-local only", got, err)
	ip("-4 route replace local default dev lo")
	got, err = Preferred()
	want(t, "every address is one's own", got, err)
}

// A kernel without IPv6 (ipv6.disable=1) reports an unknown address family.
func TestFamilyThatIsNotThere(t *testing.T) {
	fd, err := unix.Socket(255, unix.SOCK_DGRAM, 0)
	if err == nil {
		_ = unix.Close(fd)
	}
	if !errors.Is(err, unix.EAFNOSUPPORT) || !isNoRoute(&net.OpError{Op: "dial", Err: os.NewSyscallError("socket", err)}) {
		t.Errorf("got %v", err)
	}
}

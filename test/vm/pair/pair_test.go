package pair

import (
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

// testHostIsUnreachable verifies that a guest cannot reach the host's addresses through
// the cable.
func (p *Pair) testHostIsUnreachable(t *testing.T) {
	addresses := testkit.Value(net.InterfaceAddrs())(t)
	n := p.Node(1)
	userNetwork := netip.MustParsePrefix("10.0.2.0/24") // the guest's network to the host
	for _, a := range addresses {
		prefix, err := netip.ParsePrefix(a.String())
		if err != nil || !prefix.Addr().Is4() || prefix.Addr().IsLoopback() || userNetwork.Contains(prefix.Addr()) {
			continue
		}
		listener := testkit.Value(net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(prefix.Addr(), 0))))(t)
		t.Cleanup(func() { _ = listener.Close() })
		n.Run("ip", "route", "add", prefix.Addr().String()+"/32", "dev", n.Interface)
		conn, err := n.Guest.Dial(t.Context(), "tcp", listener.Addr().String())
		switch {
		case err == nil:
			_ = conn.Close()
			t.Errorf("the guest connected to the host's %v through the cable", listener.Addr())
		case !strings.Contains(err.Error(), syscall.EHOSTUNREACH.Error()):
			t.Errorf("connect to the host's %v through the cable: got %v, want %q", listener.Addr(), err, syscall.EHOSTUNREACH)
		}
		testkit.Must(t, listener.SetDeadline(time.Now()))
		if _, err := listener.Accept(); err == nil {
			t.Errorf("the host's listener %v accepted a guest's connection", listener.Addr())
		}
	}
}

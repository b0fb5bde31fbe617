package pair

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

// testCable verifies that two guests reach each other but not the host through
// their cable, and detect an unplugged one.
func (p *Pair) testCable(t *testing.T) {
	conn := p.echo()
	begun := time.Now()
	const size = 4 * mib
	exchange(t, conn, size)
	fmt.Printf("REPORT: pair: TCP echoed %d MiB between two guests in %.1f s\n", size/mib, time.Since(begun).Seconds())
	p.testHostIsUnreachable(t)
	p.testUnplugged(t, conn)
}

// echo starts an echo server on guest 0 and connects to it from guest 1.
func (p *Pair) echo() net.Conn {
	p.Helper()
	const port = "7"
	testkit.Value(p.Node(0).Guest.Start(p.Context(), vm.Command{Argv: []string{"nc", "-ll", "-p", port, "-e", "cat"}}))(p)
	var conn net.Conn
	p.Node(1).Await("guest 1 can connect to guest 0", func() (served bool) {
		var err error
		conn, err = p.Node(1).Guest.Dial(p.Context(), "tcp", net.JoinHostPort(p.Node(0).Address.String(), port))
		return err == nil
	})
	p.Cleanup(func() { _ = conn.Close() })
	return conn
}

// exchange sends random bytes and verifies their echo.
func exchange(t testing.TB, conn net.Conn, size int) {
	t.Helper()
	sent, got := make([]byte, size), make([]byte, size)
	_, _ = rand.Read(sent)
	testkit.Must(t, conn.SetDeadline(time.Now().Add(40*time.Second)))
	writing := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		writing <- err
	}()
	n, err := io.ReadFull(conn, got)
	if err != nil {
		t.Errorf("got %d of %d bytes back: %v", n, size, err)
	}
	testkit.Must(t, <-writing)
	if !bytes.Equal(got, sent) {
		t.Error("the echoed bytes differ from the sent ones")
	}
}

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

// testUnplugged verifies that the guest detects its unplugged cable, that no
// packets pass, and that open connections continue after plugging it in.
func (p *Pair) testUnplugged(t *testing.T, conn net.Conn) {
	n := p.Node(1)
	carrier := path.Join("/sys/class/net", n.Interface, "carrier")
	p.Plug(1, false)
	n.Await("the card has no carrier", func() bool { return n.Read(carrier) == "0" })
	if out, err := n.Try("ping", "-c", "1", "-W", "1", p.Node(0).Address.String()); err == nil {
		t.Errorf("the other guest answered without a cable:\n%s", out)
	}
	testkit.Value(conn.Write([]byte("late")))(t)
	p.Plug(1, true)
	n.Await("the card has a carrier again", func() bool { return n.Read(carrier) == "1" })
	testkit.Must(t, conn.SetDeadline(time.Now().Add(40*time.Second)))
	back := make([]byte, len("late"))
	if _, err := io.ReadFull(conn, back); err != nil || string(back) != "late" {
		t.Errorf("data sent without a cable: got %q, %v", back, err)
	}
	exchange(t, conn, 64<<10)
}

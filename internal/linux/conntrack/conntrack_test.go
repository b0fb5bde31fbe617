package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	server4, client4 = "10.9.0.1", "10.9.0.2"
	server6, client6 = "fd09::1", "fd09::2"
)

// namespace translates port 4420 to 4421.
func namespace(t testing.TB) *Conn {
	t.Helper()
	testkit.EnterNetNS(t)
	for _, address := range []string{server4 + "/32", client4 + "/32", server6 + "/128", client6 + "/128"} {
		testkit.Run(t, "ip", "address", "add", address, "dev", "lo", "nodad")
	}
	testkit.AwaitRoutes(t, server6, client6)
	testkit.Run(t, "nft", `table inet forward { chain out { type nat hook output priority -100; tcp dport 4420 redirect to 4421; }; }`)
	return testkit.Open(Dial())(t)
}

func connect(t *testing.T, from, to string) *net.TCPConn {
	t.Helper()
	conn := testkit.Value(net.DialTCP("tcp", &net.TCPAddr{IP: net.ParseIP(from)}, net.TCPAddrFromAddrPort(netip.MustParseAddrPort(to))))(t)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func TestTranslated(t *testing.T) {
	c := namespace(t)
	l := testkit.Value(net.Listen("tcp", ":4421"))(t)
	defer l.Close()
	connect(t, client4, server4+":4421")
	var want []Flow
	var conns []*net.TCPConn
	for _, one := range []struct{ client, called, server string }{
		// A local connection is redirected to loopback.
		{client4, server4 + ":4420", "127.0.0.1:4421"},
		{client6, "[" + server6 + "]:4420", "[::1]:4421"},
	} {
		conn := connect(t, one.client, one.called)
		conns = append(conns, conn)
		want = append(want, Flow{
			Client: conn.LocalAddr().(*net.TCPAddr).AddrPort(), Called: netip.MustParseAddrPort(one.called),
			Server: netip.MustParseAddrPort(one.server), State: Established,
		})
	}
	expect := func(want []Flow) {
		t.Helper()
		testkit.EventuallyNil(t, "flows", func() error {
			got, err := c.Translated(t.Context())
			slices.SortFunc(got, func(a, b Flow) int { return a.Client.Compare(b.Client) })
			if err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
				return fmt.Errorf("%v, want %v (%v)", got, want, err)
			}
			return nil
		})
	}
	expect(want)
	for i, conn := range conns {
		testkit.Must(t, conn.SetLinger(0), conn.Close())
		want[i].State = Closed
	}
	expect(want)
	ended, cancel := context.WithCancelCause(t.Context())
	cancel(os.ErrDeadlineExceeded)
	if got, err := c.Translated(ended); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after the end of the call: %v, %v", got, err)
	}
	expect(want) // the Conn works on
}

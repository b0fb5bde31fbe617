package nft

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

// hosts are a server and two clients, all on the loopback, with the same hooks.
type hosts struct{ server, fenced, neighbour string }

func families() map[string]hosts {
	return map[string]hosts{
		"v4": {"10.9.0.1", "10.9.1.1", "10.9.2.1"},
		"v6": {"fd09::1", "fd09:1::1", "fd09:2::1"},
	}
}

func addHosts(t testing.TB, h hosts) {
	t.Helper()
	for _, a := range []string{h.server, h.fenced, h.neighbour} {
		testkit.Run(t, "ip", "address", "add", a, "dev", "lo", "nodad")
	}
	testkit.AwaitRoutes(t, h.server, h.fenced, h.neighbour)
}

// listenOn echoes.
func listenOn(t testing.TB, address string, port int) {
	t.Helper()
	l := testkit.Value(net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(address), Port: port}))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				buf := make([]byte, 64)
				for {
					n, err := c.Read(buf)
					if err != nil {
						return
					}
					if _, err := c.Write(buf[:n]); err != nil {
						return
					}
				}
			}()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
}

func connect(t testing.TB, from, to string, port int, patience time.Duration) (net.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	return d.DialContext(ctx, "tcp", netip.AddrPortFrom(netip.MustParseAddr(to), uint16(port)).String())
}

const (
	patient   = 30 * time.Second
	impatient = 300 * time.Millisecond
)

func reaches(t testing.TB, from, to string, port int) {
	t.Helper()
	c, err := connect(t, from, to, port, patient)
	if err != nil {
		t.Errorf("%s does not reach %s, port %d: %v", from, to, port, err)
		return
	}
	defer c.Close()
	if !echoes(c, patient) {
		t.Errorf("%s is not answered by %s, port %d", from, to, port)
	}
}

func isKeptOut(t testing.TB, from, to string, port int) {
	t.Helper()
	c, err := connect(t, from, to, port, impatient)
	if err == nil {
		_ = c.Close()
	}
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%s reaches %s, port %d: %v", from, to, port, err)
	}
}

func echoes(c net.Conn, patience time.Duration) bool {
	_ = c.SetDeadline(time.Now().Add(patience))
	if _, err := c.Write([]byte("x")); err != nil {
		return false
	}
	_, err := c.Read(make([]byte, 1))
	return err == nil
}

func TestTraffic(t *testing.T) {
	for family, h := range families() {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			testkit.EnterNetNS(t)
			addHosts(t, h)
			for _, port := range []int{4420, 4421, 9999} {
				listenOn(t, h.server, port)
			}
			f := open(t, config(t, "4420-4421"))
			old, err := connect(t, h.fenced, h.server, 4420, patient)
			if err != nil || !echoes(old, patient) {
				t.Fatalf("no session: %v", err)
			}
			defer old.Close()
			fenced := netip.MustParseAddr(h.fenced)
			apply(t, f, netip.PrefixFrom(fenced, fenced.BitLen()))

			if echoes(old, impatient) {
				t.Error("the existing session continues")
			}
			isKeptOut(t, h.fenced, h.server, 4421)
			reaches(t, h.fenced, h.server, 9999)
			reaches(t, h.neighbour, h.server, 4420)
			checkDropped(t, f, fenced.Is4())

			apply(t, f)
			reaches(t, h.fenced, h.server, 4421)
		})
	}
}

func checkDropped(t testing.TB, f *Filter, v4 bool) {
	t.Helper()
	testkit.Value(f.Held(t.Context()))(t)
	s := f.Status()
	if v4 && (s.Dropped4 == 0 || s.Dropped6 != 0) || !v4 && (s.Dropped6 == 0 || s.Dropped4 != 0) {
		t.Errorf("dropped %d IPv4 packets and %d IPv6 packets", s.Dropped4, s.Dropped6)
	}
}

// The server's port is known at input only.
func TestRedirectedPort(t *testing.T) {
	for family, h := range families() {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			testkit.EnterNetNS(t)
			addHosts(t, h)
			listenOn(t, h.server, 4420)
			to := map[string]string{"v4": "ip to " + h.server + ":4420", "v6": "ip6 to [" + h.server + "]:4420"}[family]
			testkit.Run(t, "nft", "add table inet nat; add chain inet nat in { type nat hook prerouting priority dstnat; }; add rule inet nat in tcp dport 80 dnat "+to)
			sender := namespaceBehind(t, h)
			f := open(t, config(t, "4420"))
			if !sender(80, patient) {
				t.Fatal("the redirected port is not reached")
			}
			fenced := netip.MustParseAddr(h.fenced)
			apply(t, f, netip.PrefixFrom(fenced, fenced.BitLen()))
			if sender(80, impatient) {
				t.Error("the redirected port is reached by a fenced client")
			}
			apply(t, f)
			if !sender(80, patient) {
				t.Error("the redirected port is not reached again")
			}
		})
	}
}

// Any protocol, such as ping.
func TestAllTraffic(t *testing.T) {
	for family, h := range families() {
		t.Run(family, func(t *testing.T) {
			t.Parallel()
			testkit.EnterNetNS(t)
			addHosts(t, h)
			listenOn(t, h.server, 22)
			f := open(t, config(t))
			reaches(t, h.fenced, h.server, 22)
			fenced := netip.MustParseAddr(h.fenced)
			apply(t, f, netip.PrefixFrom(fenced, fenced.BitLen()))
			isKeptOut(t, h.fenced, h.server, 22)
			if udpReaches(t, h.fenced, h.server, impatient) {
				t.Error("UDP of a fenced client is accepted")
			}
			if !udpReaches(t, h.neighbour, h.server, patient) {
				t.Error("UDP of a neighbour is not accepted")
			}
		})
	}
}

func udpReaches(t testing.TB, from, to string, patience time.Duration) bool {
	t.Helper()
	server := testkit.Value(net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(to)}))(t)
	defer server.Close()
	client, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(from)}, server.LocalAddr().(*net.UDPAddr))
	testkit.Must(t, err)
	defer client.Close()
	testkit.Value(client.Write([]byte("x")))(t)
	_ = server.SetReadDeadline(time.Now().Add(patience))
	_, err = server.Read(make([]byte, 1))
	return err == nil
}

// namespaceBehind moves the clients into a network namespace behind a veth
// pair, and returns a function that connects from there.
func namespaceBehind(t testing.TB, h hosts) func(port int, patience time.Duration) bool {
	t.Helper()
	orders, answers := make(chan order), make(chan error)
	where := make(chan string)
	go clientThread(t, h, where, orders, answers)
	t.Cleanup(func() { close(orders) })
	path := <-where
	bits := "/" + map[bool]string{true: "32", false: "128"}[netip.MustParseAddr(h.server).Is4()]
	testkit.Run(t, "ip", "address", "delete", h.fenced+bits, "dev", "lo")
	testkit.Run(t, "ip", "link", "add", "here", "type", "veth", "peer", "name", "there", "netns", path)
	testkit.Run(t, "ip", "link", "set", "here", "up")
	testkit.Run(t, "ip", "address", "add", h.server, "dev", "here", "nodad") // neighbor discovery works without it
	testkit.Run(t, "ip", "route", "add", h.fenced, "dev", "here")
	orders <- order{}
	testkit.Must(t, <-answers)
	return func(port int, patience time.Duration) bool {
		orders <- order{port, patience}
		return <-answers == nil
	}
}

// order is a port and a timeout.
type order struct {
	port     int
	patience time.Duration
}

// clientThread is a thread in its own network namespace. The order of no port
// sets its interface up.
func clientThread(t testing.TB, h hosts, where chan<- string, orders <-chan order, answers chan<- error) {
	runtime.LockOSThread() // never unlocked
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Error(err)
	}
	where <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
	for o := range orders {
		if o.port == 0 {
			answers <- setUpClient(h)
			continue
		}
		answers <- visit(h, o)
	}
}

func setUpClient(h hosts) error {
	for _, command := range [][]string{
		{"link", "set", "lo", "up"}, {"link", "set", "there", "up"},
		{"address", "add", h.fenced, "dev", "there", "nodad"}, {"route", "add", h.server, "dev", "there", "src", h.fenced},
	} {
		if out, err := exec.Command("ip", command...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %v: %w: %s", command, err, out)
		}
	}
	return nil
}

// The interfaces need a moment.
func visit(h hosts, o order) error {
	var err error
	for range 5 {
		ctx, cancel := context.WithTimeout(context.Background(), o.patience)
		var c net.Conn
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(h.fenced)}}
		c, err = d.DialContext(ctx, "tcp", netip.AddrPortFrom(netip.MustParseAddr(h.server), uint16(o.port)).String())
		cancel()
		if err == nil {
			return c.Close()
		}
	}
	return err
}

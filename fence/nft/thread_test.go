package nft

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// order is a port to connect to, and for how long to try.
type order struct {
	port     int
	patience time.Duration
}

// clientThread is a thread in a network namespace of its own. The order of no
// port sets its interface up.
func clientThread(t testing.TB, h hosts, where chan<- string, orders <-chan order, answers chan<- error) {
	runtime.LockOSThread() // the thread ends with this goroutine
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

// visit tries several times: it may take the interfaces a moment to be ready.
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

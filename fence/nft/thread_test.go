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

// clientThread is a thread in a network namespace of its own. The order 0 sets
// its interface up, any other is a port to connect to.
func clientThread(t testing.TB, h hosts, where chan<- string, orders <-chan int, answers chan<- error) {
	runtime.LockOSThread() // the thread ends with this goroutine
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Error(err)
	}
	where <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
	for port := range orders {
		if port == 0 {
			answers <- setUpClient(h)
			continue
		}
		answers <- visit(h, port)
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

// visit tries for longer when it may take the interfaces a moment to be ready.
func visit(h hosts, port int) error {
	var err error
	for range 5 {
		ctx, cancel := context.WithTimeout(context.Background(), impatient)
		var c net.Conn
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(h.fenced)}}
		c, err = d.DialContext(ctx, "tcp", netip.AddrPortFrom(netip.MustParseAddr(h.server), uint16(port)).String())
		cancel()
		if err == nil {
			_ = c.SetDeadline(time.Now().Add(impatient))
			return c.Close()
		}
	}
	return err
}

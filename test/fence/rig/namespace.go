// Package rig provides hosts for tests of fencing: network namespaces on one
// switch, and machines that also have a PID namespace. All of it ends with the
// test, also when the test is killed: namespaces are referenced only by open
// files and processes, and processes end with the first one of their PID
// namespace, which ends with the test.
package rig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Namespace is an unnamed network namespace: it ends with its last file and
// process.
type Namespace struct {
	file *os.File
}

// NewNamespace creates a namespace with only a loopback, which ends with the
// test.
func NewNamespace(t testing.TB) *Namespace {
	t.Helper()
	var file *os.File
	err := onThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare a network namespace: %w", err)
		}
		var err error
		file, err = os.Open("/proc/thread-self/ns/net")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	n := &Namespace{file: file}
	t.Cleanup(func() { _ = file.Close() })
	n.MustRun(t, "ip", "link", "set", "lo", "up")
	return n
}

// Do runs fn on a thread in the namespace. Sockets and processes that fn
// creates stay in it; goroutines that it starts are outside.
func (n *Namespace) Do(fn func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return fn()
	})
}

// onThread runs fn on a thread whose network namespace fn can change: it is
// restored, and if that fails the thread ends.
func onThread(fn func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			result <- err
			return
		}
		defer home.Close()
		err = fn()
		if back := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); back == nil {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// Dial connects from the namespace to an address; local can be the zero Addr.
func (n *Namespace) Dial(ctx context.Context, to netip.AddrPort, local netip.Addr) (conn *net.TCPConn, err error) {
	d := net.Dialer{KeepAlive: -1}
	if local.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 0))
	}
	err = n.Do(func() error {
		c, err := d.DialContext(ctx, "tcp", to.String())
		if err == nil {
			conn = c.(*net.TCPConn)
		}
		return err
	})
	return conn, err
}

// WaitFor dials until a server listens, for half a minute at most.
func (n *Namespace) WaitFor(ctx context.Context, to netip.AddrPort) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := n.Dial(ctx, to, netip.Addr{})
		if err == nil {
			return conn.Close()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("no server listens at %s: %w", to, err)
		case <-tick.C:
		}
	}
}

// Run runs a program of this machine in the namespace and returns its output.
func (n *Namespace) Run(ctx context.Context, args ...string) (string, error) {
	return n.feed(ctx, "", args...)
}

func (n *Namespace) feed(ctx context.Context, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	if path, err := exec.LookPath(args[0]); err == nil {
		cmd.Path = path
	} else if path := "/usr/sbin/" + args[0]; !strings.Contains(args[0], "/") {
		cmd.Path, cmd.Err = path, nil
	}
	var out, complaint bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaint
	if err := n.Do(cmd.Start); err != nil {
		return "", err
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return out.String(), nil
}

// MustRun is Run that fails the test on an error.
func (n *Namespace) MustRun(t testing.TB, args ...string) string {
	t.Helper()
	out, err := n.Run(context.WithoutCancel(t.Context()), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// IsTimeout reports whether a connection attempt timed out.
func IsTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &ne) && ne.Timeout()
}

// Package rig gives tests of fencing hosts of their own: network namespaces on
// one switch, and machines that also have processes of their own. All of it
// ends with the test, also when the test is killed: namespaces are held by
// nothing but open files and processes, and processes by the first one of their
// PID namespace, which ends when the test does.
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

// Namespace is a network namespace without a name: it goes with the last file
// and the last process.
type Namespace struct {
	file *os.File
}

// NewNamespace makes a namespace with nothing but its loopback, which ends with
// the test.
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

// Do runs fn on a thread that is in the namespace. Sockets and processes that
// fn makes stay in it; goroutines that it starts are not.
func (n *Namespace) Do(fn func() error) error {
	return onThread(func() error {
		if err := unix.Setns(int(n.file.Fd()), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter the network namespace: %w", err)
		}
		return fn()
	})
}

// onThread runs fn on a thread whose network namespace fn may change: it is
// brought back, and when that fails it ends.
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

// Dial connects from the namespace to an address; local may be the zero Addr.
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

// WaitFor dials until somebody listens, at most for half a minute.
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
			return fmt.Errorf("nobody listens at %s: %w", to, err)
		case <-tick.C:
		}
	}
}

// Run runs a program of this machine in the namespace and returns what it
// printed.
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

// MustRun is Run for what cannot fail.
func (n *Namespace) MustRun(t testing.TB, args ...string) string {
	t.Helper()
	out, err := n.Run(context.WithoutCancel(t.Context()), args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// IsTimeout reports whether an attempt to connect got no answer.
func IsTimeout(err error) bool {
	var ne net.Error
	return errors.Is(err, context.DeadlineExceeded) || errors.As(err, &ne) && ne.Timeout()
}

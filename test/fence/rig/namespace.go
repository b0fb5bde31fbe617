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
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// Namespace is a network namespace that runs programs.
type Namespace struct{ testkit.NetNS }

// NewNamespace creates a namespace with only a loopback, which ends with the
// test.
func NewNamespace(t testing.TB) *Namespace {
	t.Helper()
	return &Namespace{testkit.NewNetNS(t)}
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

// WaitFor dials until a server listens.
func (n *Namespace) WaitFor(ctx context.Context, to netip.AddrPort) error {
	return testkit.Poll(testkit.Timeout, ctx.Done(), func() error {
		conn, err := n.Dial(ctx, to, netip.Addr{})
		if err != nil {
			return fmt.Errorf("no server listens at %s: %w", to, err)
		}
		return conn.Close()
	})
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

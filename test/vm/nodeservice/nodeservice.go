// Package nodeservice runs the node service of cleat csi in test guests, and
// calls it as an orchestrator does.
package nodeservice

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/kernel"
)

// Paths in the guest.
const (
	System  = "/var/lib/node" // a disk in guests that are rebooted
	State   = System + "/driver"
	Volumes = System + "/volumes" // staging and target paths
	Socket  = "/run/cleat/csi/csi.sock"
)

// callTimeout is the limit of one call.
const callTimeout = 2 * time.Minute

// Node is a guest with a node service.
type Node struct {
	*kernel.Kernel
	*Service
}

// Service is the process of a node service, which can be restarted. The copies
// of a Node share it.
type Service struct {
	Program string   // in the guest
	Flags   []string // of cleat csi, without socket and state directory
	Process *vm.Process
	Conn    *grpc.ClientConn
}

// New returns a node whose service does not run yet.
func New(k *kernel.Kernel, flags ...string) *Node {
	return &Node{k, &Service{Program: "cleat", Flags: flags}}
}

// In returns the node for a subtest.
func (n *Node) In(t testing.TB) *Node {
	return &Node{&kernel.Kernel{TB: t, Guest: n.Guest}, n.Service}
}

// Client calls the service.
func (n *Node) Client() csi.NodeClient { return csi.NewNodeClient(n.Conn) }

// Call returns the context of one call.
func (n *Node) Call() (context.Context, context.CancelFunc) {
	return context.WithTimeout(n.Context(), callTimeout)
}

// Start starts the process, and waits until it is ready.
func (n *Node) Start(env ...string) {
	n.Helper()
	if n.Conn != nil {
		testkit.Must(n, n.Conn.Close())
	}
	n.Process = testkit.Value(n.Guest.Start(n.Context(), vm.Command{Env: env, Argv: append([]string{
		n.Program, "csi", "--endpoint", "unix://" + Socket, "--state-dir", State, "--log-format", "text",
	}, n.Flags...)}))(n)
	n.Conn = testkit.Value(n.Guest.Connect(Socket))(n)
	n.Await("the node service is ready", func() bool {
		select {
		case <-n.Process.Done():
			n.Fatalf("the node service exited: %v", n.Process.Err())
		default:
		}
		answer, err := csi.NewIdentityClient(n.Conn).Probe(n.Context(), &csi.ProbeRequest{})
		return err == nil && answer.GetReady().GetValue()
	})
}

// Stop stops the process with SIGTERM.
func (n *Node) Stop() {
	n.Helper()
	testkit.Must(n, n.Process.Signal(syscall.SIGTERM))
	n.AwaitEnd()
	testkit.Must(n, n.Process.Err())
}

// AwaitEnd waits for the end of the process.
func (n *Node) AwaitEnd() {
	n.Helper()
	select {
	case <-n.Process.Done():
	case <-time.After(callTimeout):
		n.Fatalf("the node service did not end:\n%s", n.Process.Log())
	}
}

// LosePower ends the guest.
func (n *Node) LosePower() {
	n.Helper()
	testkit.Must(n, n.Conn.Close(), n.Guest.LosePower())
}

// WantKilled makes a call that kills the process at a crash point.
func (n *Node) WantKilled(point string, call func() error) {
	n.Helper()
	err := call()
	if err == nil {
		n.Fatalf("%s was not reached", point)
	}
	n.AwaitEnd()
	if exit, ok := errors.AsType[*vm.ExitError](n.Process.Err()); !ok || exit.Signal != syscall.SIGKILL {
		n.Fatalf("at %s: the call returned %v, the process %v", point, err, n.Process.Err())
	}
}

// Package driver runs cleat csi as a process for tests, and checks that it leaves
// nothing behind.
package driver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/testkit"
)

// Process is a running cleat csi.
type Process struct {
	*testkit.Process
	Socket string
	Conn   *grpc.ClientConn
}

// Start runs cleat csi with its socket and state below dir/name, waits until
// it answers Probe, and stops it when the test ends.
func Start(t testing.TB, cleat, dir, name string, flags ...string) *Process {
	t.Helper()
	p := testkit.Value(Launch(t.Context(), cleat, dir, name, nil, flags...))(t)
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Errorf("cleat csi did not stop cleanly: %v\n%s", err, p.Log)
		}
	})
	return p
}

// Launch is Start for callers that stop or kill the process themselves; env is
// added to the environment.
func Launch(ctx context.Context, cleat, dir, name string, env []string, flags ...string) (*Process, error) {
	socket := filepath.Join(dir, name, "csi.sock")
	args := append([]string{"csi", "--endpoint", "unix://" + socket, "--state-dir", filepath.Join(dir, name+"-state")}, flags...)
	cmd := exec.Command(cleat, args...)
	cmd.Env = append(os.Environ(), env...)
	conn, err := testkit.Connect(socket)
	if err != nil {
		return nil, err
	}
	process, err := testkit.Launch(cmd)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	p := &Process{Process: process, Socket: socket, Conn: conn}
	err = p.Until(func() error {
		answer, err := csi.NewIdentityClient(conn).Probe(ctx, &csi.ProbeRequest{})
		if err == nil && answer.GetReady() != nil && !answer.GetReady().GetValue() {
			err = errors.New("not ready")
		}
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cleat csi: %w", err), p.Kill())
	}
	return p, nil
}

// Stop ends the process with SIGTERM; it must exit with 0.
func (p *Process) Stop() error { return errors.Join(p.Process.Stop(), p.Conn.Close()) }

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() error {
	p.Process.Kill()
	return p.Conn.Close()
}

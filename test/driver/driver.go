// Package driver builds and runs cleat csi as a process for the tests that
// meet it from outside, and checks that it leaves nothing behind.
package driver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cleatproject/cleat/test/tree"
)

// Root returns the root of the source tree.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := tree.Root()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Build builds cleat with more arguments of go build and returns its path.
func Build(t testing.TB, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "cleat")
	if err := BuildAt(t.Context(), path, args...); err != nil {
		t.Fatal(err)
	}
	return path
}

// BuildAt is Build for a TestMain, whose tests share one program.
func BuildAt(ctx context.Context, path string, args ...string) error {
	root, err := tree.Root()
	if err != nil {
		return err
	}
	cgo := "CGO_ENABLED=0"
	if slices.Contains(args, "-race") { // the race detector is linked with the C compiler
		cgo = "CGO_ENABLED=1"
	}
	// Without debugging information it links in half the time.
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build", "-ldflags=-s -w", "-o", path}, args...), "./cmd/cleat")...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), cgo)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build ./cmd/cleat: %w\n%s", err, out)
	}
	return nil
}

// Process is a running cleat csi.
type Process struct {
	Socket string
	Conn   *grpc.ClientConn

	cmd  *exec.Cmd
	log  lockedBuffer
	done chan struct{}
	err  error
}

// Start runs cleat csi with its socket and state below dir/name, waits until
// it answers Probe, and stops it when the test ends.
func Start(t testing.TB, cleat, dir, name string, flags ...string) *Process {
	t.Helper()
	p, err := Launch(t.Context(), cleat, dir, name, nil, flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(); err != nil {
			t.Errorf("cleat csi did not stop cleanly: %v\n%s", err, p.Log())
		}
	})
	return p
}

// Launch is Start for callers that stop or kill the process themselves; env is
// added to the environment.
func Launch(ctx context.Context, cleat, dir, name string, env []string, flags ...string) (*Process, error) {
	p := &Process{Socket: filepath.Join(dir, name, "csi.sock"), done: make(chan struct{})}
	args := append([]string{"csi", "--endpoint", "unix://" + p.Socket, "--state-dir", filepath.Join(dir, name+"-state")}, flags...)
	p.cmd = exec.Command(cleat, args...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGTERM}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { p.err = p.cmd.Wait(); close(p.done) }()
	// gRPC's own pauses between attempts are made for networks.
	quick := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.2, MaxDelay: 50 * time.Millisecond}, MinConnectTimeout: time.Second}
	conn, err := grpc.NewClient("unix://"+p.Socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(quick))
	if err != nil {
		return nil, errors.Join(err, p.Kill())
	}
	p.Conn = conn
	if err := p.waitReady(ctx); err != nil {
		return nil, errors.Join(err, p.Kill(), errors.New(p.Log()))
	}
	return p, nil
}

func (p *Process) waitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		answer, err := csi.NewIdentityClient(p.Conn).Probe(ctx, &csi.ProbeRequest{})
		if err == nil && (answer.GetReady() == nil || answer.GetReady().GetValue()) {
			return nil
		}
		select {
		case <-p.done:
			return errors.Join(errors.New("cleat csi ended before it was ready"), p.err)
		case <-ctx.Done():
			return errors.Join(errors.New("cleat csi was not ready in time"), err)
		case <-tick.C:
		}
	}
}

// Stop ends the process with SIGTERM and reports how it went.
func (p *Process) Stop() error {
	if err := p.cmd.Process.Signal(unix.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		return errors.Join(errors.New("still running 30 s after SIGTERM"), p.Kill())
	}
	return errors.Join(p.err, p.Conn.Close())
}

// Kill ends the process with SIGKILL and waits for its end.
func (p *Process) Kill() error {
	err := p.cmd.Process.Kill()
	<-p.done
	if p.Conn != nil {
		_ = p.Conn.Close()
	}
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Log is what the process has printed so far.
func (p *Process) Log() string { return p.log.String() }

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

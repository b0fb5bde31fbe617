package power

import (
	"context"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
)

// running is a driver process in the guest.
type running struct {
	machine *machine
	guest   *vm.Guest
	process *vm.Process
	conn    *grpc.ClientConn
	cancel  context.CancelFunc // of watch
	done    chan struct{}
	hit     atomic.Bool
	console string // of a guest that lost power
}

var _ workload.Driver = (*running)(nil)

// watch waits for the driver's exit or its crash point, and then immediately
// powers the disk off.
func (r *running) watch(ctx context.Context, armed bool) {
	defer close(r.done)
	stopped := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if inside, err := r.machine.beside(); armed && err == nil {
		go func() {
			_, err := inside.Stop(ctx)
			stopped <- err
		}()
	}
	select {
	case err := <-stopped:
		if err == nil {
			r.hit.Store(true)
			_ = r.machine.drive.LosePower() // Kill returns the error too
		}
	case <-r.machine.drive.Gone():
		r.hit.Store(true) // the trigger fired
	case <-r.process.Done():
	case <-ctx.Done():
	}
}

// connect waits until the driver is ready.
func (r *running) connect(ctx context.Context) error {
	const bound = 3 * time.Minute
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	var err error
	if r.conn, err = r.guest.Connect(csiSocket); err != nil {
		return err
	}
	err = testkit.Poll(bound, r.done, func() error {
		answer, err := csi.NewIdentityClient(r.conn).Probe(ctx, &csi.ProbeRequest{})
		if err == nil && answer.GetReady() != nil && !answer.GetReady().GetValue() {
			err = errors.New("not ready")
		}
		return err
	})
	if err != nil {
		err = fmt.Errorf("cleat csi exited or was not ready in time: %w", err)
	}
	return err
}

// Conn implements workload.Driver.
func (r *running) Conn() *grpc.ClientConn { return r.conn }

// DialMetrics implements workload.Driver.
func (r *running) DialMetrics(ctx context.Context) (net.Conn, error) {
	return r.guest.Dial(ctx, "unix", metrics)
}

// Done implements workload.Driver.
func (r *running) Done() <-chan struct{} { return r.done }

// Hit implements workload.Driver.
func (r *running) Hit() bool { return r.hit.Load() }

// Kill implements workload.Driver with a power loss.
func (r *running) Kill() error {
	r.cancel()
	<-r.done
	r.console = r.guest.Console()
	err := errors.Join(kernelErrors(r.console), r.machine.losePower())
	if r.conn != nil {
		_ = r.conn.Close()
	}
	return err
}

// Stop implements workload.Driver.
func (r *running) Stop() error {
	defer r.conn.Close()
	if err := r.process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	const bound = 3 * time.Minute
	select {
	case <-r.process.Done():
	case <-time.After(bound):
		return fmt.Errorf("cleat csi did not exit within %v of SIGTERM\n%s", bound, r.Log())
	}
	<-r.done
	return errors.Join(r.process.Err(), kernelErrors(r.guest.Console()))
}

// Log implements workload.Driver.
func (r *running) Log() string {
	if r.console == "" {
		return r.process.Log()
	}
	return r.process.Log() + "\nend of the console:\n" + end(r.console)
}

// kernelErrorPattern matches kernel messages about damaged file systems and kernel bugs.
var kernelErrorPattern = regexp.MustCompile(`(?i)EXT4-fs error|XFS.*corrupt|BTRFS (error|critical)|\bBUG:|\bOops\b|WARNING:`)

// kernelErrors returns an error if the console has such messages.
func kernelErrors(console string) error {
	if kernelErrorPattern.MatchString(console) {
		return fmt.Errorf("kernel errors on the console:\n%s", end(console))
	}
	return nil
}

// end returns the last lines of a text.
func end(text string) string {
	const most = 20
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

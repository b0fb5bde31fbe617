package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/wire"
)

// Guest is a running guest. Its methods are safe for concurrent use.
type Guest struct {
	spec    Spec
	dir     string // scratch
	files   files
	release string
	token   string

	listener net.Listener
	idle     chan *link    // agent connections that wait for a request
	ready    chan error    // result of the agent's first connection
	gone     chan struct{} // closed when QEMU has exited
	closed   chan struct{} // closed by Close
	work     sync.WaitGroup

	slots *Slots
	slot  *os.File

	process *os.Process
	stderr  lockedBuffer // of QEMU

	mu           sync.Mutex
	err          error   // of QEMU's exit
	reason       string  // why it was killed
	savedConsole *string // console, saved by Close

	monitor sync.Mutex
	closing sync.Once
	failure error // of Close
}

// start runs QEMU and the goroutines that serve it.
func (g *Guest) start(q image.QEMU) error {
	cmd := exec.Command(q.Program, arguments(g.spec, q, g.files)...)
	cmd.Dir = g.dir
	cmd.Stdout, cmd.Stderr = &g.stderr, &g.stderr
	if g.spec.Terminal {
		cmd.Stdin, cmd.Stdout = os.Stdin, os.Stdout
	}
	cmd.ExtraFiles = []*os.File{g.slot}                                                           // the lock is held until QEMU exits, even if the test is killed
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !g.spec.Terminal, Pdeathsig: syscall.SIGKILL} // only the terminal's process group can read from it
	started := make(chan error)
	g.work.Go(func() {
		// Pdeathsig fires when the thread that started QEMU ends, so this
		// goroutine keeps its thread until QEMU exits.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			g.end(cmd.Wait())
		}
	})
	if err := <-started; err != nil {
		return fmt.Errorf("start QEMU: %w", err)
	}
	g.process = cmd.Process
	g.work.Go(g.accept)
	g.work.Go(g.watch)
	return nil
}

// end records how QEMU exited.
func (g *Guest) end(err error) {
	g.mu.Lock()
	g.err = err
	g.mu.Unlock()
	close(g.gone)
	g.listener.Close()
}

// watch kills a guest that exceeds its Lifetime.
func (g *Guest) watch() {
	timer := time.NewTimer(g.spec.Lifetime)
	defer timer.Stop()
	select {
	case <-g.gone:
	case <-timer.C:
		g.kill(fmt.Sprintf("it ran longer than its Lifetime of %v", g.spec.Lifetime))
	}
}

// kill ends QEMU immediately.
func (g *Guest) kill(reason string) {
	g.mu.Lock()
	if g.reason == "" {
		g.reason = reason
	}
	g.mu.Unlock()
	if g.process != nil {
		_ = g.process.Kill() // it might have exited already
	}
}

// exitReason returns the reason of QEMU's exit.
func (g *Guest) exitReason() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.reason != "":
		return fmt.Errorf("the guest was killed: %s", g.reason)
	case g.err != nil:
		return fmt.Errorf("QEMU exited: %w", g.err)
	}
	return errors.New("the guest powered itself off")
}

// Done is closed when QEMU has exited.
func (g *Guest) Done() <-chan struct{} { return g.gone }

// Release is the guest's kernel release (uname -r).
func (g *Guest) Release() string { return g.release }

// LosePower simulates a power loss: every disk stops and loses its unflushed writes,
// then the guest is killed and closed.
func (g *Guest) LosePower() error {
	var failed []error
	for i, d := range g.spec.Disks {
		if err := d.LosePower(); err != nil {
			failed = append(failed, fmt.Errorf("power loss of disk %d: %w", i, err))
		}
	}
	g.kill("simulated power loss")
	<-g.gone
	return errors.Join(append(failed, g.Close())...)
}

// Shutdown stops processes, unmounts file systems and powers the guest off.
// When ctx ends first, the guest is killed.
func (g *Guest) Shutdown(ctx context.Context) error {
	l, done, err := g.ask(ctx, wire.Request{Op: wire.OpHalt})
	if err == nil {
		_, err = g.answer(ctx, l)
		done()
		l.Close()
	}
	if err != nil {
		return fmt.Errorf("shut guest %s down: %w", g.spec.Name, err)
	}
	select {
	case <-g.gone:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("shut guest %s down: %w%s", g.spec.Name, ctx.Err(), g.diagnostics()), g.Close())
	}
	g.mu.Lock()
	err = g.err
	g.mu.Unlock()
	return errors.Join(err, g.Close())
}

// Close kills QEMU and releases the guest's resources. The disks keep what QEMU
// has written to them.
func (g *Guest) Close() error {
	g.closing.Do(func() {
		close(g.closed)
		g.kill("the test has ended")
		if g.process != nil {
			<-g.gone
		}
		g.failure = g.listener.Close()
		if errors.Is(g.failure, net.ErrClosed) {
			g.failure = nil
		}
		g.work.Wait()
		g.dropIdle()
		if g.slot != nil {
			g.releaseSlot()
		}
		if g.process != nil {
			g.saveConsole()
		}
		g.failure = errors.Join(g.failure, os.RemoveAll(g.dir))
	})
	return g.failure
}

// releaseSlot returns a reserved slot to its test, and frees any other one.
func (g *Guest) releaseSlot() {
	if g.spec.Slots == nil {
		g.slot.Close()
		return
	}
	g.slots.release(g.slot)
}

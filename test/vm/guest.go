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

// Guest is a running guest. Its methods may be called from any goroutine.
type Guest struct {
	spec    Spec
	dir     string // scratch
	files   files
	release string
	token   string

	listener net.Listener
	idle     chan *link    // connections that wait for a request
	ready    chan error    // gets the first call's verdict
	gone     chan struct{} // QEMU has ended
	closed   chan struct{} // nobody asks any more
	work     sync.WaitGroup

	seats *Seats
	seat  *os.File

	process *os.Process
	stderr  lockedBuffer // of QEMU

	mu        sync.Mutex
	err       error   // how QEMU ended
	reason    string  // why it was killed
	lastWords *string // the console, once the guest is closed

	monitor sync.Mutex
	closing sync.Once
	failure error // of closing
}

// start runs QEMU and all that lasts as long as it.
func (g *Guest) start(q image.QEMU) error {
	cmd := exec.Command(q.Program, arguments(g.spec, q, g.files)...)
	cmd.Dir = g.dir
	cmd.Stdout, cmd.Stderr = &g.stderr, &g.stderr
	if g.spec.Terminal {
		cmd.Stdin, cmd.Stdout = os.Stdin, os.Stdout
	}
	cmd.ExtraFiles = []*os.File{g.seat}                                                           // taken until QEMU is gone, whatever becomes of the test
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: !g.spec.Terminal, Pdeathsig: syscall.SIGKILL} // only the terminal's group may read it
	started := make(chan error)
	g.work.Go(func() {
		// The kernel sends that signal when the thread that started QEMU ends;
		// a locked thread lasts as long as this function.
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

// end notes how QEMU ended.
func (g *Guest) end(err error) {
	g.mu.Lock()
	g.err = err
	g.mu.Unlock()
	close(g.gone)
	g.listener.Close()
}

// watch ends a guest that lives too long.
func (g *Guest) watch() {
	timer := time.NewTimer(g.spec.Lifetime)
	defer timer.Stop()
	select {
	case <-g.gone:
	case <-timer.C:
		g.kill(fmt.Sprintf("it had run for %v, which is its Spec's Lifetime", g.spec.Lifetime))
	}
}

// kill ends QEMU at once.
func (g *Guest) kill(reason string) {
	g.mu.Lock()
	if g.reason == "" {
		g.reason = reason
	}
	g.mu.Unlock()
	if g.process != nil {
		_ = g.process.Kill() // it may have ended by itself
	}
}

// verdict says how QEMU ended.
func (g *Guest) verdict() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case g.reason != "":
		return fmt.Errorf("the guest was ended: %s", g.reason)
	case g.err != nil:
		return fmt.Errorf("QEMU ended: %w", g.err)
	}
	return errors.New("the guest went down by itself")
}

// Done is closed when the guest's QEMU has ended.
func (g *Guest) Done() <-chan struct{} { return g.gone }

// Release is the guest's kernel, as uname -r says it.
func (g *Guest) Release() string { return g.release }

// Cut takes the guest's power away: every disk freezes and loses what it may
// lose, then the guest is no more.
func (g *Guest) Cut() error {
	var failed []error
	for i, d := range g.spec.Disks {
		if err := d.Cut(); err != nil {
			failed = append(failed, fmt.Errorf("cut disk %d: %w", i, err))
		}
	}
	g.kill("its power was cut")
	<-g.gone
	return errors.Join(append(failed, g.Close())...)
}

// Shutdown takes the guest down in order: processes end, file systems are
// unmounted. A guest that is not down when ctx ends is killed.
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
		return errors.Join(fmt.Errorf("shut guest %s down: %w%s", g.spec.Name, ctx.Err(), g.evidence()), g.Close())
	}
	g.mu.Lock()
	err = g.err
	g.mu.Unlock()
	return errors.Join(err, g.Close())
}

// Close ends the guest at once, as a kill of QEMU does, and gives back what it
// held. The disks keep what QEMU had handed to them.
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
		if g.seat != nil {
			g.giveSeatBack()
		}
		if g.process != nil {
			g.keepLastWords()
		}
		g.failure = errors.Join(g.failure, os.RemoveAll(g.dir))
	})
	return g.failure
}

// giveSeatBack lets another guest run: to the test that reserved the seat, or
// to whoever waits for one.
func (g *Guest) giveSeatBack() {
	if g.spec.Seats == nil {
		g.seat.Close()
		return
	}
	g.seats.give(g.seat)
}

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/retry"
)

// chapter is a part of the demo that can be run alone.
type chapter struct {
	name    string
	heading string // printed: what runs, and what of it is real
	against string // what stands in for real components; empty: nothing
	leftOut string // why this machine cannot run the chapter; empty: it can
	steps   []step
	// release frees what the chapter uses outside of the directory and its
	// processes; nil: nothing.
	release func(ctx context.Context) error
}

// step does one thing and checks it.
type step struct {
	name  string // identifier in JSON
	title string // for users
	claim string // what the step proves; empty: only prepares other steps
	ends  bool   // removes what --keep leaves; skipped with --keep
	// run returns a summary of what was observed. It fails by check, must or
	// want, which only the step's own goroutine can call.
	run func(ctx context.Context) (seen string)
}

// failure is the panic value of check, must and want.
type failure struct{ err error }

func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func want(ok bool, format string, args ...any) {
	if !ok {
		panic(failure{fmt.Errorf(format, args...)})
	}
}

// eventually retries try until it succeeds; the last error fails the step.
func eventually(ctx context.Context, try func() error) {
	check(retry.For(ctx, startTimeout, func() (bool, error) {
		err := try()
		return err != nil, err
	}))
}

const (
	stepTimeout    = 90 * time.Second // far longer than any step takes
	cleanupTimeout = 60 * time.Second // for the whole clean-up
	// exitNoticeDelay is the time within which the exit of a process is
	// noticed; a connection can break earlier.
	exitNoticeDelay = time.Second
)

var (
	errFailed      = errors.New("the demo failed")
	errInterrupted = errors.New("interrupted")
	errDied        = errors.New("ended unexpectedly")
)

// demo is the state that all chapters share.
type demo struct {
	config
	own       bool // the demo created the directory
	processes []*process
	fail      context.CancelCauseFunc // ends all steps, when a process died
	lines     *bufio.Scanner          // of standard input
}

// newDemo checks that this machine can run the demo, and creates its directory.
func newDemo(c config) (*demo, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the demo mounts file systems, attaches loop devices and creates network namespaces: run it as root (sudo)")
	}
	d := &demo{config: c, lines: bufio.NewScanner(c.in), fail: func(error) {}}
	if err := unix.Access(d.program("cleat"), unix.X_OK); err != nil {
		return nil, fmt.Errorf("%s: %w (make demo builds it)", d.program("cleat"), err)
	}
	return d, d.makeDir()
}

// makeDir creates the directory, or uses an empty one.
func (d *demo) makeDir() (err error) {
	if d.dir == "" {
		d.own = true
		if d.dir, err = os.MkdirTemp("/var/tmp", "cleat-demo-"); err != nil {
			return fmt.Errorf("%w; name a directory on another disk with --dir", err)
		}
	} else if err = os.Mkdir(d.dir, 0o700); err == nil {
		d.own = true
	} else if !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("--dir: %w", err)
	}
	if d.dir, err = realPath(d.dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	if len(entries) > 0 {
		return fmt.Errorf("--dir %s is not empty (it holds %q): name a new or an empty directory", d.dir, entries[0].Name())
	}
	return writeMarker(d.dir, d.own)
}

// realPath returns the path as the kernel lists it in mounts.
func realPath(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

func (d *demo) path(name ...string) string {
	return filepath.Join(append([]string{d.dir}, name...)...)
}

func (d *demo) program(name string) string { return filepath.Join(d.programs, name) }

// run runs the chapters up to the first step that fails, and cleans up.
func (d *demo) run(ctx context.Context) Report {
	started := time.Now()
	ctx, d.fail = context.WithCancelCause(ctx)
	defer d.fail(nil)
	r := Report{Held: true, Dir: d.dir, out: d.out}
	r.printf("A demo of cleat on this machine, in %s.", d.dir)
	var run []chapter
	for _, name := range chapterNames() {
		if !slices.Contains(d.chapters, name) {
			continue
		}
		c := d.newChapter(ctx, name)
		run = append(run, c)
		r.chapter(c)
		if c.leftOut != "" {
			continue
		}
		for _, s := range c.steps {
			if s.ends && d.keep {
				continue
			}
			d.step(ctx, &r, c, s)
		}
	}
	interrupted := r.Failure != nil && r.Failure.Interrupted
	if interrupted {
		r.printf("Cleaning up. A second interrupt stops the clean-up.")
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	for _, c := range run {
		if c.release != nil {
			r.addCleanupError(c.release(bounded))
		}
	}
	if d.keep {
		r.Kept, r.kept = true, d.kept()
	} else {
		r.addCleanupError(d.clean(bounded, r.Failure != nil && !interrupted))
	}
	r.Seconds = seconds(time.Since(started))
	return r
}

func (d *demo) newChapter(ctx context.Context, name string) chapter {
	switch name {
	case "volumes":
		return newVolumes(d)
	case "fence":
		return newFence(d)
	case "dpu":
		return newDPU(d)
	default:
		return newSRIOV(ctx, d)
	}
}

// step runs and reports one step, unless an earlier one failed.
func (d *demo) step(ctx context.Context, r *Report, c chapter, s step) {
	result := Result{Name: s.name, Title: s.title, Against: c.against, State: NotRun}
	if !r.Held {
		r.Steps = append(r.Steps, result)
		return
	}
	r.start(s)
	started := time.Now()
	seen, err := d.try(ctx, s)
	result.State, result.Seen, result.Seconds = Held, seen, seconds(time.Since(started))
	if err != nil {
		result.State, result.Error = Failed, err.Error()
		r.fail(s, err, d.path(logName))
	} else if s.claim != "" {
		r.claim(c, s)
	}
	r.end(result)
	if d.pause && err == nil {
		d.awaitLine(ctx)
	}
}

// try runs a step with a timeout. If a process died unexpectedly or the user
// interrupted the demo, that is the error returned.
func (d *demo) try(ctx context.Context, s step) (seen string, err error) {
	bounded, cancel := context.WithTimeoutCause(ctx, stepTimeout, fmt.Errorf("not done within %s", stepTimeout))
	defer cancel()
	if seen, err = recovered(bounded, s.run); err == nil {
		return seen, nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(exitNoticeDelay):
	}
	switch cause := context.Cause(bounded); {
	case errors.Is(cause, errDied):
		err = cause
	case ctx.Err() != nil:
		err = errInterrupted
	case cause != nil:
		err = fmt.Errorf("%w: %w", cause, err)
	}
	return "", err
}

// recovered converts a failure panic into an error.
func recovered(ctx context.Context, run func(context.Context) string) (seen string, err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.err
		default:
			panic(p)
		}
	}()
	check(ctx.Err())
	return run(ctx), nil
}

// awaitLine waits for a line on standard input or for ctx.
func (d *demo) awaitLine(ctx context.Context) {
	read := make(chan struct{})
	go func() {
		d.lines.Scan()
		close(read)
	}()
	select {
	case <-read:
	case <-ctx.Done():
	}
}

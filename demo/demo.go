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
	heading string // a line for users: what runs, and what of it is real
	against string // the double or process that it runs against; empty: this machine
	leftOut string // why it cannot run here; empty: it can
	steps   []step
	// release frees what the chapter holds outside of the directory and its
	// processes; nil: nothing.
	release func(ctx context.Context) error
}

// step does one thing and checks it.
type step struct {
	name  string // for programs
	title string // for users
	claim string // what the step proves; empty for one that only prepares others
	ends  bool   // it removes what --keep leaves
	// run returns what was seen. It fails as tests do: by check, must or want,
	// which only the step's own goroutine may call.
	run func(ctx context.Context) (seen string)
}

// failure is what check, must and want panic with.
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

// eventually repeats try until it succeeds. Its last error is the step's.
func eventually(ctx context.Context, try func() error) {
	check(retry.For(ctx, startBound, func() (bool, error) {
		err := try()
		return err != nil, err
	}))
}

const (
	stepBound  = 90 * time.Second // far longer than any step takes
	cleanBound = 60 * time.Second // of the whole clean-up
	// deathNoticed is long enough to find that a process has died, which may be
	// later than that its death broke a connection.
	deathNoticed = time.Second
)

var (
	errFailed      = errors.New("the demo failed")
	errInterrupted = errors.New("interrupted")
	errDied        = errors.New("ended unexpectedly")
)

// demo is what all chapters share.
type demo struct {
	config
	own       bool // the directory was made here
	processes []*process
	fail      context.CancelCauseFunc // ends all steps: a process has died
	lines     *bufio.Scanner          // of standard input
}

// newDemo checks that this machine can run it, and makes the directory.
func newDemo(c config) (*demo, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("the demo mounts file systems, attaches loop devices and makes network namespaces: run it as root (sudo)")
	}
	d := &demo{config: c, lines: bufio.NewScanner(c.in), fail: func(error) {}}
	if err := unix.Access(d.program("cleat"), unix.X_OK); err != nil {
		return nil, fmt.Errorf("%s: %w (make demo builds it)", d.program("cleat"), err)
	}
	return d, d.makeDir()
}

// makeDir makes the directory, or takes an empty one.
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

// realPath is a path as the kernel lists it in mounts.
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
	r.say("A demo of cleat on this machine, in %s.", d.dir)
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
		r.say("Cleaning up. A second interrupt ends it at once and leaves everything as it is.")
	}
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanBound)
	defer cancel()
	for _, c := range run {
		if c.release != nil {
			r.unclean(c.release(bounded))
		}
	}
	if d.keep {
		r.Kept, r.kept = true, d.kept()
	} else {
		r.unclean(d.clean(bounded, r.Failure != nil && !interrupted))
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

// step runs one step unless one before it failed, and reports it.
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

// try runs a step within its bound. When a process died unexpectedly, or the user
// interrupts, that is the error, whatever the step itself makes of it.
func (d *demo) try(ctx context.Context, s step) (seen string, err error) {
	bounded, cancel := context.WithTimeoutCause(ctx, stepBound, fmt.Errorf("not done within %s", stepBound))
	defer cancel()
	if seen, err = recovered(bounded, s.run); err == nil {
		return seen, nil
	}
	select {
	case <-ctx.Done():
	case <-time.After(deathNoticed):
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

// recovered turns a failure into an error.
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

// awaitLine waits for a line on standard input, or the end of the demo.
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

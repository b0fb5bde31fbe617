// Package demo walks volumes through their whole life on this machine: it
// starts the driver on a pool of its own, does to real data what an
// orchestrator would do, looks after each step whether what was promised is
// so, and takes everything away again.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// Config says how to walk.
type Config struct {
	// Program is the path of the cleat whose "csi" command is started.
	Program string
	// Command is how a person calls it, for what Keep tells to type.
	Command string
	// Dir is where everything lives, a new or empty directory; empty is a new
	// one below /var/tmp.
	Dir string
	// Size of the pool in bytes, at least MinSize; zero is DefaultSize.
	Size int64
	// Keep leaves the driver running and the volumes attached. Remove takes
	// them away later.
	Keep bool
	// DPU and SRIOV are about the chapters on DPU devices and on SR-IOV functions.
	DPU   DPU
	SRIOV SRIOV
	// Progress gets a line for each step; nil is nobody. On a Terminal the
	// step at hand is shown while it runs.
	Progress io.Writer
	Terminal bool
	// After, when set, is called after each step that held, and its error
	// fails the step. Tests use it to spoil what the walk relies on.
	After func(ctx context.Context, step, dir string) error
}

const (
	gib = 1 << 30
	mib = 1 << 20

	// DefaultSize of the pool, in bytes.
	DefaultSize = 4 * gib
	// MinSize is the smallest pool that holds all that the walk makes.
	MinSize = 2 * gib

	// stepBound is far longer than any step takes: what is not done by then
	// hangs.
	stepBound = 90 * time.Second
	// deathNoticed is long enough for a process that has died to be seen to.
	deathNoticed = time.Second
	// cleanBound is how long the clean-up may take in all.
	cleanBound = 60 * time.Second
)

// ErrFailed is wrapped by the errors of walks that began and on which
// something did not hold.
var ErrFailed = errors.New("the demo failed")

// leftOut says which chapters are left out and why, a line for each.
func (c Config) leftOut() string {
	out := slices.DeleteFunc([]string{c.DPU.leftOut(), c.SRIOV.leftOut()}, func(line string) bool { return line == "" })
	return strings.Join(out, "\n")
}

// Run checks that this machine can do it, walks all steps, and cleans up, also
// after a failure or when ctx ends. The error is nil only when every step held
// and nothing is left behind; the report tells all in any case.
func Run(ctx context.Context, config Config) (Report, error) {
	if config.Size == 0 {
		config.Size = DefaultSize
	}
	if config.Progress == nil {
		config.Progress = io.Discard
	}
	if err := checkMachine(); err != nil {
		return Report{}, err
	}
	w, err := newWalk(config)
	if err != nil {
		return Report{}, err
	}
	all := steps(config.DPU, config.SRIOV)
	show := progress{w: config.Progress, terminal: config.Terminal, width: titleWidth(all)}
	show.begin(w)
	started := time.Now()
	report := w.walk(ctx, all, show)
	report.Seconds = seconds(time.Since(started))
	return report, report.err()
}

// walk runs the steps up to the first that does not hold, and the clean-up.
func (w *walk) walk(ctx context.Context, all []step, show progress) Report {
	report := Report{Dir: w.dir, Held: true, LeftOut: w.config.leftOut()}
	for i, s := range all {
		if w.config.Keep && s.ends {
			break
		}
		if !report.Held {
			report.Steps = append(report.Steps, Result{Name: s.name, Title: s.title, Against: s.against, State: NotRun})
			continue
		}
		show.chapter(s.chapter)
		show.start(i+1, s.title)
		result, err := w.step(ctx, s)
		show.end(i+1, result)
		report.Steps = append(report.Steps, result)
		if err != nil {
			report.fail(s, err, w.log)
		} else if s.claim != "" {
			report.Proved = append(report.Proved, s.proves())
		}
	}
	report.Driver = w.about
	if w.config.Keep && w.host != nil {
		report.Kept = w.kept()
		return report
	}
	if ctx.Err() != nil {
		show.say("Cleaning up. Interrupted once more, it ends at once and leaves all as it is.")
	}
	report.Left = w.clean(context.WithoutCancel(ctx), report.Failure != nil && report.Failure.Log != "")
	report.Held = report.Held && len(report.Left) == 0
	return report
}

// step runs one step within its bound. When driver or host die unasked, that is
// the step's error, whatever the step itself makes of it.
func (w *walk) step(ctx context.Context, s step) (Result, error) {
	bounded, cancel := context.WithTimeoutCause(ctx, stepBound, fmt.Errorf("not done within %s", stepBound))
	defer cancel()
	running, end := context.WithCancelCause(bounded)
	defer end(nil)
	watch := context.CancelCauseFunc(func(err error) {
		if err != nil {
			end(err)
		}
	})
	w.died.Store(&watch)
	watch(w.death()) // after the last step
	started := time.Now()
	proved, err := s.run(running, w)
	if err == nil && w.config.After != nil {
		err = w.config.After(running, s.name, w.dir)
	}
	if err != nil {
		// A death may be noticed later than that it broke a connection.
		select {
		case <-running.Done():
		case <-time.After(deathNoticed):
		}
	}
	switch cause := context.Cause(running); {
	case err == nil:
	case ctx.Err() != nil:
		err = errInterrupted
	case errors.Is(cause, errDied):
		err = cause
	case cause != nil:
		err = fmt.Errorf("%w: %w", cause, err)
	}
	result := Result{Name: s.name, Title: s.title, Against: s.against, State: Held, Seconds: seconds(time.Since(started)), Proved: proved}
	if err != nil {
		result.State, result.Proved, result.Error = Failed, "", err.Error()
	}
	return result, err
}

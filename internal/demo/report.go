package demo

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// States of a Result.
const (
	Held   = "held"
	Failed = "failed"
	NotRun = "not run"
)

// Result is how one step went.
type Result struct {
	Name    string  `json:"name"`
	Title   string  `json:"title"`
	Against string  `json:"against,omitempty"` // what it was walked against, where that is not this machine
	State   string  `json:"state"`
	Seconds float64 `json:"seconds"`
	Proved  string  `json:"proved,omitempty"` // what was seen, with figures
	Error   string  `json:"error,omitempty"`
}

// Failure is the step that did not hold.
type Failure struct {
	Step        string   `json:"step"`
	Title       string   `json:"title"`
	Error       string   `json:"error"`
	Interrupted bool     `json:"interrupted,omitempty"` // from outside
	Log         string   `json:"log,omitempty"`         // of driver and host
	Lines       []string `json:"logLines,omitempty"`    // its last ones
}

// Kept tells how to reach what Config.Keep left.
type Kept struct {
	Driver    string   `json:"driver"`   // its name
	Host      string   `json:"host"`     // endpoint of the host of plugins, which knows it
	Endpoint  string   `json:"endpoint"` // of the driver itself
	StateDir  string   `json:"stateDir"` // of the client
	PID       int      `json:"pid"`      // of the driver; 0: it has ended
	HostPID   int      `json:"hostPID"`  // of the host, likewise
	Flags     []string `json:"flags"`    // with which the driver runs
	HostFlags []string `json:"hostFlags"`
	Command   string   `json:"-"` // how a person calls cleat
}

// Report is how a walk went.
type Report struct {
	// Held: every step held, and nothing is left that should not be.
	Held    bool     `json:"held"`
	Driver  string   `json:"driver,omitempty"` // name and version
	Dir     string   `json:"dir"`
	Seconds float64  `json:"seconds"` // in all, with the clean-up
	Steps   []Result `json:"steps"`
	Proved  []string `json:"proved"`            // what all of it shows
	LeftOut string   `json:"leftOut,omitempty"` // a chapter that was not walked, and why
	Failure *Failure `json:"failure,omitempty"`
	Left    []string `json:"left,omitempty"` // what could not be cleaned up
	Kept    *Kept    `json:"kept,omitempty"`
}

// logLines is how many lines of the log a failure shows.
const logLines = 12

func (r *Report) fail(s step, err error, log string) {
	r.Held = false
	r.Failure = &Failure{Step: s.name, Title: s.title, Error: err.Error(), Interrupted: errors.Is(err, errInterrupted)}
	if lines := lastLines(log, logLines); len(lines) > 0 && !r.Failure.Interrupted {
		r.Failure.Log, r.Failure.Lines = log, lines
	}
}

// err is nil when all held.
func (r Report) err() error {
	switch {
	case r.Failure != nil && r.Failure.Interrupted:
		return fmt.Errorf("%w: it was interrupted", ErrFailed)
	case r.Failure != nil:
		return fmt.Errorf("%w at step %q: %s", ErrFailed, r.Failure.Step, r.Failure.Error)
	case len(r.Left) > 0:
		return fmt.Errorf("%w: not all could be cleaned up: %s", ErrFailed, strings.Join(r.Left, "; "))
	case !r.Held:
		return ErrFailed
	}
	return nil
}

// Summary writes for people what the steps' own lines do not say.
func (r Report) Summary(w io.Writer) error {
	var b strings.Builder
	held := 0
	for _, s := range r.Steps {
		if s.State == Held {
			held++
		}
	}
	b.WriteString("\n")
	if r.Failure == nil {
		fmt.Fprintf(&b, "All %d steps held, in %s. Proved on this machine:\n", held, short(span(r.Seconds)))
		for _, p := range r.Proved {
			fmt.Fprintf(&b, "  - %s\n", p)
		}
		if r.LeftOut != "" {
			fmt.Fprintf(&b, "%s\n", r.LeftOut)
		}
	} else {
		fmt.Fprintf(&b, "%d of %d steps held, in %s.\n", held, len(r.Steps), short(span(r.Seconds)))
		r.Failure.write(&b)
	}
	switch {
	case r.Kept != nil:
		b.WriteString("\n" + r.Kept.words(r.Dir))
	case len(r.Left) > 0:
		fmt.Fprintf(&b, "\nNot all could be cleaned up:\n  - %s\nEnd what holds it, then unmount it and remove %s.\n", strings.Join(r.Left, "\n  - "), r.Dir)
	case r.Failure != nil && r.Failure.Log != "":
		fmt.Fprintf(&b, "\nAll but this log was cleaned up: no mount, no loop device, no other file is left.\n")
	case r.Failure != nil:
		fmt.Fprintf(&b, "All was cleaned up: no mount, no loop device, no file is left.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (f Failure) write(b *strings.Builder) {
	if f.Interrupted {
		fmt.Fprintf(b, "\nInterrupted at step %q.\n", f.Title)
		return
	}
	fmt.Fprintf(b, "\nStep %q did not hold:\n  %s\n", f.Title, strings.ReplaceAll(f.Error, "\n", "\n  "))
	if f.Log == "" {
		return
	}
	fmt.Fprintf(b, "\nThe log of driver and host is %s. Its last lines:\n", f.Log)
	for _, line := range f.Lines {
		fmt.Fprintf(b, "  %s\n", line)
	}
}

var errInterrupted = errors.New("interrupted")

func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*1e4) / 1e4 }

func span(seconds float64) time.Duration { return time.Duration(seconds * float64(time.Second)) }

// short writes a time in three digits.
func short(d time.Duration) string {
	switch {
	case d >= 100*time.Second:
		return fmt.Sprintf("%.0f s", d.Seconds())
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
	}
	return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
}

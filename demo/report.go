package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"strings"
	"time"

	"github.com/cleatproject/cleat/internal/cli"
)

// States of a Result.
const (
	Held   = "held"
	Failed = "failed"
	NotRun = "not run"
)

// Result is the result of a step.
type Result struct {
	Name    string  `json:"name"`
	Title   string  `json:"title"`
	Against string  `json:"against,omitempty"` // stand-in for real components
	State   string  `json:"state"`
	Seconds float64 `json:"seconds"`
	Seen    string  `json:"proved,omitempty"` // with figures
	Error   string  `json:"error,omitempty"`
}

// Failure is the failed step.
type Failure struct {
	Step        string   `json:"step"`
	Title       string   `json:"title"`
	Error       string   `json:"error"`
	Interrupted bool     `json:"interrupted,omitempty"` // by the user
	Log         string   `json:"log,omitempty"`
	Lines       []string `json:"logLines,omitempty"` // the last lines of the log
}

// Report is the result of a demo.
type Report struct {
	Held    bool     `json:"held"` // every step passed, and nothing is left
	Dir     string   `json:"dir"`
	Seconds float64  `json:"seconds"`
	Steps   []Result `json:"steps"`
	Proved  []string `json:"proved"`
	LeftOut []string `json:"leftOut,omitempty"` // chapters, and why
	Failure *Failure `json:"failure,omitempty"`
	Left    []string `json:"left,omitempty"` // errors of the clean-up
	Kept    bool     `json:"kept,omitempty"` // host and driver still run

	out  io.Writer // of progress
	kept string    // commands to try after --keep
}

// printf prints a line. Errors are ignored: the demo continues without a
// reader.
func (r *Report) printf(format string, args ...any) { _, _ = fmt.Fprintf(r.out, format+"\n", args...) }

// chapter prints the heading of a chapter, or why it is left out.
func (r *Report) chapter(c chapter) {
	if c.leftOut != "" {
		r.LeftOut = append(r.LeftOut, fmt.Sprintf("Chapter %s is left out: %s.", c.name, c.leftOut))
		r.printf("\n%s", r.LeftOut[len(r.LeftOut)-1])
	} else if r.Held {
		r.printf("\n%s\n", c.heading)
	}
}

// start prints the step that runs; end completes its line.
func (r *Report) start(s step) {
	_, _ = fmt.Fprintf(r.out, "%3d  %-28s ", len(r.Steps)+1, s.title)
}

func (r *Report) end(result Result) {
	detail := result.Seen
	switch {
	case result.Error == errInterrupted.Error():
		detail = result.Error
	case result.State == Failed:
		detail = "FAILED, see below"
	}
	r.printf("%7s  %s", short(result.Seconds), detail)
	r.Steps = append(r.Steps, result)
}

func (r *Report) claim(c chapter, s step) {
	if c.against == "" {
		r.Proved = append(r.Proved, s.claim)
	} else {
		r.Proved = append(r.Proved, "against "+c.against+": "+s.claim)
	}
}

func (r *Report) fail(s step, err error, log string) {
	r.Held = false
	r.Failure = &Failure{Step: s.name, Title: s.title, Error: err.Error(), Interrupted: errors.Is(err, errInterrupted)}
	if lines := lastLines(log, 12); len(lines) > 0 && !r.Failure.Interrupted {
		r.Failure.Log, r.Failure.Lines = log, lines
	}
}

// addCleanupError records an error of the clean-up.
func (r *Report) addCleanupError(err error) {
	if err != nil {
		r.Held, r.Left = false, append(r.Left, err.Error())
	}
}

// err returns errFailed unless every step passed.
func (r Report) err() error {
	if r.Held {
		return nil
	}
	return errFailed
}

// print writes the summary.
func (r Report) print(w io.Writer) error {
	var b strings.Builder
	held := 0
	for _, s := range r.Steps {
		if s.State == Held {
			held++
		}
	}
	if r.Failure == nil {
		fmt.Fprintf(&b, "\nAll %d steps passed, in %s. Proved on this machine:\n", held, short(r.Seconds))
		for _, p := range r.Proved {
			fmt.Fprintf(&b, "  - %s\n", p)
		}
		for _, line := range r.LeftOut {
			fmt.Fprintln(&b, line)
		}
	} else {
		fmt.Fprintf(&b, "\n%d of %d steps passed, in %s.\n", held, len(r.Steps), short(r.Seconds))
		r.Failure.print(&b)
	}
	switch {
	case r.Kept:
		b.WriteString(r.kept)
	case len(r.Left) > 0:
		fmt.Fprintf(&b, "\nThe clean-up failed:\n  - %s\nStop the processes that use these objects, then run: cleat-demo --remove %s\n", strings.Join(r.Left, "\n  - "), r.Dir)
	case r.Failure != nil && r.Failure.Log != "":
		fmt.Fprintf(&b, "\nEverything but this log was cleaned up: no mount, no loop device, no other file is left.\n")
	case r.Failure != nil:
		fmt.Fprintf(&b, "Everything was cleaned up: no mount, no loop device, no file is left.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (f Failure) print(b *strings.Builder) {
	if f.Interrupted {
		fmt.Fprintf(b, "\nInterrupted at step %q.\n", f.Title)
		return
	}
	fmt.Fprintf(b, "\nStep %q failed:\n  %s\n", f.Title, strings.ReplaceAll(f.Error, "\n", "\n  "))
	if f.Log != "" {
		fmt.Fprintf(b, "\nThe log of all processes is %s. Its last lines:\n  %s\n", f.Log, strings.Join(f.Lines, "\n  "))
	}
}

// lastLines returns up to n lines from the end of a text file, oldest first.
func lastLines(path string, n int) []string {
	text, err := os.ReadFile(path)
	if err != nil || len(text) == 0 {
		return nil
	}
	lines := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
	return lines[max(0, len(lines)-n):]
}

func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*1e4) / 1e4 }

func since(t time.Time) string { return short(time.Since(t).Seconds()) }

// short formats seconds with about three digits.
func short(s float64) string {
	switch {
	case s >= 10:
		return fmt.Sprintf("%.1f s", s)
	case s >= 1:
		return fmt.Sprintf("%.2f s", s)
	case s >= 0.01:
		return fmt.Sprintf("%.0f ms", s*1e3)
	}
	return fmt.Sprintf("%.1f ms", s*1e3)
}

func human(n int64) string { return cli.HumanBytes(n) }

package demo

import (
	"fmt"
	"io"

	"github.com/cleatproject/cleat/internal/cli"
)

// progress shows a line for each step. That nobody may read it any more is no
// reason to stop half-way, so errors of writing are not looked at.
type progress struct {
	w        io.Writer
	terminal bool
	width    int // of the longest title
}

func titleWidth(all []step) (width int) {
	for _, s := range all {
		width = max(width, len(s.title))
	}
	return width
}

func (p progress) begin(w *walk) {
	_, _ = fmt.Fprintf(p.w, "The life of a volume, with real data, in %s (a pool of %s).\n", w.dir, cli.HumanBytes(w.config.Size))
	if out := w.config.leftOut(); out != "" {
		p.say(out)
	}
	p.say("")
}

// chapter shows what begins, if something does.
func (p progress) chapter(line string) {
	if line != "" {
		p.say("\n" + line + "\n")
	}
}

// start shows the step at hand where its line can be replaced later.
func (p progress) start(n int, title string) {
	if p.terminal {
		_, _ = fmt.Fprintf(p.w, "%3d  %s ...", n, title)
	}
}

// end shows how a step went.
func (p progress) end(n int, r Result) {
	if p.terminal {
		_, _ = io.WriteString(p.w, "\r\x1b[K")
	}
	words := r.Proved
	switch {
	case r.Error == errInterrupted.Error():
		words = r.Error
	case r.State == Failed:
		words = "FAILED, see below"
	}
	_, _ = fmt.Fprintf(p.w, "%3d  %-*s  %7s  %s\n", n, p.width, r.Title, short(span(r.Seconds)), words)
}

func (p progress) say(line string) { _, _ = fmt.Fprintln(p.w, line) }

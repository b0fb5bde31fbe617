package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/cli"
)

// progress shows on a terminal what a command waits for, and for how long.
// Elsewhere only notices are written. Write errors are ignored: a lost terminal
// is no reason to stop.
type progress struct {
	out   io.Writer
	doing string
	begun time.Time
	stop  func()

	mu    sync.Mutex
	drawn bool
}

// patience is how long a command shows nothing: most end before.
const patience = 600 * time.Millisecond

func newProgress(out io.Writer, doing string) *progress {
	p := &progress{out: out, doing: doing, begun: time.Now(), stop: func() {}}
	if doing != "" && cli.IsTerminal(out) {
		quit, ended := make(chan struct{}), make(chan struct{})
		go p.tick(quit, ended)
		p.stop = sync.OnceFunc(func() { close(quit); <-ended })
	}
	return p
}

func (p *progress) tick(quit, ended chan struct{}) {
	defer close(ended)
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-quit:
			return
		case <-ticker.C:
			p.draw()
		}
	}
}

func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if past := time.Since(p.begun); past > patience {
		_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s … %.1f s", p.doing, past.Seconds())
		p.drawn = true
	}
}

// notice writes a line that stays.
func (p *progress) notice(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
	_, _ = fmt.Fprintln(p.out, "cleat:", line)
}

func (p *progress) erase() {
	if p.drawn {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
	}
	p.drawn = false
}

// end removes the progress line. It can be called twice.
func (p *progress) end() {
	p.stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.erase()
}

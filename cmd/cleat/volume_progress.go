package main

import (
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/cli"
)

// progress keeps one line on a terminal that says what is going on and for how
// long. Elsewhere only notices are written.
type progress struct {
	out    io.Writer
	doing  string
	live   bool
	mu     sync.Mutex
	drawn  bool
	begun  time.Time
	quit   chan struct{}
	ended  sync.WaitGroup
	finish sync.Once
}

// patience is how long nothing is said: most work is over before.
const patience = 600 * time.Millisecond

func newProgress(out io.Writer, doing string) *progress {
	p := &progress{out: out, doing: doing, live: cli.IsTerminal(out), begun: time.Now(), quit: make(chan struct{})}
	if p.live {
		p.ended.Go(p.tick)
	}
	return p
}

func (p *progress) tick() {
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-p.quit:
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
		_, _ = fmt.Fprintf(p.out, "\r\x1b[K%s … %.1f s", p.doing, past.Seconds()) // a terminal that is gone hears nothing
		p.drawn = true
	}
}

// notice writes a line that stays.
func (p *progress) notice(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clear()
	_, _ = fmt.Fprintln(p.out, "cleat:", line)
}

func (p *progress) clear() {
	if p.drawn {
		_, _ = fmt.Fprint(p.out, "\r\x1b[K")
		p.drawn = false
	}
}

// end takes the line away; it may be called twice.
func (p *progress) end() {
	p.finish.Do(func() {
		close(p.quit)
		p.ended.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		p.clear()
	})
}

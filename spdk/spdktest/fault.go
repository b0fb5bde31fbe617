package spdktest

import (
	"encoding/json"
	"slices"
	"time"
)

// Action is what a fault does with a connection or a process.
type Action int

const (
	// Answer does nothing unusual.
	Answer Action = iota
	// Drop breaks the connection.
	Drop
	// Silence never answers this request; the connection lives.
	Silence
	// Kill ends the process.
	Kill
	// Restart ends the process and starts it again.
	Restart
)

// Fault is ordered for requests to come. It waits, then fails the request or
// does something instead of it, or else carries it out, holds the answer, and
// does something instead of answering.
type Fault struct {
	Method string // empty: every method
	Name   string // of the parameter name; empty: any
	Skip   int    // requests that pass before the first that is hit
	Times  int    // requests that are hit; 0: all until Clear

	Wait    time.Duration // before it is carried out
	Error   *Error        // answered instead of carrying it out
	Instead Action        // of carrying it out
	Hold    time.Duration // between having carried it out and the answer
	Then    Action        // instead of the answer
}

type ordered struct {
	Fault
	hit int
}

// Call is a request that the process got.
type Call struct {
	Method string
	Params json.RawMessage
}

// The calls that are kept for Calls.
const maxCalls = 1 << 16

// Order adds a fault. The first that fits a request counts for it. Faults
// outlive restarts.
func (p *Process) Order(f Fault) {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.faults = append(p.faults, &ordered{Fault: f})
}

// Clear forgets all faults.
func (p *Process) Clear() {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.faults = nil
}

// Calls returns what the process was asked since its first start or the last
// Forget, the newest last.
func (p *Process) Calls() []Call {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	return slices.Clone(p.calls)
}

// Forget empties what Calls returns.
func (p *Process) Forget() {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.calls = nil
}

func (p *Process) note(r request) {
	if len(p.calls) == maxCalls {
		p.calls = slices.Delete(p.calls, 0, maxCalls/2)
	}
	p.calls = append(p.calls, Call{r.method, r.params})
}

func (p *Process) fault(r request) Fault {
	var named struct {
		Name string `json:"name"`
	}
	// What is no object has no name.
	_ = json.Unmarshal(r.params, &named)
	for _, f := range p.faults {
		if f.Method != "" && f.Method != r.method || f.Name != "" && f.Name != named.Name {
			continue
		}
		if f.Times > 0 && f.hit >= f.Skip+f.Times {
			continue
		}
		f.hit++
		if f.hit > f.Skip {
			return f.Fault
		}
	}
	return Fault{}
}

// act is done with the network's lock held.
func (p *Process) act(l *life, c *connection, a Action) {
	switch a {
	case Answer, Silence:
	case Drop:
		c.Close()
	case Kill, Restart:
		// Killing waits for the goroutine that runs this.
		p.acting.Go(func() {
			p.turn.Lock()
			defer p.turn.Unlock()
			if p.life != l {
				return
			}
			p.kill()
			if a == Restart && !p.closed {
				p.failed = p.start()
			}
		})
	}
}

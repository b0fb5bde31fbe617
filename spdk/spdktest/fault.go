package spdktest

import (
	"encoding/json"
	"maps"
	"slices"
	"time"
)

// Action is the effect of a fault.
type Action int

const (
	// Answer responds normally.
	Answer Action = iota
	// Drop closes the connection.
	Drop
	// Silence never responds; the connection stays open.
	Silence
	// Kill kills the process.
	Kill
	// Restart restarts the process.
	Restart
)

// Fault is injected into future requests. It delays a request, then fails it or
// acts instead of executing it; or executes it, delays the response, and acts
// instead of sending it.
type Fault struct {
	Method string // empty: every method
	Name   string // of the parameter name; empty: any
	Skip   int    // matching requests to skip
	Times  int    // 0: all until Clear

	Wait    time.Duration // before the execution
	Error   *Error        // instead of the execution
	Instead Action        // instead of the execution
	Hold    time.Duration // before the response
	Then    Action        // instead of the response
}

type pendingFault struct {
	Fault
	hit int
}

// Call is a request that the process received.
type Call struct {
	Method string
	Params json.RawMessage
}

const maxCalls = 1 << 16

// Inject injects a fault, also over restarts. The first matching one applies.
func (p *Process) Inject(f Fault) {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.faults = append(p.faults, &pendingFault{Fault: f})
}

// Clear removes all faults.
func (p *Process) Clear() {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.faults = nil
}

// Calls returns the last requests since the start or the last Forget, oldest first.
func (p *Process) Calls() []Call {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	return slices.Clone(p.calls)
}

// Counts returns how many requests of each method there were since the start or
// the last Forget.
func (p *Process) Counts() map[string]int {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	return maps.Clone(p.counts)
}

// Forget clears the results of Calls and Counts.
func (p *Process) Forget() {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.calls, p.counts = nil, nil
}

func (p *Process) note(r request) {
	if len(p.calls) == maxCalls {
		p.calls = slices.Delete(p.calls, 0, maxCalls/2)
	}
	p.calls = append(p.calls, Call{r.method, r.params})
	if p.counts == nil {
		p.counts = map[string]int{}
	}
	p.counts[r.method]++
}

func (p *Process) fault(r request) Fault {
	var named struct {
		Name string `json:"name"`
	}
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

// act is called with the network's lock held.
func (p *Process) act(l *life, c *connection, a Action) {
	switch a {
	case Answer, Silence:
	case Drop:
		shut(c.Conn)
	case Kill, Restart:
		// kill waits for the goroutine that runs this function.
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

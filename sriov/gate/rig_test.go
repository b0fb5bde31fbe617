package gate

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// recorder is a Driver that records what it is asked for.
type recorder struct{ asked []string }

func (d *recorder) Scan(uint64)                      {}
func (d *recorder) Register(string)                  { d.asked = append(d.asked, "register") }
func (d *recorder) Confirm(string, uint64, []string) { d.asked = append(d.asked, "confirm") }
func (d *recorder) Stop(string)                      { d.asked = append(d.asked, "stop") }

// rig is a resource of a gate.
type rig struct {
	*resource
	gate    *Gate
	driver  *recorder
	streams []*Stream
	calls   map[int]*Call
}

// event returns the answer to a call.
type event func(r *rig, now time.Time) string

func newRig() *rig {
	d := &recorder{}
	r := &rig{driver: d, gate: New(Config{Controlled: true}, d), calls: map[int]*Call{}}
	r.gate.Configure(noon, "h", []string{"a"})
	r.resource = r.gate.resources["a"]
	return r
}

// at handles events at a time in milliseconds after noon, and returns the answers,
// the new list, new deadlines and what the driver is asked for.
func (r *rig) at(ms int, events ...event) string {
	var out []string
	for _, e := range events {
		timers, list := maps.Clone(r.timers), r.seq()
		r.driver.asked = nil
		if answer := e(r, noon.Add(time.Duration(ms)*time.Millisecond)); answer != "" {
			out = append(out, answer)
		}
		if now := r.seq(); now != list && now != "0 0" {
			out = append(out, "send "+listed(r.stream.List))
		}
		for name, at := range r.timers {
			if !timers[name].Equal(at) {
				out = append(out, fmt.Sprintf("arm %s %d", name, at.Sub(noon).Milliseconds()))
			}
		}
		out = append(out, r.driver.asked...)
	}
	return strings.Join(out, ", ")
}

func (r *rig) seq() string {
	if r.stream == nil || r.stream.Seq == 0 {
		return "0 0"
	}
	return fmt.Sprint(len(r.streams), r.stream.Seq)
}

func listed(devices []Device) string {
	var ids []string
	for _, d := range devices {
		if d.Healthy {
			ids = append(ids, d.ID)
		} else {
			ids = append(ids, "-"+d.ID)
		}
	}
	return fmt.Sprint(ids)
}

func of(f func(*resource)) event {
	return func(r *rig, now time.Time) string {
		r.gate.on(now, "a", f)
		return ""
	}
}

var (
	opens           = of((*resource).open)
	closes          = of((*resource).withdraw)
	shutsDown       = of((*resource).shutdown)
	halts           = of((*resource).stop)
	tick      event = func(r *rig, now time.Time) string { r.gate.Tick(now); return "" }

	kubeletStarted event = func(r *rig, now time.Time) string { r.gate.KubeletStarted(now); return "" }
	// A second stream is the first event after it.
	listens event = func(r *rig, now time.Time) string {
		if s := r.gate.Listen(now, "a"); s != nil {
			r.streams = append(r.streams, s)
		}
		return ""
	}
	// An answer to the query before the last one.
	confirmedEarlier event = func(r *rig, now time.Time) string {
		r.gate.Confirmed(now, "a", r.queries-1, Answer{Known: true})
		return ""
	}
)

func restricts(c Closed) event { return of(func(r *resource) { r.restrict(c) }) }

func snapshot(devices ...Device) event { return of(func(r *resource) { r.setDevices(devices) }) }

func registered(err error) event {
	return func(r *rig, now time.Time) string { r.gate.Registered(now, "a", err); return "" }
}

func sent(seq uint64) event {
	return func(r *rig, now time.Time) string { r.gate.Sent(now, "a", r.streams[0], seq); return "" }
}

func hangup(stream int) event {
	return func(r *rig, now time.Time) string { r.gate.Hangup(now, "a", r.streams[stream-1]); return "" }
}

func confirmed(known bool, offered int, inUse ...Held) event {
	return func(r *rig, now time.Time) string {
		r.gate.Confirmed(now, "a", r.queries, Answer{Known: known, Offered: offered, InUse: inUse})
		return ""
	}
}

func unanswered(why string) event {
	return func(r *rig, now time.Time) string {
		r.gate.Confirmed(now, "a", r.queries, Answer{Err: errors.New(why)})
		return ""
	}
}

func allocates(call int, devices ...string) event {
	return func(r *rig, now time.Time) string {
		c, err := r.gate.Begin(now, "a", devices)
		if err != nil {
			return "refuse: " + err.(*End).Reason
		}
		r.calls[call] = c
		return "admit"
	}
}

func checks(call int) event {
	return func(r *rig, now time.Time) string {
		if err := r.gate.Check(now, "a", r.calls[call]); err != nil {
			return "refuse: " + err.(*End).Reason
		}
		return "approve"
	}
}

func ends(call int) event {
	return func(r *rig, now time.Time) string { r.gate.End(now, "a", r.calls[call]); return "" }
}

// same compares the parts in any order: none depends on another.
func same(a, b string) bool {
	x, y := strings.Split(a, ", "), strings.Split(b, ", ")
	slices.Sort(x)
	slices.Sort(y)
	return slices.Equal(x, y)
}

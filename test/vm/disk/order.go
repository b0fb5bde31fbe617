package disk

import (
	"fmt"

	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// Event is a kind of request that a trigger counts.
type Event int

// Write includes zeroes.
const (
	Write Event = iota
	Flush
	Discard
)

func eventOf(c nbd.Command) (Event, bool) {
	switch c {
	case nbd.Write, nbd.WriteZeroes:
		return Write, true
	case nbd.Flush:
		return Flush, true
	case nbd.Trim:
		return Discard, true
	}
	return 0, false
}

func (e Event) String() string {
	switch e {
	case Write:
		return "write"
	case Flush:
		return "flush"
	case Discard:
		return "discard"
	}
	return fmt.Sprintf("event %d", int(e))
}

// Moment is the phase of a request at which the power is lost.
type Moment int

const (
	// OnArrival: the request has not been carried out.
	OnArrival Moment = iota
	// BeforeAnswer: it has been carried out, but is not answered.
	BeforeAnswer
	// AfterAnswer: it has been answered; no later request is accepted.
	AfterAnswer
)

func (m Moment) String() string {
	switch m {
	case OnArrival:
		return "on arrival"
	case BeforeAnswer:
		return "before the answer"
	case AfterAnswer:
		return "after the answer"
	}
	return fmt.Sprintf("moment %d", int(m))
}

// Trigger requests a power loss: the Nth event, counted from 1, after
// LosePowerAt.
type Trigger struct {
	Event  Event
	N      int
	Moment Moment
}

func (o Trigger) String() string { return fmt.Sprintf("%s %d, %s", o.Event, o.N, o.Moment) }

func (o Trigger) check() error {
	switch {
	case o.N < 1:
		return fmt.Errorf("power loss at %v: the event number must be at least 1", o)
	case o.Event < Write || o.Event > Discard || o.Moment < OnArrival || o.Moment > AfterAnswer:
		return fmt.Errorf("power loss at %v: unknown event or moment", o)
	}
	return nil
}

// armedTrigger is an active Trigger.
type armedTrigger struct {
	Trigger
	seen int
	due  bool // the Nth event has arrived
}

// arrives counts a request and reports whether it is the Nth event.
func (o *armedTrigger) arrives(c nbd.Command) bool {
	if e, counted := eventOf(c); o == nil || o.due || !counted || e != o.Event {
		return false
	}
	o.seen++
	o.due = o.seen == o.N
	return o.due
}

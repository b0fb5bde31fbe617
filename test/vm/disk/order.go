package disk

import (
	"fmt"

	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// Event is a kind of request that an order to cut counts.
type Event int

// The events: a write (of data or of zeroes), a flush, a discard.
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

// Moment is when, in the life of a request, the power goes.
type Moment int

const (
	// OnArrival: nothing of the request has been carried out.
	OnArrival Moment = iota
	// BeforeAnswer: it has been carried out, but the guest never learns it.
	BeforeAnswer
	// AfterAnswer: the guest has the answer, and nothing after it is taken.
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

// Order is an order to cut the power by oneself at the Nth event, counted from
// 1 at the moment of the order.
type Order struct {
	Event  Event
	N      int
	Moment Moment
}

func (o Order) String() string { return fmt.Sprintf("%s %d, %s", o.Event, o.N, o.Moment) }

func (o Order) check() error {
	switch {
	case o.N < 1:
		return fmt.Errorf("order to cut at %v: events are counted from 1", o)
	case o.Event < Write || o.Event > Discard || o.Moment < OnArrival || o.Moment > AfterAnswer:
		return fmt.Errorf("order to cut at %v: no such event or moment", o)
	}
	return nil
}

// order is an Order that is being counted.
type order struct {
	Order
	seen int
	due  bool // the Nth event has come
}

// arrives counts a request and returns whether it is the one.
func (o *order) arrives(c nbd.Command) bool {
	if e, counted := eventOf(c); o == nil || o.due || !counted || e != o.Event {
		return false
	}
	o.seen++
	o.due = o.seen == o.N
	return o.due
}

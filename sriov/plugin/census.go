package plugin

import (
	"context"
	"errors"
	"time"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// censusBound is how long the kubelet may take to say what it offers.
const censusBound = 2 * time.Second

// census asks the kubelet what it offers and who has what, once for all who want
// to know at a time: on a node with many resources a withdrawal asks for each.
type census struct {
	pods     Pods // nil: there is nobody to ask
	requests chan chan count
}

// count is what the kubelet said.
type count struct {
	known   bool
	offered map[string][]string
	held    []podresources.Holder
}

func newCensus(p Pods) *census { return &census{pods: p, requests: make(chan chan count)} }

// run asks. A question is answered by what was asked for after it came.
func (c *census) run(ctx context.Context) {
	for {
		var waiting []chan count
		select {
		case <-ctx.Done():
			return
		case w := <-c.requests:
			waiting = append(waiting, w)
		}
		for more := true; more; {
			select {
			case w := <-c.requests:
				waiting = append(waiting, w)
			default:
				more = false
			}
		}
		answer := c.ask(ctx)
		for _, w := range waiting {
			w <- answer
		}
	}
}

// ask asks until there is an answer, or the bound is over: the kubelet answers
// only so many questions a second, of all who ask.
func (c *census) ask(ctx context.Context) count {
	ctx, cancel := context.WithTimeout(ctx, censusBound)
	defer cancel()
	for {
		offered, err := c.pods.Offered(ctx)
		if err == nil {
			var held []podresources.Holder
			if held, err = c.pods.Held(ctx); err == nil {
				return count{known: true, offered: offered, held: held}
			}
		}
		if errors.Is(err, podresources.ErrNobody) || errors.Is(err, podresources.ErrUnsupported) || pause(ctx, gate.ConfirmPause) != nil {
			return count{}
		}
	}
}

func (c *census) now(ctx context.Context) count {
	if c.pods == nil {
		return count{}
	}
	answer := make(chan count, 1)
	select {
	case c.requests <- answer:
	case <-ctx.Done():
		return count{}
	}
	select {
	case n := <-answer:
		return n
	case <-ctx.Done():
		return count{}
	}
}

// confirm asks what the kubelet has of one resource.
func (c *census) confirm(ctx context.Context, resource string, epoch uint64) gate.Confirmed {
	n := c.now(ctx)
	answer := gate.Confirmed{Epoch: epoch, Known: n.known, Offered: len(n.offered[resource])}
	for _, h := range n.held {
		if h.Resource == resource {
			answer.InUse = append(answer.InUse, gate.Held{ID: h.ID, Namespace: h.Namespace, Pod: h.Pod, Container: h.Container})
		}
	}
	return answer
}

package plugin_test

import (
	"context"
	"strings"
	"testing"
	"time"
)

// amnesiac is a kubelet that hears its plugin only after a registration of this
// number.
type amnesiac struct {
	*pods
	number int
	other  []string // what it offers before
}

func (a amnesiac) Offered(ctx context.Context) (map[string][]string, error) {
	if a.kubelet.Registrations(resource) < a.number {
		return map[string][]string{resource: a.other}, nil
	}
	return a.pods.Offered(ctx)
}

// A kubelet that offers nothing, and keeps the stream open, is registered with
// anew; a resource never stays at zero.
func TestKubeletThatDoesNotHear(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.Pods, r.config.Interval = amnesiac{pods: r.pods, number: 3}, 200*time.Millisecond
	r.start()
	r.await("it is registered three times", func() bool { return r.kubelet.Registrations(resource) == 3 })
	r.awaitOffered(2)
	// That is the end of it, over ten audits; a kubelet that is slow to read its list
	// has not heard yet, and may be registered with once more.
	audits, last := r.pods.asked.Load(), r.kubelet.Registrations(resource)
	r.eventually("it is left in peace", func() bool {
		if n := r.kubelet.Registrations(resource); n != last || r.kubelet.Allocatable(resource) != 2 {
			audits, last = r.pods.asked.Load(), n
		}
		return r.pods.asked.Load() >= audits+10
	})
}

// Another plugin's devices are not fought for, and show.
func TestKubeletThatHearsAnother(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.Pods, r.config.Interval = amnesiac{pods: r.pods, number: 2, other: []string{"a", "b"}}, 200*time.Millisecond
	r.start()
	r.awaitOffered(2)
	r.awaitTrouble("another device plugin has registered for it")
	if n := r.kubelet.Registrations(resource); n != 1 {
		t.Errorf("%d registrations, want 1", n)
	}
	r.configure(`{"resourceList": []}`)
	r.wrong("") // it is nobody's matter any more
}

// awaitTrouble waits until the plugin tells of something that is wrong.
func (r *rig) awaitTrouble(text string) {
	r.t.Helper()
	ctx := r.context()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := r.plugin.Check(ctx); err != nil && strings.Contains(err.Error(), text) {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			r.t.Fatalf("%q is not told of; the plugin says %+v", text, r.plugin.Document())
		}
	}
}

// A second plugin cannot serve the resource, and does not wait at its end for
// what the first one offers.
func TestSecondPluginEnds(t *testing.T) {
	t.Parallel()
	first := newRig(t, 2)
	first.config.Bound = 2 * patience
	first.start()
	first.awaitOffered(2)
	second := *first
	second.start()
	second.awaitTrouble("does another SR-IOV device plugin run on this node?")
	if err := second.plugin.Stop(second.context()); err != nil {
		t.Error(err)
	}
	if n := first.kubelet.Allocatable(resource); n != 2 {
		t.Errorf("%d devices are offered, want the first plugin's 2", n)
	}
}

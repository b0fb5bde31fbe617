package plugin_test

import (
	"slices"
	"testing"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/test/testkit"
)

// The others stay offered, in every list.
func TestClosedFunction(t *testing.T) {
	t.Parallel()
	r := newControlled(t, 4)
	ctx := testkit.Context(t)
	first := r.enable("first", gate.Claim{Generation: 1})
	r.awaitOffered(4)
	vfs := r.tree.Virtual(pfAddress)
	before := len(r.kubelet.Lists(resource))
	second := r.enable("second", gate.Claim{Generation: 1, Closed: gate.Closed{vfs[1]: "the MTU is 9000"}})
	for s := (gate.Status{}); !s.Withdrawn; {
		s = testkit.Value(second.Next(ctx))(t)
		if s.State != gate.Serving {
			t.Errorf("state %s", s.State)
		}
	}
	if got := r.kubelet.Healthy(resource); len(got) != 3 || slices.Contains(got, vfs[1]) {
		t.Errorf("after the acknowledgement %v are offered, closed is %s", got, vfs[1])
	}
	if _, err := r.kubelet.Allocate(ctx, resource, vfs[1]); err == nil {
		t.Error("a closed function is allocated")
	}
	testkit.Value(r.kubelet.Allocate(ctx, resource, vfs[0]))(t)
	for _, m := range r.plugin.Document().Resources[0].Members {
		if want := m.ID == vfs[1]; want != (m.Wrong != "") {
			t.Errorf("status of %s: %q", m.ID, m.Wrong)
		}
	}
	first.Close()
	r.enable("third", gate.Claim{Generation: 1, Closed: gate.Closed{pfAddress: ""}})
	r.awaitOffered(0)
	r.enable("fourth", gate.Claim{Generation: 1})
	r.awaitOffered(4)
	for _, l := range r.kubelet.Lists(resource)[before:] {
		if len(l.All) != 4 {
			t.Errorf("the list shrinks to %v", l.All)
		}
	}
	r.registered(1)
}

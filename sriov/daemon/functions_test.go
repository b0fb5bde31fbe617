package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/test/testkit"
)

// history drives a tracker through observations of one function.
type history struct {
	*testing.T
	tracker *tracker
	vf      plan.VF
	holder  bool
	err     error
	unread  []inventory.Problem
}

var historySpec = nodestate.Spec{Interfaces: []nodestate.Interface{{PCIAddress: pf0, NumVFs: 1, VFGroups: []nodestate.VFGroup{{VFRange: "0-0"}}}}}

func newHistory(t *testing.T) *history {
	return &history{T: t, tracker: newTracker(Functions{}), vf: plan.VF{Address: vfAddress(pf0, 0), Instance: "boot/1", Driver: "iavf", Netdev: "eth0", Known: true, SpoofCheck: true}}
}

// observe returns the VLAN to which the function is to be reset, or -1.
func (h *history) observe() int {
	h.Helper()
	o := observation{state: plan.State{PFs: []plan.PF{{Address: pf0, NumVFs: 1, VFs: []plan.VF{h.vf}}}}, unread: h.unread}
	if o.pods.err = h.err; h.holder {
		o.pods.holders = []podresources.Holder{{ID: h.vf.Address}}
	}
	compare, _ := h.tracker.observe(historySpec, o)
	if before, ok := compare[h.vf.Address]; ok {
		return before.VLAN
	}
	return -1
}

func (h *history) want(vlan int, when string) {
	h.Helper()
	if got := h.observe(); got != vlan {
		h.Errorf("%s: reset to VLAN %d, want %d", when, got, vlan)
	}
}

func (h *history) restart() { h.tracker = newTracker(h.tracker.saved) }

func (h *history) pod() { h.holder = true; h.observe(); h.holder = false }

func TestTracker(t *testing.T) {
	const none = -1
	for name, do := range map[string]func(h *history){
		"an administrator's change": func(h *history) {
			h.want(none, "first")
			h.vf.VLAN = 7
			h.want(none, "changed while no pod held it")
			h.pod()
			h.want(none, "the pod changed nothing")
			h.vf.VLAN = 8
			h.want(none, "changed again")
		},
		"a pod's change, while nothing can be read": func(h *history) {
			h.observe()
			h.pod()
			h.unread = []inventory.Problem{unreadable(pf0)}
			whole := h.vf
			h.vf = plan.VF{Address: whole.Address}
			h.want(none, "not read")
			h.unread, h.vf = nil, whole
			h.vf.VLAN = 7
			h.want(0, "read again")
		},
		"a pod's change": func(h *history) {
			h.observe()
			h.pod()
			h.vf.VLAN = 7
			h.want(0, "after the pod")
			h.want(0, "until it is reset")
			h.vf.VLAN = 0
			h.want(none, "reset")
			h.vf.VLAN = 7
			h.want(none, "then an administrator's")
		},
		"changed while the pod held it": func(h *history) {
			h.vf.VLAN = 5
			h.observe()
			h.vf.VLAN, h.holder = 7, true
			h.want(none, "held")
			h.holder = false
			h.want(5, "after the pod")
		},
		"its network device is in a pod": func(h *history) {
			h.observe()
			h.vf.Netdev = ""
			h.want(none, "in a pod")
			h.vf.Netdev, h.vf.VLAN = "eth1", 7
			h.want(0, "after the pod")
		},
		"pods are not known": func(h *history) {
			h.observe()
			h.err, h.vf.VLAN = errors.New("no kubelet"), 7
			h.want(none, "no evidence")
			h.err = nil
			h.want(0, "a pod might have left it")
		},
		"a daemon that was down": func(h *history) {
			h.observe()
			h.restart()
			h.want(none, "nothing changed")
			h.restart()
			h.vf.VLAN = 7
			h.want(0, "changed meanwhile")
		},
		"created again": func(h *history) {
			h.observe()
			h.pod()
			h.vf.Instance, h.vf.VLAN = "boot/2", 7
			h.want(none, "another function")
		},
		"first seen in a pod": func(h *history) {
			h.vf.VLAN = 7
			h.pod()
			h.want(none, "without a baseline")
			h.vf.VLAN = 8
			h.want(none, "recorded since")
		},
		"not in the table": func(h *history) {
			h.vf.Known = false
			h.want(none, "nothing to record")
			h.pod()
			h.vf.Known, h.vf.VLAN = true, 7
			h.want(none, "without a baseline")
		},
		"removed": func(h *history) {
			h.observe()
			_, changed := h.tracker.observe(historySpec, observation{})
			if !changed || len(h.tracker.saved.Baselines) > 0 {
				h.Errorf("%+v", h.tracker.saved)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { do(newHistory(t)) })
	}
}

// What a node did not have and did offer before an upgrade stays accepted until
// the node has it.
func TestAcceptedAtUpgrade(t *testing.T) {
	spec := nodestate.Spec{Interfaces: []nodestate.Interface{{PCIAddress: pf0, NumVFs: 1, VFGroups: []nodestate.VFGroup{{VFRange: "0-0", IsRDMA: true}}}}}
	vf := plan.VF{Address: vfAddress(pf0, 0), Driver: "iavf", Netdev: "eth0", MAC: "02:00:00:00:00:01", Known: true, AdminMAC: "02:00:00:00:00:01"}
	observe := func(tr *tracker, change func(*plan.VF)) int {
		v := vf
		if change != nil {
			change(&v)
		}
		tr.observe(spec, observation{state: plan.State{PFs: []plan.PF{{Address: pf0, Netdev: "ens1", Driver: "ice", Link: plan.Ether, Up: true, TotalVFs: 1, NumVFs: 1, VFs: []plan.VF{v}}}}})
		return len(tr.saved.Accepted)
	}
	unbound := func(v *plan.VF) { v.Driver, v.Netdev = "", "" }
	inPod := func(v *plan.VF) { v.Netdev = "" }
	rdma := func(v *plan.VF) { v.RDMA = []string{"irdma0"} }
	type observed struct {
		change func(*plan.VF)
		want   int // accepted
	}
	for name, list := range map[string][]observed{
		"free":                        {{unbound, 0}, {nil, 1}, {unbound, 1}, {nil, 1}, {inPod, 1}, {nil, 1}, {rdma, 0}, {nil, 0}},
		"in a pod, and lacks it":      {{inPod, 2}, {inPod, 2}, {nil, 1}, {rdma, 0}, {nil, 0}},
		"in a pod, and lacks nothing": {{inPod, 2}, {rdma, 0}, {nil, 0}},
	} {
		upgraded := newTracker(Functions{Unchecked: spec.Hash()})
		for n, c := range list {
			if got := observe(upgraded, c.change); got != c.want {
				t.Errorf("%s, observation %d: %d accepted, want %d", name, n, got, c.want)
			}
			upgraded = newTracker(upgraded.saved)
		}
	}
	if n := observe(newTracker(Functions{}), nil); n != 0 {
		t.Error("accepted without an upgrade")
	}
	if n := observe(newTracker(Functions{Unchecked: "another"}), nil); n != 0 {
		t.Error("accepted though the node state asks for something else than before")
	}
}

// What a step could provide is accepted once, too: the step would close the PF.
func TestAcceptedAtUpgradeOfAPF(t *testing.T) {
	spec := nodestate.Spec{Interfaces: []nodestate.Interface{{PCIAddress: pf0, NumVFs: 1, ESwitchMode: nodestate.Switchdev}}}
	tr := newTracker(Functions{Unchecked: spec.Hash()})
	for n, c := range []struct {
		offload string
		want    int
	}{{nodestate.Off, 1}, {nodestate.Off, 1}, {nodestate.On, 0}, {nodestate.Off, 0}} {
		state := plan.State{PFs: []plan.PF{{Address: pf0, Netdev: "ens1", Driver: "ice", Link: plan.Ether, Up: true, TotalVFs: 1, NumVFs: 1,
			ESwitch: nodestate.Switchdev, TCOffload: c.offload, VFs: []plan.VF{{Address: vfAddress(pf0, 0)}}}}}
		tr.observe(spec, observation{state: state})
		if got := tr.saved.Accepted; len(got) != c.want || tr.saved.Unchecked != "" {
			t.Errorf("observation %d: %+v, want %d accepted, and no more that are", n, tr.saved, c.want)
		}
	}
}

// A function with what a pod left is offered again when that is removed.
func TestPodLeavesVLAN(t *testing.T) {
	r := newRig(t, Apply)
	changed := make(chan func(), 1)
	r.config.Watch = func(ctx context.Context, f func()) error { changed <- f; <-ctx.Done(); return ctx.Err() }
	r.desired(1, specOf(2, 0))
	r.start()
	r.isServing(1)
	notify := <-changed
	address := vfAddress(pf0, 0)
	set := func(held bool, change func(*plan.VF)) {
		r.pods.mu.Lock()
		r.pods.held = nil
		if held {
			r.pods.held = []podresources.Holder{{ID: address, Namespace: "default", Pod: "p"}}
		}
		r.pods.mu.Unlock()
		r.node.change(func(s *plan.State) { change(&s.PFs[0].VFs[0]) })
		before := r.daemon.Status().Looked
		testkit.Eventually(r, "an observation", func() bool { notify(); return r.daemon.Status().Looked.After(before) })
	}
	vlan := func() (vlan int) {
		r.node.change(func(s *plan.State) { vlan = s.PFs[0].VFs[0].VLAN })
		return vlan
	}
	set(false, func(v *plan.VF) { v.VLAN = 5 }) // an administrator
	set(true, func(v *plan.VF) { v.VLAN, v.Trust = 7, true })
	set(true, func(v *plan.VF) {})
	if vlan() != 7 {
		t.Error("a function that a pod holds was changed")
	}
	set(false, func(v *plan.VF) {})
	testkit.Eventually(t, "the administrator's VLAN again", func() bool { return vlan() == 5 })
	r.isServing(1)
	if got := r.gate.calls(); len(got) < 3 || strings.HasPrefix(got[len(got)-2], "enable") || got[len(got)-1] != "enable 1" {
		t.Errorf("calls of the gate: %v", got)
	}
	f := testkit.Value(loadFunctions(t.Context(), r.config.Store, Record{}))(t)
	if b := f.Baselines[address]; b.VLAN != 5 || b.Trust {
		t.Errorf("on record: %+v", b)
	}
}

// A pod that comes and leaves between two observations without any event.
func TestPollPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pods := &doublePods{}
		d := &Daemon{config: Config{Pods: pods}}
		d.takePolled()
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		changes := 0
		go d.pollPods(ctx, func() { changes++ })
		for n, want := range []struct {
			held    string
			changes int
		}{{"", 0}, {"a", 1}, {"a", 1}, {"b", 2}, {"", 3}, {"", 3}} {
			pods.mu.Lock()
			if pods.held = nil; want.held != "" {
				pods.held = []podresources.Holder{{ID: want.held}}
			}
			pods.mu.Unlock()
			time.Sleep(pollDelay)
			synctest.Wait()
			if changes != want.changes {
				t.Errorf("poll %d: %d changes, want %d", n, changes, want.changes)
			}
		}
		if got := fmt.Sprint(d.takePolled().held); got != "map[a:true b:true]" {
			t.Errorf("held meanwhile: %s", got)
		}
		stop()
		synctest.Wait()
	})
}

// While the kubelet does not answer, a pod can have come, changed a function and
// left: a change from that time is no administrator's.
func TestKubeletThatDidNotAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		fails int
		polls bool
	}{
		"to a poll":                       {1, true},
		"before the functions are read":   {1, false},
		"before and after they were read": {2, false},
	} {
		t.Run(name, func(t *testing.T) { testUnansweredKubelet(t, c.fails, c.polls) })
	}
}

func testUnansweredKubelet(t *testing.T, fails int, polls bool) {
	r := newRig(t, Apply)
	synctest.Test(t, func(t *testing.T) {
		d := testkit.Value(New(r.config))(t)
		d.tracker = newTracker(Functions{})
		address := vfAddress(pf0, 0)
		observe := func(vlan int) observation {
			r.node.change(func(s *plan.State) {
				s.PFs[0].NumVFs, s.PFs[0].VFs = 1, []plan.VF{{Address: address, Instance: "boot/1", Driver: "iavf", Netdev: "eth0", Known: true, VLAN: vlan}}
			})
			polled := d.takePolled()
			o := d.observe(t.Context())
			d.track(t.Context(), historySpec, polled, &o)
			return o
		}
		ctx, stop := context.WithCancel(t.Context())
		go d.pollPods(ctx, func() {})
		observe(5)
		r.pods.mu.Lock()
		r.pods.fails = fails
		r.pods.mu.Unlock()
		if polls {
			time.Sleep(pollDelay)
			synctest.Wait()
		} else if o := observe(7); o.pods.err == nil {
			t.Error("the holders count as known")
		}
		if was, found := observe(7).baselines[address]; !found || was.VLAN != 5 {
			t.Errorf("reset to %+v (%t), want VLAN 5", was, found)
		}
		stop()
		synctest.Wait()
	})
}

// Without its record the daemon does not act on an observation.
func TestFunctionsNotSaved(t *testing.T) {
	r := newRig(t, Apply)
	testkit.Must(t, r.config.Store.Close())
	d := testkit.Value(New(r.config))(t)
	d.tracker = newTracker(Functions{})
	o := observation{state: r.node.copy()}
	o.state.PFs[0].NumVFs, o.state.PFs[0].VFs = 1, []plan.VF{{Address: vfAddress(pf0, 0), Known: true}}
	if d.track(t.Context(), historySpec, d.takePolled(), &o); o.err == nil || !strings.Contains(o.err.Error(), "record of functions") || !d.unsaved {
		t.Errorf("%v", o.err)
	}
}

func TestFirstStartAfterUpgrade(t *testing.T) {
	r := newRig(t, Apply)
	for _, c := range []struct {
		record Record
		want   string
	}{{Record{Spec: "s"}, "s"}, {Record{Spec: "s", Applying: true}, ""}, {Record{}, ""}} {
		if f := testkit.Value(loadFunctions(t.Context(), r.config.Store, c.record))(t); f.Unchecked != c.want {
			t.Errorf("%+v: unchecked is %q, want %q", c.record, f.Unchecked, c.want)
		}
	}
	testkit.Must(t, saveFunctions(t.Context(), r.config.Store, Functions{}))
	if f := testkit.Value(loadFunctions(t.Context(), r.config.Store, Record{Spec: "s"}))(t); f.Unchecked != "" {
		t.Errorf("%+v", f)
	}
}

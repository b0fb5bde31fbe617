package expose

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/snap"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/soak"
)

// both are a device of either kind.
func both() []Request { return []Request{blockDevice("bdev0"), fsOf("fsdev0")} }

// calls counts what an exposure and its hiding take on a process like the rig.
func calls(t *testing.T, q Request) (expose, hide int) {
	t.Helper()
	r := newRig(t, snapProcess())
	r.put(t, q)
	r.Forget()
	_, err := r.exposer(t).Expose(t.Context(), q)
	must(t, err)
	expose = len(r.Calls())
	r.Forget()
	must(t, r.exposer(t).Hide(t.Context(), q))
	return expose, len(r.Calls())
}

// alone checks that the device is exposed, once, and that hiding leaves nothing.
func (r *rig) alone(t *testing.T, q Request) {
	t.Helper()
	r.back(t, q)
	shown, err := r.exposer(t).Expose(t.Context(), q)
	if err != nil {
		t.Errorf("a repeated expose: %v", err)
		return
	}
	left := r.left(t)
	if n := count(left, "function") + count(left, "virtio-fs function"); n != 1 || shown.PCI == "" || shown.VUID == "" {
		t.Errorf("%+v with %v", shown, left)
	}
	r.gone(t, q)
}

// back waits for a process that was restarted, and gives it the device again.
func (r *rig) back(t *testing.T, q Request) {
	t.Helper()
	must(t, r.own.WaitReady(t.Context()))
	r.put(t, q)
}

func (r *rig) gone(t *testing.T, q Request) {
	t.Helper()
	if err := r.exposer(t).Hide(t.Context(), q); err != nil {
		t.Errorf("hide: %v", err)
	}
	if left := r.left(t); len(left) > 0 {
		t.Errorf("left are %v", left)
	}
}

// failure is a way in which one call fails.
type failure struct {
	name  string
	fault spdktest.Fault
}

func failures() []failure {
	return []failure{
		{"refused", spdktest.Fault{Error: &spdktest.Error{Code: -5, Message: "Input/output error"}}},
		{"dropped before", spdktest.Fault{Instead: spdktest.Drop}},
		{"dropped afterwards", spdktest.Fault{Then: spdktest.Drop}},
		{"restarted before", spdktest.Fault{Instead: spdktest.Restart}},
		{"restarted afterwards", spdktest.Fault{Then: spdktest.Restart}},
	}
}

// positions are those of n calls at which variant i of a fault happens: all of
// them in make soak. Elsewhere every third, from another one for each variant,
// so that three variants reach every call.
func positions(n, i int) (at []int) {
	for p := range n {
		if soak.Enabled || (p+i)%3 == 0 {
			at = append(at, p)
		}
	}
	return at
}

// Whatever happens at whichever call, an Expose that fails leaves nothing, and
// the next one succeeds.
func TestFaultsOfExpose(t *testing.T) {
	for _, q := range both() {
		n, _ := calls(t, q)
		for i, f := range failures() {
			t.Run(fmt.Sprint(q.Mode, " ", f.name), func(t *testing.T) {
				t.Parallel()
				fault := f.fault
				for _, at := range positions(n, i) {
					r := newRig(t, snapProcess())
					r.put(t, q)
					fault.Skip, fault.Times = at, 1
					r.Order(fault)
					_, err := r.exposer(t).Expose(t.Context(), q)
					r.Clear()
					if dropped := fault.Instead == spdktest.Drop || fault.Then == spdktest.Drop; dropped && err != nil && at > 0 {
						t.Errorf("call %d: one lost connection: %v", at, err)
					}
					if _, refused := errors.AsType[*spdk.Error](err); refused && fault.Error != nil {
						r.clean(t, at, err)
					}
					r.alone(t, q)
					if t.Failed() {
						t.Fatalf("at call %d; %v", at, err)
					}
				}
			})
		}
	}
}

// clean checks the roll-back, save for what all file systems share.
func (r *rig) clean(t *testing.T, at int, err error) {
	t.Helper()
	if left := r.left(t); len(left) > 0 {
		t.Errorf("call %d: after %v there are %v", at, err, left)
	}
}

// killed lets a process get no further than to a call, of which the answer is
// lost, or which does not arrive at all.
func (r *rig) killed(at int, arrives bool) {
	if arrives {
		r.Order(spdktest.Fault{Skip: at, Times: 1, Then: spdktest.Drop})
	}
	r.Order(spdktest.Fault{Skip: at, Instead: spdktest.Drop})
}

// Killed at any call, an exposure is continued by the next one, or hidden at
// once: nothing is made twice and nothing stays.
func TestExposeIsKilled(t *testing.T) {
	for _, q := range both() {
		n, _ := calls(t, q)
		for i, v := range []struct {
			arrives bool
			then    string
			check   func(*rig, *testing.T, Request)
		}{
			{false, "expose", (*rig).alone},
			{true, "hide", (*rig).gone},
			{true, "expose", (*rig).alone},
			{false, "hide", (*rig).gone},
		} {
			t.Run(fmt.Sprintf("%s %t %s", q.Mode, v.arrives, v.then), func(t *testing.T) {
				t.Parallel()
				for _, at := range positions(n, i) {
					r := newRig(t, snapProcess())
					r.put(t, q)
					r.killed(at, v.arrives)
					kept := q
					kept.Keep = true
					_, err := r.exposer(t).Expose(t.Context(), kept)
					r.Clear()
					v.check(r, t, q)
					if t.Failed() {
						t.Fatalf("killed at call %d: %v", at, err)
					}
				}
			})
		}
	}
}

func TestHideFails(t *testing.T) {
	for _, q := range both() {
		_, n := calls(t, q)
		for i, f := range failures() {
			t.Run(fmt.Sprint(q.Mode, " ", f.name), func(t *testing.T) {
				t.Parallel()
				fault := f.fault
				for _, at := range positions(n, i) {
					r := newRig(t, snapProcess())
					r.put(t, q)
					_, err := r.exposer(t).Expose(t.Context(), q)
					must(t, err)
					fault.Skip, fault.Times = at, 1
					r.Forget()
					r.Order(fault)
					err = r.exposer(t).Hide(t.Context(), q)
					// How controllers are is asked for, and need not be told.
					optional := at < len(r.Calls()) && r.Calls()[at].Method == controllerList
					if _, refused := errors.AsType[*spdk.Error](err); fault.Error != nil && !refused && !optional {
						t.Errorf("call %d was refused, and Hide says %v", at, err)
					}
					r.Clear()
					r.back(t, q)
					r.gone(t, q)
					if t.Failed() {
						t.Fatalf("at call %d: %v", at, err)
					}
				}
			})
		}
		for _, arrives := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s killed %t", q.Mode, arrives), func(t *testing.T) {
				t.Parallel()
				for at := range n {
					r := newRig(t, snapProcess())
					r.put(t, q)
					_, err := r.exposer(t).Expose(t.Context(), q)
					must(t, err)
					r.killed(at, arrives)
					err = r.exposer(t).Hide(t.Context(), q)
					r.Clear()
					if at%2 == 0 { // it may as well be wanted again
						r.alone(t, q)
					}
					r.gone(t, q)
					if t.Failed() {
						t.Fatalf("killed at call %d: %v", at, err)
					}
				}
			})
		}
	}
}

// What a failed Expose made is kept when the caller says so, and the error names
// step, method and SNAP's words.
func TestKeep(t *testing.T) {
	for keep, want := range map[bool]int{true: 4, false: 0} {
		r := newRig(t, snapProcess())
		q := blockDevice("a")
		q.Keep = keep
		r.put(t, q)
		r.Order(spdktest.Fault{Method: "nvme_controller_create", Error: &spdktest.Error{Code: -12, Message: "Cannot allocate memory"}})
		_, err := r.exposer(t).Expose(t.Context(), q)
		if got := fmt.Sprint(err); got != "expose a: create the controller: nvme_controller_create: Cannot allocate memory (code -12)" {
			t.Error(got)
		}
		if left := r.left(t); len(left) != want { // subsystem, function, note and its lock
			t.Errorf("keep %t: %v", keep, left)
		}
	}
}

// A roll-back that fails too says so, and Hide does the rest.
func TestRollBackFails(t *testing.T) {
	r := newRig(t, snapProcess())
	q := blockDevice("a")
	r.put(t, q)
	r.Order(spdktest.Fault{Method: "nvme_controller_hotplug", Error: &spdktest.Error{Code: -5, Message: "no host"}})
	r.Order(spdktest.Fault{Method: "nvme_namespace_destroy", Error: &spdktest.Error{Code: -16, Message: "still busy"}})
	_, err := r.exposer(t).Expose(t.Context(), q)
	for _, say := range []string{"plug the controller in: nvme_controller_hotplug: no host", "rolling back: destroy the namespace: nvme_namespace_destroy: still busy", "hide the device"} {
		if !strings.Contains(fmt.Sprint(err), say) {
			t.Errorf("%v does not say %q", err, say)
		}
	}
	r.Clear()
	r.gone(t, q)
}

// An exposure that was there before is not taken back when a repeat fails.
func TestRollBackLeavesWhatWasThere(t *testing.T) {
	for _, q := range both() {
		r := newRig(t, snapProcess())
		r.put(t, q)
		r.Order(spdktest.Fault{Method: "nvme_controller_hotplug", Error: &spdktest.Error{Code: -5, Message: "no host"}})
		r.Order(spdktest.Fault{Method: "virtio_fs_doca_device_hotplug", Error: &spdktest.Error{Code: -5, Message: "no host"}})
		kept := q
		kept.Keep = true
		if _, err := r.exposer(t).Expose(t.Context(), kept); err == nil {
			t.Error("plugged in")
		}
		before := r.left(t)
		if _, err := r.exposer(t).Expose(t.Context(), q); err == nil {
			t.Error("plugged in")
		}
		if diff := cmp.Diff(before, r.left(t)); diff != "" || len(before) < 3 {
			t.Errorf("%v: %s", before, diff)
		}
		r.Clear()
		r.alone(t, q)
	}
}

// A caller that gives up gets a roll-back all the same.
func TestCancelled(t *testing.T) {
	for _, q := range both() {
		r := newRig(t, snapProcess())
		r.put(t, q)
		ctx, cancel := context.WithCancel(t.Context())
		for _, method := range []string{"nvme_controller_resume", "virtio_fs_device_start"} {
			r.Order(spdktest.Fault{Method: method, Times: 1, Then: spdktest.Silence})
		}
		over := make(chan error)
		e := r.exposer(t)
		go func() { _, err := e.Expose(ctx, q); over <- err }()
		for !slices.ContainsFunc(r.changes(), func(m string) bool { return m == "nvme_controller_resume" || m == "virtio_fs_device_start" }) {
			select {
			case err := <-over:
				t.Fatal(err)
			default:
			}
		}
		cancel()
		if err := <-over; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		r.clean(t, 0, context.Canceled)
	}
}

// Sixteen devices of each kind, exposed and hidden at once: each gets a function
// of its own, and all are gone at the end.
func TestManyAtOnce(t *testing.T) {
	r := newRig(t, snapProcess())
	exposers := []*Exposer{r.exposer(t), r.exposer(t)}
	var all []Request
	for i := range 16 {
		all = append(all, blockDevice(fmt.Sprint("b", i)), fsOf(fmt.Sprint("f", i)))
	}
	for _, q := range all {
		r.put(t, q)
	}
	for range 2 {
		var mu sync.Mutex
		vuids, addresses := map[string]string{}, map[string]string{}
		inParallel(all, func(i int, q Request) {
			shown, err := exposers[i/2%2].Expose(t.Context(), q)
			mu.Lock()
			defer mu.Unlock()
			if err != nil || vuids[shown.VUID] != "" || addresses[shown.PCI] != "" {
				t.Errorf("%s: %+v, %v; %v %v", q.Device, shown, err, vuids, addresses)
			}
			vuids[shown.VUID], addresses[shown.PCI] = q.Device, q.Device
		})
		if n := count(r.left(t), "function") + count(r.left(t), "virtio-fs function"); n != len(all) {
			t.Errorf("%d functions of %d devices", n, len(all))
		}
		inParallel(all, func(i int, q Request) {
			if err := exposers[i%2].Hide(t.Context(), q); err != nil {
				t.Error(err)
			}
		})
		if left := r.left(t); len(left) > 0 {
			t.Errorf("left are %v", left)
		}
	}
}

// Many callers of one device meet the same exposure.
func TestOneDeviceAtOnce(t *testing.T) {
	for _, q := range both() {
		r := newRig(t, snapProcess())
		r.put(t, q)
		same := slices.Repeat([]Request{q}, 8)
		exposers := make([]*Exposer, len(same))
		for i := range exposers {
			exposers[i] = r.exposer(t)
		}
		answers := make([]Exposed, len(same))
		inParallel(same, func(i int, q Request) {
			var err error
			if answers[i], err = exposers[i].Expose(t.Context(), q); err != nil {
				t.Error(err)
			}
		})
		if len(slices.Compact(answers)) != 1 {
			t.Errorf("%+v", answers)
		}
		r.alone(t, q)
	}
}

func inParallel(all []Request, f func(int, Request)) {
	var done sync.WaitGroup
	for i, q := range all {
		done.Go(func() { f(i, q) })
	}
	done.Wait()
}

// The bdev went while it was exposed: what its namespace left is hidden.
func TestBdevIsGone(t *testing.T) {
	r := newRig(t, snapProcess())
	q := blockDevice("a")
	r.put(t, q)
	_, err := r.exposer(t).Expose(t.Context(), q)
	must(t, err)
	must(t, r.own.Do(t.Context(), "bdev_malloc_delete", map[string]any{"name": "a"}))
	if subsystems, err := (snap.SNAP{RPC: r.own}).Subsystems(t.Context()); err != nil || len(subsystems) != 1 || len(subsystems[0].Namespaces) != 0 {
		t.Fatalf("%+v, %v", subsystems, err)
	}
	r.gone(t, q)
}

// Without notes, as after a restart of the machine's file system but not of
// SNAP, all that SNAP tells is still enough.
func TestNotesAreLost(t *testing.T) {
	for _, q := range both() {
		r := newRig(t, snapProcess())
		r.put(t, q)
		shown, err := r.exposer(t).Expose(t.Context(), q)
		must(t, err)
		must(t, os.RemoveAll(r.dir))
		again, err := r.exposer(t).Expose(t.Context(), q)
		if err != nil || again != shown {
			t.Errorf("%+v, %v", again, err)
		}
		r.gone(t, q)
	}
}

func TestLongNames(t *testing.T) {
	r := newRig(t, snapProcess())
	names := []string{strings.Repeat("x", 190), strings.Repeat("x", 189) + "_", "lvs/volume 1:ä"}
	for _, name := range names {
		q := blockDevice(name)
		r.put(t, q)
		shown, err := r.exposer(t).Expose(t.Context(), q)
		if err != nil || len(shown.NQN) > 223 {
			t.Errorf("%s: %+v, %v", name, shown, err)
		}
	}
	if n := count(r.left(t), "subsystem"); n != len(names) {
		t.Errorf("%d subsystems of %d devices: %v", n, len(names), r.left(t))
	}
	for _, name := range names {
		must(t, r.exposer(t).Hide(t.Context(), blockDevice(name)))
	}
	r.clean(t, 0, nil)
}

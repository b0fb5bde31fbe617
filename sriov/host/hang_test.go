package host

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/test/testkit"
)

// The context ends when the call hangs.
func (r *rig) hanging(on string) (hangs context.Context, release func()) {
	until := make(chan struct{})
	release = sync.OnceFunc(func() { close(until) })
	ctx, cancel := context.WithCancel(r.Context())
	r.tree.Fault(sysfstest.Fault{On: on, Until: until, OnHit: cancel, Times: 1})
	r.Cleanup(release)
	return ctx, release
}

func (r *rig) soon() context.Context {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), 200*time.Millisecond)
	r.Cleanup(cancel)
	return ctx
}

func (r *rig) close() {
	r.Helper()
	testkit.Must(r, r.host.Close(testkit.Context(r)))
}

func isHung(err error) bool { _, ok := errors.AsType[*Hung](err); return ok }

func TestDriverHangs(t *testing.T) {
	r := newRig(t)
	hangs, release := r.hanging(pfAddress + "/sriov_numvfs 2")
	make2 := plan.SetNumVFs{PF: pfAddress, Number: 2}
	err := r.host.Do(hangs, make2)
	if !isHung(err) || !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "sriov_numvfs") || !strings.Contains(err.Error(), make2.String()) {
		t.Fatalf("%v", err)
	}
	for _, s := range []plan.Step{make2, plan.SetMTU{Address: pfAddress, MTU: 9000}} {
		started := time.Now()
		if err := r.host.Do(t.Context(), s); !isHung(err) || !strings.Contains(err.Error(), "not started") || !strings.Contains(err.Error(), `write "2"`) {
			t.Errorf("%s: %v", s, err)
		}
		if took := time.Since(started); took > time.Minute {
			t.Errorf("%s: refused after %s", s, took)
		}
	}
	r.do(plan.SetNumVFs{PF: pf2Address, Number: 1})
	if s := r.read(); s.PFs[0].NumVFs != 0 || s.PFs[1].NumVFs != 1 {
		t.Errorf("%+v", s)
	}
	if err := r.host.Close(r.soon()); !isHung(err) || !strings.Contains(err.Error(), "sriov_numvfs") {
		t.Errorf("closed: %v", err)
	}
	release()
	r.close()
	r.do(make2)
	if n := r.read().PFs[0].NumVFs; n != 2 {
		t.Errorf("%d virtual functions", n)
	}
}

func TestUnbindHangs(t *testing.T) {
	r := newRig(t)
	r.do(plan.SetNumVFs{PF: pfAddress, Number: 2})
	hangs, release := r.hanging("igbvf/unbind " + vf0)
	if err := r.host.Do(hangs, plan.Bind{Address: vf0, Driver: "vfio-pci"}); !isHung(err) {
		t.Fatalf("%v", err)
	}
	if err := r.host.Do(t.Context(), plan.SetUp{Address: vf1}); !isHung(err) {
		t.Errorf("its neighbour: %v", err)
	}
	if err := r.host.Do(t.Context(), plan.SetNumVFs{PF: pfAddress}); !isHung(err) {
		t.Errorf("its physical function: %v", err)
	}
	release()
	r.close()
	r.do(plan.Bind{Address: vf0, Driver: "vfio-pci"})
}

// The kernel has one lock for all links.
func TestReadHangs(t *testing.T) {
	r := newRig(t)
	hangs, release := r.hanging("netlink ESwitch " + pf2Address)
	if _, err := r.host.Read(hangs); !isHung(err) || !strings.Contains(err.Error(), "embedded switch of "+pf2Address) {
		t.Fatalf("%v", err)
	}
	if _, err := r.host.Read(t.Context()); !isHung(err) {
		t.Errorf("%v", err)
	}
	release()
	r.close()
	r.read()
}

func TestEndedContext(t *testing.T) {
	r := newRig(t)
	ctx := testkit.Canceled(t)
	testkit.WantError(t, "Read", testkit.Err(r.host.Read(ctx)), context.Canceled)
	testkit.WantError(t, "Do", r.host.Do(ctx, plan.SetUp{Address: pfAddress}), context.Canceled)
	r.close()
}

func TestConcurrentSteps(t *testing.T) {
	r := newRig(t)
	hangs, release := r.hanging(pfAddress + "/sriov_numvfs 2")
	var all sync.WaitGroup
	errs := make(chan error, 8)
	all.Go(func() { errs <- r.host.Do(t.Context(), plan.SetNumVFs{PF: pfAddress, Number: 2}) })
	<-hangs.Done()
	over := testkit.Canceled(t)
	for want, ctx := range map[error]context.Context{context.DeadlineExceeded: r.soon(), context.Canceled: over} {
		if err := r.host.Do(ctx, plan.SetUp{Address: pfAddress}); !errors.Is(err, want) || isHung(err) || !strings.Contains(err.Error(), "is still running") {
			t.Errorf("%v", err)
		}
	}
	for i := range 3 {
		all.Go(func() { errs <- r.host.Do(t.Context(), plan.SetMTU{Address: pfAddress, MTU: 2000 + i}) })
		all.Go(func() {
			_, err := r.host.Read(t.Context())
			if _, incomplete := errors.AsType[*Incomplete](err); incomplete {
				err = nil
			}
			errs <- err
		})
	}
	release()
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	if s := r.read(); s.PFs[0].NumVFs != 2 || s.PFs[0].MTU < 2000 {
		t.Error(fmt.Sprint(s))
	}
}

func TestAbandonedStepDoesNotContinue(t *testing.T) {
	for on, driver := range map[string]string{"igbvf/unbind " + vf0: "", "driver_override vfio-pci": "igbvf"} {
		r := newRig(t)
		r.do(plan.SetNumVFs{PF: pfAddress, Number: 2})
		hangs, release := r.hanging(on)
		if err := r.host.Do(hangs, plan.Bind{Address: vf0, Driver: "vfio-pci"}); !isHung(err) {
			t.Fatalf("%s: %v", on, err)
		}
		release()
		r.close()
		if v := r.virtual(0); v.Driver != driver || r.override(vf0) != "" {
			t.Errorf("%s: %+v, want the driver %q and no override", on, v, driver)
		}
	}
}

func TestBounds(t *testing.T) {
	r := newRig(t)
	_, release := r.hanging("netlink SetUp eth0")
	for bound := 200 * time.Millisecond; ; bound *= 2 { // sufficient for the call
		r.host.bounds.step = bound
		err := r.host.Do(t.Context(), plan.SetUp{Address: pfAddress})
		if isHung(err) && strings.Contains(err.Error(), "after "+bound.String()) {
			break
		}
		if isHung(err) || !errors.Is(err, context.DeadlineExceeded) || bound > time.Minute {
			t.Fatal(err)
		}
	}
	release()
	r.close()
}

package plugin

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

// interrupted restarts the plugin during an attach, which SNAP continues.
func (r *rig) interrupted(q request.Create) {
	r.t.Helper()
	creating := r.begin(r.t.Context(), q)
	r.awaitCall("bdev_nvme_attach_controller", 1)
	r.crash()
	if got := <-creating; got.err == nil {
		r.t.Fatal("the create was done before the plugin ended")
	}
	r.start()
}

// DeleteDevice fails until the attach of an earlier plugin process has ended,
// long before the timeout.
func TestDeleteAfterAnInterruptedAttach(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{Timing: spdktest.Timing{Attach: time.Minute}}, nil)
	r.target(one, 1)
	r.idle = true
	r.interrupted(nvme("v", one))
	r.refusedDelete("v")
	r.skip(time.Minute)
	r.appears()
	r.delete("v", "")
	if left := r.controllers(); len(left) > 0 {
		t.Errorf("after DeleteDevice SNAP has %q", left)
	}
	r.hasNot("v", "")
	r.empty()
}

func (r *rig) appears() {
	r.t.Helper()
	testkit.EventuallyNil(r.t, "SNAP attaches", func() error {
		if len(r.controllers()) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
}

// refusedDelete: DeleteDevice fails while an attach can complete.
func (r *rig) refusedDelete(volumeID string) {
	r.t.Helper()
	err := r.plugin.Delete(r.t.Context(), request.Device{Volume: volumeID})
	if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "can still complete until 20") {
		r.t.Errorf("DeleteDevice while an attach can still complete: %v", err)
	}
}

// TestLateAttach: packets are dropped at 0 s, the plugin is killed at 25 s,
// packets pass at 44 s. The second attach completes at 56 s, the first at 63 s.
// DeleteDevice must not succeed before the first has ended.
func TestLateAttach(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{}, nil)
	address := r.target(one, 1).Addresses[0]
	r.network.SetReach(address, spdktest.Dropped)
	r.idle = true
	r.interrupted(nvme("v", one))
	r.skip(25 * time.Second)
	creating := r.begin(t.Context(), nvme("v", one))
	r.awaitCall("bdev_nvme_attach_controller", 2)
	r.skip(19 * time.Second)
	r.network.SetReach(address, spdktest.Open)
	r.skip(13 * time.Second)
	got := <-creating
	testkit.Must(r.t, got.err)
	r.has("v", got.name)
	r.refusedDelete("v")
	if left := r.controllers(); len(left) > 0 {
		t.Errorf("after DeleteDevice SNAP has %q", left)
	}
	r.hasNot("v", "")
	r.skip(7 * time.Second)
	r.appears()
	r.idle = false
	r.restart()
	testkit.EventuallyNil(r.t, "the controller is removed", func() error {
		if left := r.controllers(); len(left) > 0 {
			return fmt.Errorf("SNAP has %q, ListDevices %q", left, r.listed())
		}
		return nil
	})
	r.skip(3 * time.Minute)
	r.delete("v", "")
	r.empty()
}

// TestLateAttachIsRemoved: a controller that appears after its removal is
// removed, also if a detach fails first.
func TestLateAttachIsRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{Timing: spdktest.Timing{Attach: time.Minute}}, nil)
	r.target(one, 1)
	r.interrupted(nvme("v", one))
	r.refusedDelete("v")
	r.snap.Inject(spdktest.Fault{Method: "bdev_nvme_detach_controller", Error: &spdktest.Error{Code: -16, Message: "busy"}})
	r.skip(time.Minute)
	r.appears()
	r.snap.Clear()
	r.empty() // without a call
}

// Without a recorded path, as in an earlier release, the timeout applies.
func TestRecordWithoutAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 1)
	r.create(nvme("v", one))
	o := r.table.Objects()[0]
	o.UnansweredUntil, o.UnansweredPath = r.now().Add(time.Hour), netip.AddrPort{}
	testkit.Must(r.t, r.table.PutObject(t.Context(), o))
	r.restart()
	r.refusedDelete("v")
	if left := r.controllers(); len(left) > 0 {
		t.Errorf("after DeleteDevice SNAP has %q", left)
	}
	r.skip(time.Hour)
	r.delete("v", "")
	r.empty()
}

// DeleteDevice succeeds after a restart of SNAP.
func TestRestartOfSNAPEndsAttaches(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{Timing: spdktest.Timing{Attach: time.Hour}}, nil)
	r.target(one, 1)
	r.idle = true
	r.interrupted(nvme("v", one))
	r.refusedDelete("v")
	testkit.Must(r.t, r.snap.Restart())
	testkit.EventuallyNil(r.t, "DeleteDevice is OK", func() error {
		return r.plugin.Delete(t.Context(), request.Device{Volume: "v"})
	})
	r.empty()
}

// The result of an earlier attach is removed. A retry for another subsystem
// waits for that.
func TestInterruptedCreateIsRemoved(t *testing.T) {
	t.Parallel()
	const two = "nqn.2016-06.io.spdk:two"
	r := newRig(t, spdktest.Config{Timing: spdktest.Timing{Attach: time.Minute}}, nil)
	r.target(one, 1)
	r.target(two, 1)
	r.interrupted(nvme("v", one))
	r.refused(nvme("v", two), "must be removed first", "can still complete until 20")
	r.skip(time.Minute)
	r.empty()
	got := pass(r, r.begin(t.Context(), nvme("v", two)))
	testkit.Must(r.t, got.err)
	r.has("v", got.name)
}

// The record of a foreign object is dropped, but the object is not removed.
func TestForeignObjectIsForgotten(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 1)
	name := strings.TrimSuffix(r.create(nvme("v", one)), "n1")
	id := plan.ID{Kind: plan.Controller, Name: name}
	o, _ := r.table.Object(id)
	o.Foreign = true
	testkit.Must(r.t, r.table.PutObject(t.Context(), o))
	testkit.Must(r.t, r.table.Drop(t.Context(), "v"))
	r.restart()
	testkit.EventuallyNil(r.t, "it is forgotten", func() error {
		if _, known := r.table.Object(id); known {
			return errors.New("it is on record")
		}
		return nil
	})
	if got := r.controllers(); len(got) != 1 {
		t.Errorf("controllers %q", got)
	}
}

// A shared controller does not become foreign if a path is unconfirmed while
// another volume fails.
func TestSharedControllerWithUnansweredAttach(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 2)
	name := r.create(nvme("v", one, "nsId", "1"))
	o := r.table.Objects()[0]
	o.UnansweredUntil, o.UnansweredPath = time.Now().Add(time.Hour), o.Controller.Paths[0]
	testkit.Must(r.t, r.table.PutObject(t.Context(), o))
	r.refused(nvme("w", one, "nsId", "9"), "no namespace with nsId 9")
	if o, _ = r.table.Object(o.ID); o.Foreign {
		t.Error("the controller became foreign")
	}
	r.has("v", name)
	r.delete("v", name)
	r.empty()
}

// A failed foreign controller is not used.
func TestFailedForeignController(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	s := r.target(one, 1)
	ask[[]string](r, "bdev_nvme_attach_controller", map[string]any{"name": "nvme_sample", "trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": "4420", "subnqn": one, "hostnqn": host})
	name := r.create(nvme("v", one))
	r.network.SetReach(s.Addresses[0], spdktest.Refused)
	testkit.EventuallyNil(r.t, "the controller fails", func() error {
		if c := ask[[]spdk.NVMeController](r, "bdev_nvme_get_controllers", nil); c[0].Paths[0].State != spdk.ControllerFailed {
			return errors.New("it has not")
		}
		return nil
	})
	r.refused(nvme("w", one), "has failed", "nvme_sample")
	r.refused(nvme("v", one), "did not attach the controller")
	if d, known := r.table.Device("v"); !known || d.Phase != table.Ready || d.Name != name {
		t.Errorf("the device that was there: %+v", d)
	}
}

// The bdev of a device must stay the same namespace of the same subsystem.
func TestAnotherNamespaceUnderTheName(t *testing.T) {
	for what, ns := range map[string]spdktest.Namespace{
		"of another subsystem": {ID: 1, UUID: uuidOf(one, 1)},
		"with another UUID":    {ID: 1, UUID: uuidOf("another", 1)},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t, spdktest.Config{}, nil)
			s := r.target(one, 1)
			name := r.create(nvme("v", one))
			controller := strings.TrimSuffix(name, "n1")
			ask[any](r, "bdev_nvme_detach_controller", map[string]any{"name": controller})
			r.hasNotHeld("v", name)
			nqn := one
			if what == "of another subsystem" {
				nqn = "nqn.2016-06.io.spdk:other"
			}
			s.NQN, s.Namespaces = nqn, []spdktest.Namespace{ns}
			r.network.Put(s)
			ask[[]string](r, "bdev_nvme_attach_controller", map[string]any{"name": controller, "trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": "4420", "subnqn": nqn, "hostnqn": host})
			r.hasNotHeld("v", name)
		})
	}
}

func (r *rig) hasNotHeld(volumeID, name string) {
	r.t.Helper()
	if _, err := r.plugin.Get(r.t.Context(), request.Device{Volume: volumeID, Name: name}); !errors.Is(err, ErrNotFound) {
		r.t.Errorf("GetDevice(%s, %s): %v, want ErrNotFound", volumeID, name, err)
	}
}

// After a restart, one unreachable target does not block the cleanup of other
// volumes.
func TestManyLeftovers(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{Timing: spdktest.Timing{Silent: time.Hour}}, nil)
	silent := spdktest.Address{Transport: "TCP", Host: "192.0.2.66", Port: "4420"}
	r.network.SetReach(silent, spdktest.Silent)
	r.target(one, 40)
	for i := range 40 {
		r.create(nvme(fmt.Sprint("v", i), one, "nsId", fmt.Sprint(i+1)))
	}
	attaches := r.asked("bdev_nvme_attach_controller")
	stuck := r.begin(t.Context(), nvme("stuck", "nqn.2016-06.io.spdk:away", "targetAddr", "192.0.2.66"))
	r.awaitCall("bdev_nvme_attach_controller", attaches+1)
	r.crash()
	<-stuck
	for i := range 40 { // as if the plugin had ended during the deletes
		v := fmt.Sprint("v", i)
		r.edit(v, func(d *table.Device) { d.Phase = table.Removing })
	}
	r.start()
	testkit.EventuallyNil(r.t, "all other devices are removed", func() error {
		devices, _ := r.table.Count()
		if devices[table.Removing] > 0 || len(r.bdevs()) > 0 {
			return fmt.Errorf("%v, bdevs %q", devices, r.bdevs())
		}
		return nil
	})
	testkit.EventuallyNil(r.t, "and the one that was stuck, once its attach has ended", func() error {
		r.skipped.Add(int64(time.Hour))
		devices, objects := r.table.Count()
		if devices[table.Creating] > 0 || objects > 0 {
			return fmt.Errorf("%v, %d objects", devices, objects)
		}
		return nil
	})
}

func (r *rig) edit(volumeID string, change func(*table.Device)) {
	r.t.Helper()
	s := testkit.Value(store.Open(r.t.Context(), filepath.Join(r.dir, "dpu.db"), store.Options{Role: table.Role, Version: table.Version}))(r.t)
	defer func() { testkit.Must(r.t, s.Close()) }()
	records := testkit.Value(table.Open(r.t.Context(), s))(r.t)
	d, known := records.Device(volumeID)
	if !known {
		r.t.Fatalf("there is no record of %s", volumeID)
	}
	change(&d)
	testkit.Must(r.t, records.Put(r.t.Context(), d))
}

package plugin

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
)

// interrupted ends the plugin while SNAP attaches, and starts it again: SNAP
// goes on with what it was asked for.
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

// A delete is answered when nothing can come any more, also of an attach that
// an earlier process of the plugin asked for.
func TestDeleteAfterAnInterruptedAttach(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{Timing: spdktest.Timing{Attach: time.Hour}}, func(c *Config, _ *object.Config) { c.KeepEvery = time.Hour })
	r.target(one, 1)
	r.interrupted(nvme("v", one))
	deleted := make(chan error, 1)
	go func() { deleted <- r.plugin.Delete(t.Context(), request.Device{Volume: "v"}) }()
	r.awaitCall("bdev_nvme_attach_controller", 2) // which ends after the first
	if len(deleted) > 0 {
		t.Error("the delete did not wait for the attach")
	}
	r.must(pass(r, deleted))
	if got := r.controllers(); len(got) > 0 {
		t.Errorf("SNAP holds %q", got)
	}
	r.hasNot("v", "")
}

// Even one that comes later than it should is found and removed.
func TestLateAttachIsRemoved(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 1)
	r.snap.Order(spdktest.Fault{Method: "bdev_nvme_attach_controller", Times: 1, Wait: time.Hour})
	r.interrupted(nvme("v", one))
	r.delete("v", "")
	r.awaitCall("bdev_nvme_detach_controller", 1)
	// A detach that fails keeps the controller until it was seen.
	r.snap.Order(spdktest.Fault{Method: "bdev_nvme_detach_controller", Error: &spdktest.Error{Code: -16, Message: "busy"}})
	r.eventually("SNAP attaches", func() error {
		r.skipped.Add(int64(time.Hour))
		if len(r.controllers()) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	r.snap.Clear()
	r.eventually("nothing is left", func() error {
		if got := r.controllers(); len(got) > 0 {
			return fmt.Errorf("SNAP holds %q", got)
		}
		return nil
	})
	if unused := r.table.Unused(); len(unused) != 1 {
		t.Errorf("what may still come is on record: %+v", unused)
	}
}

// A delete that comes before the keeper has met SNAP remembers it, too.
func TestDeleteIsTheFirstCallAfterAnInterruptedAttach(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 1)
	r.snap.Order(spdktest.Fault{Method: "bdev_nvme_attach_controller", Times: 1, Wait: time.Hour})
	r.idle = true
	r.interrupted(nvme("v", one))
	r.delete("v", "")
	if unused := r.table.Unused(); len(unused) != 1 {
		t.Errorf("what may still come is on record: %+v", unused)
	}
}

// What was begun is taken back by itself, or by a retry that comes first.
func TestInterruptedCreateIsTakenBack(t *testing.T) {
	t.Parallel()
	for _, retry := range []bool{false, true} {
		t.Run(fmt.Sprint("retry ", retry), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, spdktest.Config{Timing: spdktest.Timing{Attach: time.Hour}}, nil)
			r.target(one, 1)
			r.target("nqn.2016-06.io.spdk:two", 1)
			r.interrupted(nvme("v", one))
			if retry { // for something else: the volume was made anew meanwhile
				got := pass(r, r.begin(t.Context(), nvme("v", "nqn.2016-06.io.spdk:two")))
				r.must(got.err)
				r.has("v", got.name)
			}
			r.eventually("the first attach is taken back", func() error {
				r.skipped.Add(int64(time.Hour)) // each attempt waits for the one before
				for _, c := range ask[[]spdk.NVMeController](r, "bdev_nvme_get_controllers", nil) {
					if c.Paths[0].Address.SubNQN == one {
						return errors.New(c.Name)
					}
				}
				if _, known := r.table.Device("v"); known != retry {
					return fmt.Errorf("a device is on record: %t", known)
				}
				return nil
			})
		})
	}
}

// What somebody else made is forgotten without being removed.
func TestForeignObjectIsForgotten(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 1)
	name := strings.TrimSuffix(r.create(nvme("v", one)), "n1")
	id := plan.ID{Kind: plan.Controller, Name: name}
	o, _ := r.table.Object(id)
	o.Foreign = true
	r.must(r.table.PutObject(t.Context(), o))
	r.must(r.table.Drop(t.Context(), "v"))
	r.restart()
	r.eventually("it is forgotten", func() error {
		if _, known := r.table.Object(id); known {
			return errors.New("it is on record")
		}
		return nil
	})
	if got := r.controllers(); len(got) != 1 {
		t.Errorf("controllers %q", got)
	}
}

// A controller that others use does not become a stranger's because a path of it
// is in doubt while one more volume fails.
func TestDoubtOfASharedController(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 2)
	name := r.create(nvme("v", one, "nsId", "1"))
	o := r.table.Objects()[0]
	o.Doubt = time.Now().Add(time.Hour)
	r.must(r.table.PutObject(t.Context(), o))
	r.refused(nvme("w", one, "nsId", "9"), "no namespace with nsId 9")
	if o, _ = r.table.Object(o.ID); o.Foreign {
		t.Error("it is taken for somebody else's")
	}
	r.has("v", name)
	r.delete("v", name)
	r.empty()
}

// A failed controller of somebody else's is not used.
func TestFailedForeignController(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	s := r.target(one, 1)
	ask[[]string](r, "bdev_nvme_attach_controller", map[string]any{"name": "nvme_sample", "trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": "4420", "subnqn": one, "hostnqn": host})
	name := r.create(nvme("v", one))
	r.network.SetReach(s.Addresses[0], spdktest.Refused)
	r.eventually("the controller fails", func() error {
		if c := ask[[]spdk.NVMeController](r, "bdev_nvme_get_controllers", nil); c[0].Paths[0].State != spdk.ControllerFailed {
			return errors.New("it has not")
		}
		return nil
	})
	r.refused(nvme("w", one), "has failed", "nvme_sample")
	r.refused(nvme("v", one), "not attached by this plugin")
	if d, known := r.table.Device("v"); !known || d.Phase != table.Made || d.Name != name {
		t.Errorf("the device that was there: %+v", d)
	}
}

// The name of a device is not the device: what is now behind it must be the same
// namespace of the same subsystem.
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

// hasNotHeld checks that GetDevice does not find a device that was made.
func (r *rig) hasNotHeld(volumeID, name string) {
	r.t.Helper()
	if _, err := r.plugin.Get(r.t.Context(), request.Device{Volume: volumeID, Name: name}); !errors.Is(err, ErrAbsent) {
		r.t.Errorf("GetDevice(%s, %s): %v, want ErrAbsent", volumeID, name, err)
	}
}

// One target that is away keeps nobody else waiting after a restart, and the
// rest of what was left is taken back meanwhile.
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
	for i := range 40 { // as if the plugin had ended while all were deleted
		v := fmt.Sprint("v", i)
		r.edit(v, func(d *table.Device) { d.Phase = table.Removing })
	}
	r.start()
	r.eventually("what can be is taken back", func() error {
		devices, _ := r.table.Count()
		if devices[table.Removing] > 0 || len(r.bdevs()) > 0 {
			return fmt.Errorf("%v, bdevs %q", devices, r.bdevs())
		}
		return nil
	})
	r.eventually("and the one that was stuck, save that it may still come", func() error {
		r.skipped.Add(int64(time.Hour))
		devices, objects := r.table.Count()
		if devices[table.Making] > 0 || objects != 1 {
			return fmt.Errorf("%v, %d objects", devices, objects)
		}
		return nil
	})
}

// edit changes a record while the plugin is stopped.
func (r *rig) edit(volumeID string, change func(*table.Device)) {
	r.t.Helper()
	s, err := store.Open(r.t.Context(), filepath.Join(r.dir, "dpu.db"), store.Options{Role: table.Role, Version: table.Version})
	r.must(err)
	defer func() { r.must(s.Close()) }()
	records, err := table.Open(r.t.Context(), s)
	r.must(err)
	d, known := records.Device(volumeID)
	if !known {
		r.t.Fatalf("there is no record of %s", volumeID)
	}
	change(&d)
	r.must(records.Put(r.t.Context(), d))
}

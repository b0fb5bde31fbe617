package plugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

const one = "nqn.2016-06.io.spdk:one"

type result struct {
	name string
	err  error
}

func (r *rig) begin(ctx context.Context, q request.Create) <-chan result {
	done := make(chan result, 1)
	go func() {
		name, err := r.plugin.Create(ctx, q)
		done <- result{name, err}
	}()
	return done
}

// DeleteDevice cancels the CreateDevice, waits for its roll-back, and succeeds;
// CreateDevice fails.
func TestDeleteCancelsCreate(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 1)
	r.snap.Inject(spdktest.Fault{Method: "bdev_nvme_attach_controller", Times: 1, Wait: time.Hour})
	creating := r.begin(t.Context(), nvme("v", one))
	r.awaitCall("bdev_nvme_attach_controller", 1)
	deleted := make(chan error, 1)
	go func() { deleted <- r.plugin.Delete(t.Context(), request.Device{Volume: "v"}) }()
	testkit.Must(r.t, pass(r, deleted))
	if got := <-creating; !errors.Is(got.err, op.ErrUndone) {
		t.Errorf("the create: %q, %v", got.name, got.err)
	}
	if got := r.controllers(); len(got) > 0 {
		t.Errorf("the delete was answered, and SNAP holds %q", got)
	}
	r.hasNot("v", "")
	r.empty()
	r.has("v", r.create(nvme("v", one)))
}

// A cancelled call continues in the background, and the retry gets its result.
func TestAbandonedCreateGoesOn(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 1)
	r.snap.Inject(spdktest.Fault{Method: "bdev_nvme_attach_controller", Times: 1, Wait: time.Hour})
	ctx, leave := context.WithCancel(t.Context())
	creating := r.begin(ctx, nvme("v", one))
	r.awaitCall("bdev_nvme_attach_controller", 1)
	leave()
	if got := <-creating; !errors.Is(got.err, context.Canceled) {
		t.Errorf("the create: %q, %v", got.name, got.err)
	}
	got := pass(r, r.begin(t.Context(), nvme("v", one)))
	testkit.Must(r.t, got.err)
	r.has("v", got.name)
	if n := r.asked("bdev_nvme_attach_controller"); n != 1 {
		t.Errorf("%d attaches", n)
	}
}

// If SNAP is slower than AnswerWithin, calls fail with errs.Busy in time, and a
// retry gets the device.
func TestSlowCreateIsAnsweredInTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{}, func(c *Config, _ *object.Config) { c.AnswerWithin = 50 * time.Millisecond })
	r.target(one, 1)
	r.snap.Inject(spdktest.Fault{Method: "bdev_nvme_attach_controller", Times: 1, Wait: time.Hour})
	err := r.refused(nvme("v", one), "is still in progress after")
	if !errors.Is(err, errs.Busy) {
		t.Errorf("%v", err)
	}
	var name string
	testkit.EventuallyNil(r.t, "the retry gets the device", func() (err error) {
		r.skipped.Add(int64(time.Hour)) // an attach waits after its call
		name, err = r.plugin.Create(t.Context(), nvme("v", one))
		return err
	})
	r.has("v", name)
	if n := r.asked("bdev_nvme_attach_controller"); n != 1 {
		t.Errorf("%d attaches", n)
	}
}

// The message of a busy volume has its id as it is.
func TestBusyVolume(t *testing.T) {
	t.Parallel()
	const id = "target-0:6b1c934f-4a27-4861-b861-2ec4709ad358"
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 1)
	r.snap.Inject(spdktest.Fault{Method: "bdev_nvme_attach_controller", Times: 1, Wait: time.Hour})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	first := r.begin(ctx, nvme(id, one))
	r.awaitCall("bdev_nvme_attach_controller", 1)
	cancel()
	if got := <-first; !errors.Is(got.err, context.Canceled) {
		t.Fatalf("a target that does not answer: %v", got.err)
	}
	other := nvme(id, one)
	other.Modes = append(other.Modes, 2)
	_, err := r.plugin.Create(t.Context(), other)
	testkit.WantError(t, "another request for the volume", err, errs.Busy, "volume "+id+" is busy: CreateDevice")
	r.skipped.Add(int64(time.Hour))
}

// After a lost response, a delete leaves nothing, and a retry succeeds.
func TestLostAnswers(t *testing.T) {
	for _, method := range []string{"bdev_nvme_attach_controller", "bdev_nvme_get_controllers", "bdev_get_bdevs"} {
		for what, fault := range map[string]spdktest.Fault{
			"before": {Method: method, Times: 1, Instead: spdktest.Drop},
			"after":  {Method: method, Times: 1, Then: spdktest.Drop},
		} {
			t.Run(method+" "+what, func(t *testing.T) {
				r := newRig(t, spdktest.Config{}, nil)
				r.target(one, 1)
				r.snap.Inject(fault)
				r.refused(nvme("v", one))
				r.hasNot("v", "")
				name := ""
				testkit.EventuallyNil(r.t, "the retry gets the device", func() (err error) {
					name, err = r.plugin.Create(t.Context(), nvme("v", one))
					return err
				})
				r.has("v", name)
				if method == "bdev_nvme_attach_controller" && what == "before" { // its completion was not seen
					r.refusedDelete("v")
					r.skip(3 * time.Minute)
				}
				r.delete("v", name)
				if got := r.controllers(); len(got) > 0 {
					t.Errorf("SNAP holds %q", got)
				}
			})
		}
	}
}

// SNAP restarts during each call of a create: the result is an error or an
// existing device, without left-over objects.
func TestSNAPRestartsDuringCreate(t *testing.T) {
	for _, method := range []string{"bdev_nvme_attach_controller", "bdev_nvme_get_controllers", "bdev_get_bdevs"} {
		for what, fault := range map[string]spdktest.Fault{
			"before": {Method: method, Times: 1, Instead: spdktest.Restart},
			"after":  {Method: method, Times: 1, Then: spdktest.Restart},
		} {
			t.Run(method+" "+what, func(t *testing.T) {
				r := newRig(t, spdktest.Config{}, nil)
				r.target(one, 1)
				r.snap.Inject(fault)
				if name, err := r.plugin.Create(t.Context(), nvme("v", one)); err == nil {
					t.Errorf("device %s of a process that is gone", name)
				}
				name := ""
				testkit.EventuallyNil(r.t, "the retry gets the device", func() (err error) {
					name, err = r.plugin.Create(t.Context(), nvme("v", one))
					return err
				})
				r.has("v", name)
				r.delete("v", name)
				r.empty()
			})
		}
	}
}

// A subsystem that another program attached is used unchanged, and kept.
func TestForeignController(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 2)
	attach := func(name, hostNQN string) {
		r.t.Helper()
		ask[[]string](r, "bdev_nvme_attach_controller", map[string]any{"name": name, "trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": "4420", "subnqn": one, "hostnqn": hostNQN})
	}
	attach("nvme_sample", "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111")
	r.refused(nvme("v", one, "nsId", "2", "hostNQN", host), "nvme_sample", "requests host "+host)
	name := r.create(nvme("v", one, "nsId", "2"))
	if name != "nvme_samplen2" {
		t.Errorf("device %s", name)
	}
	r.has("v", name)
	r.restart()
	r.has("v", name)
	r.delete("v", name)
	if got := r.controllers(); len(got) != 1 || got[0] != "nvme_sample" {
		t.Errorf("controllers %q, want the one that is not ours", got)
	}
	if _, objects := r.table.Count(); objects > 0 {
		t.Errorf("objects on record: %+v", r.table.Objects())
	}
}

// A controller with this plugin's name but of another subsystem is not changed.
func TestControllerOfAnotherSubsystem(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 1)
	name := strings.TrimSuffix(r.create(nvme("v", one)), "n1")
	r.delete("v", "")
	other := r.target("nqn.2016-06.io.spdk:other", 1)
	ask[[]string](r, "bdev_nvme_attach_controller", map[string]any{"name": name, "trtype": "TCP", "adrfam": "IPv4", "traddr": "192.0.2.1", "trsvcid": "4420", "subnqn": other.NQN})
	r.refused(nvme("v", one), other.NQN, "the name is used by another object")
	if got := r.controllers(); len(got) != 1 {
		t.Errorf("controllers %q", got)
	}
}

// A failed controller's device is absent; CreateDevice resets the controller
// and keeps the bdev.
func TestFailedController(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	s := r.target(one, 1)
	q := nvme("v", one, "ctrlLossTmo", "0")
	name := r.create(q)
	address := s.Addresses[0]
	r.network.SetReach(address, spdktest.Refused)
	testkit.EventuallyNil(r.t, "the controller fails", func() error {
		c := ask[[]spdk.NVMeController](r, "bdev_nvme_get_controllers", nil)
		if len(c) != 1 || c[0].Paths[0].State != spdk.ControllerFailed {
			return errors.New("it has not")
		}
		return nil
	})
	if _, err := r.plugin.Get(t.Context(), request.Device{Volume: "v", Name: name}); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "has failed") {
		t.Errorf("GetDevice: %v", err)
	}
	r.refused(q, "reset failed controller")
	r.network.SetReach(address, spdktest.Open)
	if got := r.create(q); got != name {
		t.Errorf("device %s, it was %s", got, name)
	}
	r.has("v", name)
	if n := r.asked("bdev_nvme_detach_controller"); n != 0 {
		t.Errorf("%d detaches", n)
	}
}

// One of two paths is sufficient; the other is attached later.
func TestMissingPath(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	s := r.target(one, 1)
	second := spdktest.Address{Transport: "TCP", Host: "192.0.2.2", Port: "4420"}
	s.Addresses = append(s.Addresses, second)
	r.network.Put(s)
	r.network.SetReach(second, spdktest.Refused)
	q := nvme("v", one, "targetAddr", "192.0.2.1,192.0.2.2")
	name := r.create(q)
	r.has("v", name)
	paths := func() int { return len(ask[[]spdk.NVMeController](r, "bdev_nvme_get_controllers", nil)[0].Paths) }
	r.awaitCall("bdev_nvme_attach_controller", 2) // immediately, concurrent with the call
	if paths() != 1 {
		t.Errorf("%d paths", paths())
	}
	r.network.SetReach(second, spdktest.Open)
	o := r.table.Objects()[0]
	if !r.plugin.attachMissing(t.Context(), o) || paths() != 2 {
		t.Errorf("%d paths after the missing one was attached", paths())
	}
	if o, _ := r.table.Object(o.ID); !o.UnansweredUntil.IsZero() {
		t.Errorf("an answered call is recorded as unanswered: %+v", o)
	}
	r.delete("v", name)
	r.empty()
}

// A silent path does not delay a device that another path serves.
func TestHangingPath(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{Timing: spdktest.Timing{Silent: time.Hour}}, nil)
	s := r.target(one, 2)
	second := spdktest.Address{Transport: "TCP", Host: "192.0.2.2", Port: "4420"}
	s.Addresses = append(s.Addresses, second)
	r.network.Put(s)
	r.network.SetReach(second, spdktest.Silent)
	name := r.create(nvme("v", one, "targetAddr", "192.0.2.1,192.0.2.2", "nsId", "1"))
	r.awaitCall("bdev_nvme_attach_controller", 2)
	r.has("v", name)
	deleted := make(chan error, 1)
	go func() { deleted <- r.plugin.Delete(t.Context(), request.Device{Volume: "v", Name: name}) }()
	testkit.Must(r.t, pass(r, deleted)) // waits for the attach in progress
	r.empty()
}

// A device that a host can see is not deleted.
func TestExposedDeviceStays(t *testing.T) {
	r := newRig(t, spdktest.Config{SNAP: true}, nil)
	r.target(one, 1)
	name := r.create(nvme("v", one))
	const emulated = "nqn.2022-10.io.nvda.nvme:dpf-v"
	ask[any](r, "nvme_subsystem_create", map[string]any{"nqn": emulated})
	ask[any](r, "nvme_namespace_create", map[string]any{"bdev_type": "spdk", "nqn": emulated, "nsid": 1, "uuid": uuidOf(one, 1), "bdev_name": name})
	err := r.plugin.Delete(t.Context(), request.Device{Volume: "v", Name: name})
	if !errors.Is(err, errs.Precondition) || !strings.Contains(err.Error(), emulated) {
		t.Errorf("DeleteDevice: %v", err)
	}
	r.has("v", name)
	ask[any](r, "nvme_namespace_destroy", map[string]any{"nqn": emulated, "nsid": 1})
	r.delete("v", name)
	r.empty()
}

// A pending volume does not block others.
func TestVolumesDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 1)
	silent := spdktest.Address{Transport: "TCP", Host: "192.0.2.66", Port: "4420"}
	r.network.SetReach(silent, spdktest.Dropped)
	r.snap.Inject(spdktest.Fault{Method: "bdev_nvme_attach_controller", Times: 1, Wait: time.Hour})
	stuck := r.begin(t.Context(), nvme("stuck", "nqn.2016-06.io.spdk:away"))
	r.awaitCall("bdev_nvme_attach_controller", 1)
	name := r.create(nvme("v", one))
	r.has("v", name)
	r.delete("v", name)
	select {
	case got := <-stuck:
		t.Errorf("the stuck one ended before: %v", got.err)
	default:
	}
	if got := pass(r, stuck); got.err == nil {
		t.Error("the stuck one got a device")
	}
	r.empty()
}

// After the record is lost, existing objects are reused, survive failed calls,
// and are not removed while exposed.
func TestLostRecord(t *testing.T) {
	r := newRig(t, spdktest.Config{SNAP: true}, nil)
	r.target(one, 2)
	a, b := nvme("a", one, "nsId", "1"), nvme("b", one, "nsId", "2")
	nameA, nameB := r.create(a), r.create(b)
	const emulated = "nqn.2022-10.io.nvda.nvme:dpf-b"
	ask[any](r, "nvme_subsystem_create", map[string]any{"nqn": emulated})
	ask[any](r, "nvme_namespace_create", map[string]any{"bdev_type": "spdk", "nqn": emulated, "nsid": 1, "uuid": uuidOf(one, 2), "bdev_name": nameB})
	r.stop()
	testkit.Must(r.t, os.Remove(filepath.Join(r.dir, "dpu.db")))
	r.start()
	r.hasNot("b", nameB)
	r.refused(nvme("a", one, "nsId", "9"), "no namespace with nsId 9")
	if got := r.controllers(); len(got) != 1 {
		t.Fatalf("a call that failed removed what it found: %q", got)
	}
	if got := r.create(a); got != nameA {
		t.Errorf("device %s, it was %s", got, nameA)
	}
	if err := r.plugin.Delete(t.Context(), request.Device{Volume: "a"}); err == nil || !strings.Contains(err.Error(), emulated) {
		t.Errorf("DeleteDevice, though the controller carries what a host sees: %v", err)
	}
	if got := r.create(b); got != nameB {
		t.Errorf("device %s, it was %s", got, nameB)
	}
	r.delete("a", "")
	r.has("b", nameB)
	ask[any](r, "nvme_namespace_destroy", map[string]any{"nqn": emulated, "nsid": 1})
	r.delete("b", nameB)
	r.empty()
}

// A subsystem is attached as one host.
func TestOneHostPerSubsystem(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 2)
	name := r.create(nvme("a", one, "nsId", "1"))
	r.refused(nvme("b", one, "nsId", "2", "hostNQN", "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"), "need the same hostNQN")
	r.has("a", name)
	if got := r.controllers(); len(got) != 1 {
		t.Errorf("controllers %q", got)
	}
	r.delete("a", "")
	r.empty()
}

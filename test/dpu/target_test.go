package dpu

import (
	"testing"
	"time"

	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

// A target is unreachable, in each way that SNAP can see: the call returns,
// leaves nothing, and disturbs no other; when the target is back the same call
// creates the device.
func TestTargetUnreachable(t *testing.T) {
	t.Parallel()
	timing, program := spdktest.Timing{Silent: 500 * time.Millisecond}, hasty(t)
	for name, reach := range map[string]spdktest.Reach{"refused": spdktest.Refused, "silent": spdktest.Silent, "dropped": spdktest.Dropped} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, spdktest.Config{SNAP: true, Timing: timing}, program)
			// Dropped packets take SNAP longer than the plugin waits.
			testkit.Must(s.t, s.rpc.Do(s.ctx, "bdev_nvme_set_options", map[string]any{"tcp_connect_timeout_ms": 2000}))
			s.start()
			beside := s.neighbour(s.file("neighbour"))
			alone := map[string]string{beside.id: beside.device}
			s.target("away", 1)
			v := s.namespace("victim", "away", 1)
			s.network.SetReach(targetAddress(), reach)
			_, err := s.try(v)
			s.refused(err, "volume victim")
			s.absent(v, "")
			s.awaitAgreement(alone, beside.volume)
			s.remove(v, "")
			_, err = s.try(v)
			s.refused(err)
			s.network.SetReach(targetAddress(), spdktest.Open)
			device := s.create(v)
			both := map[string]string{beside.id: beside.device, v.id: device}
			s.awaitAgreement(both, v, beside.volume)

			// The target of an existing device goes away and comes back; the
			// device stays.
			s.network.SetReach(targetAddress(), reach)
			s.awaitAgreement(both, v, beside.volume)
			if again := s.create(v); again != device {
				t.Errorf("device %s, it was %s", again, device)
			}
			s.network.SetReach(targetAddress(), spdktest.Open)
			s.awaitAgreement(both, v, beside.volume)

			// The target is away during the deletion.
			s.network.SetReach(targetAddress(), reach)
			s.remove(v, device)
			s.awaitAgreement(alone, beside.volume)
			s.unharmed(beside)
			s.hide(beside)
			s.remove(beside.volume, "")
			s.empty()
			s.forgotten()
		})
	}
}

// CreateDevice reconnects a controller that has failed for good when its target
// is back; until then GetDevice does not report its device.
func TestFailedControllerIsReconnected(t *testing.T) {
	t.Parallel()
	s := newSite(t, spdktest.Config{SNAP: true}, plain)
	s.start()
	s.target("a", 1)
	v := s.namespace("v", "a", 1)
	device := s.create(v)
	controllers, err := s.rpc.NVMeControllers(s.ctx)
	testkit.Must(s.t, err)
	s.network.SetReach(targetAddress(), spdktest.Refused)
	if !s.snap.Fail(controllers[0].Name) {
		t.Fatalf("there is no controller %s", controllers[0].Name)
	}
	if _, err := s.plugin.Get(s.ctx, v.id, device); err == nil {
		t.Error("GetDevice succeeds for a failed controller")
	}
	_, err = s.try(v)
	s.refused(err, subnqn("a"))
	s.network.SetReach(targetAddress(), spdktest.Open)
	if again := s.create(v); again != device {
		t.Errorf("device %s, it was %s", again, device)
	}
	s.awaitAgreement(map[string]string{v.id: device}, v)
	s.remove(v, device)
	s.empty()
}

// A subsystem whose namespaces appear late: one that appears in time is used, a
// later one by a retry, and nothing is left in between.
func TestLateNamespaces(t *testing.T) {
	t.Parallel()
	s := newSite(t, spdktest.Config{SNAP: true}, plain)
	s.start()
	s.target("empty", 0)
	v := s.namespace("v", "empty", 1)
	_, err := s.try(v)
	s.refused(err, "no namespace", "it has no namespaces")
	s.empty()
	s.target("empty", 1)
	s.awaitAgreement(map[string]string{v.id: s.create(v)}, v)

	sub := spdktest.Subsystem{NQN: subnqn("late"), AnyHost: true, Addresses: []spdktest.Address{targetAddress()},
		Namespaces: []spdktest.Namespace{
			{ID: 1, UUID: namespaceUUID("late", 1)}, {ID: 2, UUID: namespaceUUID("late", 2), After: time.Second},
		}}
	s.network.Put(sub)
	w := s.namespace("w", "late", 2)
	name := testkit.Value(s.try(w))(s.t) // the subsystem's other namespace is not used
	testkit.Must(s.t, s.usable(w, name))
	s.remove(v, "")
	s.remove(w, "")
	s.empty()
}

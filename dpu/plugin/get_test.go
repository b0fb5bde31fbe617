package plugin

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

// A namespace with another UUID is refused until the device is deleted or the
// context accepts it; also after restarts of SNAP or the plugin.
func TestReplacedNamespace(t *testing.T) {
	t.Parallel()
	r := newRig(t, spdktest.Config{SNAP: true}, func(_ *Config, c *object.Config) { c.TCP = object.TCPUpstream })
	s := r.target(one, 1)
	q := nvme("v", one, "nsId", "1")
	name := r.create(q)
	first, second := uuidOf(one, 1), uuidOf(one, 99)
	replace := func(uuid string) {
		t.Helper()
		without := s
		without.Namespaces = nil
		r.network.Put(without)
		testkit.EventuallyNil(r.t, "SNAP sees that the namespace has gone", func() error {
			if left := r.bdevs(); len(left) > 0 {
				return errors.New(left[0])
			}
			return nil
		})
		s.Namespaces[0].UUID = uuid
		r.network.Put(s)
	}
	refused := func() {
		t.Helper()
		if err := r.refused(q, first, second, "acceptUuidChange"); !errors.Is(err, errs.Precondition) {
			t.Errorf("%v, want errs.Precondition", err)
		}
	}
	replace(second)
	testkit.Must(r.t, r.snap.Restart())
	refused()
	r.hasNot("v", name)
	r.restart()
	refused()
	replace(first)
	r.has("v", r.create(q))

	// While the controller stays attached.
	replace(second)
	testkit.EventuallyNil(r.t, "SNAP sees the other namespace", func() error {
		if len(r.bdevs()) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	testkit.EventuallyNil(r.t, "GetDevice sees it too", func() error {
		if _, err := r.plugin.Get(t.Context(), request.Device{Volume: "v"}); !errors.Is(err, ErrNotFound) {
			return fmt.Errorf("GetDevice: %w", err)
		}
		return nil
	})
	detached := r.asked("bdev_nvme_detach_controller")
	refused()
	if r.asked("bdev_nvme_detach_controller") != detached {
		t.Error("the controller was detached for a call that is refused")
	}
	accepting := nvme("v", one, "nsId", "1", "acceptUuidChange", "true")
	r.has("v", r.create(accepting))
	r.has("v", r.create(q)) // recorded
	r.delete("v", name)

	r.create(q)
	first, second = second, first
	replace(second)
	testkit.Must(r.t, r.snap.Restart())
	refused()
	r.delete("v", name)
	r.has("v", r.create(q))
	r.delete("v", "")
	r.empty()
}

// While SNAP is slow, GetDevice returns the last known device for Grace.
func TestHeartbeatWhileSNAPIsSlow(t *testing.T) {
	for look := 30 * time.Millisecond; !heartbeatWhileSNAPIsSlow(t, look); look *= 4 {
		if look > 10*time.Second {
			t.Fatal("this machine does not look in time")
		}
	}
}

// heartbeatWhileSNAPIsSlow reports whether look was within the grace.
func heartbeatWhileSNAPIsSlow(t *testing.T, look time.Duration) bool {
	grace := 13 * look
	r := newRig(t, spdktest.Config{}, func(c *Config, _ *object.Config) { c.LookWithin, c.Grace = look, grace })
	r.target(one, 1)
	var good time.Time // at or before the last success
	var name string
	testkit.EventuallyNil(r.t, "a device, though SNAP has no longer to answer than a look", func() (err error) {
		good = time.Now()
		name, err = r.plugin.Create(t.Context(), nvme("v", one))
		return err
	})
	r.snap.Inject(spdktest.Fault{Method: "bdev_get_bdevs", Wait: time.Hour})
	d, err := r.plugin.Get(t.Context(), request.Device{Volume: "v", Name: name})
	within := time.Since(good) < grace
	if within && (err != nil || d.Name != name) {
		t.Errorf("%q, %v", d.Name, err)
	}
	testkit.EventuallyNil(r.t, "the grace ends", func() error {
		_, err := r.plugin.Get(t.Context(), request.Device{Volume: "v", Name: name})
		if err == nil || errors.Is(err, ErrNotFound) {
			return errors.New("GetDevice answers")
		}
		return nil
	})
	r.snap.Clear()
	testkit.EventuallyNil(r.t, "SNAP is quick again", func() error {
		_, err := r.plugin.Get(t.Context(), request.Device{Volume: "v", Name: name})
		return err
	})
	return within
}

// While SNAP is down, GetDevice fails at once.
func TestHeartbeatWhileSNAPIsDead(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 1)
	name := r.create(nvme("v", one))
	r.has("v", name)
	r.snap.Kill()
	if _, err := r.plugin.Get(t.Context(), request.Device{Volume: "v", Name: name}); err == nil || errors.Is(err, ErrNotFound) {
		t.Errorf("GetDevice: %v, want an error other than ErrNotFound", err)
	}
	if ready, err := r.plugin.Ready(t.Context()); ready || err != nil {
		t.Errorf("Ready: %t, %v", ready, err)
	}
	if err := r.plugin.Delete(t.Context(), request.Device{Volume: "v"}); err == nil {
		t.Error("DeleteDevice succeeded while SNAP was down")
	}
	testkit.Must(r.t, r.snap.Start())
	r.hasNot("v", name)
	testkit.EventuallyNil(r.t, "ready", func() error {
		if ready, err := r.plugin.Ready(t.Context()); !ready {
			return errors.Join(errors.New("not ready"), err)
		}
		return nil
	})
	r.delete("v", name)
	r.empty()
}

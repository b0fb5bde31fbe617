package plugin

import (
	"errors"
	"testing"
	"time"

	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/spdk/spdktest"
)

// While SNAP is slow GetDevice gives the last good answer, for a while; a device
// that was never seen good gets none.
func TestHeartbeatWhileSNAPIsSlow(t *testing.T) {
	for look := 30 * time.Millisecond; !heartbeatWhileSNAPIsSlow(t, look); look *= 4 {
		if look > 10*time.Second {
			t.Fatal("this machine does not look in time")
		}
	}
}

// heartbeatWhileSNAPIsSlow reports whether a look came within the grace.
func heartbeatWhileSNAPIsSlow(t *testing.T, look time.Duration) bool {
	grace := 13 * look
	r := newRig(t, spdktest.Config{}, func(c *Config, _ *object.Config) { c.LookWithin, c.Grace = look, grace })
	r.target(one, 1)
	var good time.Time // not after the last good look
	var name string
	r.eventually("a device, though SNAP has no longer to answer than a look", func() (err error) {
		good = time.Now()
		name, err = r.plugin.Create(t.Context(), nvme("v", one))
		return err
	})
	r.snap.Order(spdktest.Fault{Method: "bdev_get_bdevs", Wait: time.Hour})
	d, err := r.plugin.Get(t.Context(), request.Device{Volume: "v", Name: name})
	within := time.Since(good) < grace
	if within && (err != nil || d.Name != name) {
		t.Errorf("%q, %v", d.Name, err)
	}
	r.eventually("the grace ends", func() error {
		_, err := r.plugin.Get(t.Context(), request.Device{Volume: "v", Name: name})
		if err == nil || errors.Is(err, ErrAbsent) {
			return errors.New("GetDevice answers")
		}
		return nil
	})
	r.snap.Clear()
	r.eventually("SNAP is quick again", func() error {
		_, err := r.plugin.Get(t.Context(), request.Device{Volume: "v", Name: name})
		return err
	})
	return within
}

// A dead SNAP process is no slow one: nobody is told that a device is there.
func TestHeartbeatWhileSNAPIsDead(t *testing.T) {
	r := newRig(t, spdktest.Config{}, nil)
	r.target(one, 1)
	name := r.create(nvme("v", one))
	r.has("v", name)
	r.snap.Kill()
	if _, err := r.plugin.Get(t.Context(), request.Device{Volume: "v", Name: name}); err == nil || errors.Is(err, ErrAbsent) {
		t.Errorf("GetDevice: %v, want that it cannot be told", err)
	}
	if ready, err := r.plugin.Ready(t.Context()); ready || err != nil {
		t.Errorf("Ready: %t, %v", ready, err)
	}
	if err := r.plugin.Delete(t.Context(), request.Device{Volume: "v"}); err == nil {
		t.Error("DeleteDevice is OK, and nobody can tell")
	}
	r.must(r.snap.Start())
	r.hasNot("v", name)
	r.eventually("ready", func() error {
		if ready, err := r.plugin.Ready(t.Context()); !ready {
			return errors.Join(errors.New("not ready"), err)
		}
		return nil
	})
	r.delete("v", name)
	r.empty()
}

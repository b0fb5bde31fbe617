package plugin

import (
	"errors"
	"fmt"
	"testing"

	"github.com/cleatproject/cleat/dpu/object"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk/spdktest"
)

// A namespace that was replaced under its number is not given to the volume until
// that is deleted, or its context accepts it; also when SNAP or the plugin were
// restarted meanwhile.
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
		r.eventually("SNAP sees that the namespace has gone", func() error {
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
	r.must(r.snap.Restart())
	refused()
	r.hasNot("v", name)
	r.restart()
	refused()
	replace(first)
	r.has("v", r.create(q))

	// While the controller stays attached.
	replace(second)
	r.eventually("SNAP sees the other namespace", func() error {
		if len(r.bdevs()) == 0 {
			return errors.New("not yet")
		}
		return nil
	})
	r.eventually("GetDevice sees it too", func() error {
		if _, err := r.plugin.Get(t.Context(), request.Device{Volume: "v"}); !errors.Is(err, ErrAbsent) {
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
	r.has("v", r.create(q)) // the UUID on record is the new one
	r.delete("v", name)

	r.create(q)
	first, second = second, first
	replace(second)
	r.must(r.snap.Restart())
	refused()
	r.delete("v", name)
	r.has("v", r.create(q))
	r.delete("v", "")
	r.empty()
}

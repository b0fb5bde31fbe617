package dpu

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// kind is a kind of device.
type kind struct {
	name   string
	snap   spdktest.Config
	volume func(s *site, id string) volume
	// objects limits the SNAP objects of one device.
	objects int
}

func kinds() []kind {
	upstream := spdktest.Config{SNAP: true, RBD: true}
	fork := spdktest.Config{Flavour: spdktest.Fork, SNAP: true}
	return []kind{
		{"NVMe", upstream, func(s *site, id string) volume {
			s.target(id, 1)
			return s.namespace(id, id, 1)
		}, 1},
		{"NVMe of one subsystem", fork, func(s *site, id string) volume {
			s.target("shared", 4)
			return s.namespace(id, "shared", map[string]int{"neighbour": 1, "victim": 2}[id])
		}, 1},
		{"NVMe with keys", upstream, func(s *site, id string) volume {
			s.target(id, 1)
			return s.keyed(id, id, 1)
		}, 3},
		{"AIO", spdktest.Config{Flavour: spdktest.Fork, SNAP: true, Envelope: true}, (*site).file, 1},
		{"RBD", upstream, (*site).rbd, 2},
		{"directory", fork, (*site).directory, 2},
	}
}

// armed returns the environment that kills the plugin at the nth hit of a crash
// point, and the file that records the hit.
func (s *site) armed(point string, n int) (env []string, file string) {
	file = filepath.Join(s.dir, "hit")
	_ = os.Remove(file)
	return []string{fmt.Sprintf("CLEAT_CRASHPOINT=%s=%d", point, n), "CLEAT_CRASHPOINT_LOG=" + file}, file
}

// died reports whether the plugin died at the point; if not, the call did not
// reach the point, and must have succeeded.
func (s *site) died(point, file string, answer error) bool {
	s.t.Helper()
	hit, err := os.ReadFile(file)
	if err != nil {
		if answer != nil {
			s.t.Fatalf("%s was not reached, and the call returned: %v\n%s", point, answer, last(s.plugin.log(), 4000))
		}
		s.kill()
		return false
	}
	if got := strings.TrimSpace(string(hit)); got != point {
		s.t.Fatalf("the plugin died at %s, not at %s", got, point)
	}
	testkit.Must(s.t, s.plugin.killed())
	if answer == nil {
		s.t.Errorf("a call was answered with OK by a plugin that died at %s", point)
	}
	return true
}

// hits counts how often each point was hit.
type hits struct {
	mu sync.Mutex
	of map[string]int
}

func (h *hits) add(point string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.of[point]++
}

// The plugin is killed between any two steps of CreateDevice and DeleteDevice,
// for each kind of device, beside a device that a host uses. Then the same
// call, the opposite one, or no call follows: in the end SNAP has exactly the
// acknowledged devices. CI runs each kind with each point and one sequel;
// sequels rotate over kinds and points.
func TestKilledBetweenSteps(t *testing.T) {
	t.Parallel()
	all := testkit.CrashPoints(t, "dpu", "*")
	program := workload.BuildWith(t, unansweredFor("2 * time.Second")) // the plugin waits for an attach that was not sent
	h := &hits{of: map[string]int{}}
	t.Run("kinds", func(t *testing.T) {
		for i, k := range kinds() {
			t.Run(k.name, func(t *testing.T) {
				t.Parallel()
				killKind(t, i, k, program, all, h)
			})
		}
	})
	for _, point := range all {
		if h.of[point] == 0 {
			t.Errorf("%s was never reached", point)
		}
	}
	t.Logf("kills: %v", h.of)
}

func killKind(t *testing.T, number int, k kind, program string, points []string, h *hits) {
	s := newSite(t, k.snap, program)
	s.start()
	beside := s.neighbour(k.volume(s, "neighbour"))
	s.stop()
	v := k.volume(s, "victim")
	for i, point := range points {
		for n := 1; n == 1 || strings.HasSuffix(point, ".object") && n <= k.objects; n++ {
			for _, next := range soak.Pick(1, nexts(number+i+n)) {
				t.Run(fmt.Sprintf("%s %d, then %s", point, n, next.name), func(t *testing.T) {
					s := s.of(t)
					if s.killAt(point, n, v, beside, next) {
						h.add(point)
					}
				})
			}
		}
	}
	s.start()
	s.hide(beside)
	s.remove(beside.volume, beside.device)
	s.empty()
}

// next is the sequel of a kill.
type next struct {
	name   string
	create bool // CreateDevice
	remove bool // DeleteDevice
}

// nexts returns all sequels, starting with another one for each number.
func nexts(number int) []next {
	all := []next{{"CreateDevice", true, false}, {"DeleteDevice", false, true}, {"nothing", false, false}}
	first := number % len(all)
	return slices.Concat(all[first:], all[:first])
}

// killAt creates and deletes the device of v with one kill; false: the calls
// did not reach the point n times.
func (s *site) killAt(point string, n int, v volume, beside neighbour, after next) (hit bool) {
	s.t.Helper()
	env, file := s.armed(point, n)
	s.start(env...)
	device, err := s.try(v)
	if !strings.HasPrefix(point, "dpu-create.") && err == nil {
		err = s.plugin.Delete(s.ctx, v.id, device)
	}
	hit = s.died(point, file, err)
	s.unharmedInSNAP(beside)
	s.start()
	devices := map[string]string{beside.id: beside.device}
	switch {
	case after.create:
		devices[v.id] = s.create(v)
	case after.remove:
		s.remove(v, "")
	default:
		s.kept(point, hit, v, devices)
	}
	s.awaitAgreement(devices, v, beside.volume)
	s.unharmed(beside)
	if device, has := devices[v.id]; has {
		s.remove(v, device)
		s.absent(v, device)
		delete(devices, v.id)
		s.awaitAgreement(devices, v, beside.volume)
	}
	s.stop()
	return hit
}

// kept adds the device that was recorded as created before it could be
// acknowledged: a retry returns it.
func (s *site) kept(point string, hit bool, v volume, devices map[string]string) {
	s.t.Helper()
	listed := testkit.Value(s.listed())(s.t)
	device, has := listed[v.id]
	switch want := point == "dpu-create.committed" && hit || !hit && strings.HasPrefix(point, "dpu-create."); {
	case has && !want:
		s.t.Errorf("device %s of volume %s is listed; it was not created when the plugin died", device, v.id)
	case want && !has:
		s.t.Errorf("volume %s has no device, and its record says created", v.id)
	case has:
		devices[v.id] = device
	}
}

package dpu

import (
	"fmt"
	"slices"
	"testing"

	"errors"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/crash/workload"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// hasty builds a plugin with short timeouts.
func hasty(t testing.TB) string {
	return workload.BuildWith(t,
		workload.Replacement{File: "cmd/cleat/dpu_serve.go", Old: "const snapTimeout = 2 * time.Minute", New: "const snapTimeout = 700 * time.Millisecond"},
		workload.Replacement{File: "dpu/object/object.go", Old: "c.AttachTimeout = 150 * time.Second", New: "c.AttachTimeout = 700 * time.Millisecond"},
		unansweredFor("3 * time.Second"),
		workload.Replacement{File: "dpu/plugin/plugin.go", Old: "&c.RetryEvery: time.Second", New: "&c.RetryEvery: 50 * time.Millisecond"},
	)
}

// unansweredFor sets how long a build waits for SNAP calls without a response.
func unansweredFor(attach string) workload.Replacement {
	return workload.Replacement{
		File: "dpu/plugin/unanswered.go",
		Old:  "return 3 * time.Minute\n\t}\n\treturn 30 * time.Second",
		New:  "return " + attach + "\n\t}\n\treturn 2 * time.Second",
	}
}

// failure is a fault of one request.
type failure struct {
	name     string
	fault    spdktest.Fault
	restarts bool
}

// failures returns all of them, starting with another one for each number.
func failures(number int) []failure {
	all := []failure{
		{"SNAP restarts before the request runs", spdktest.Fault{Instead: spdktest.Restart}, true},
		{"the connection drops before the response", spdktest.Fault{Then: spdktest.Drop}, false},
		{"the request never runs", spdktest.Fault{Instead: spdktest.Silence}, false},
		{"the request is refused", spdktest.Fault{Error: &spdktest.Error{Code: -12, Message: "Cannot allocate memory"}}, false},
		{"SNAP restarts before the response", spdktest.Fault{Then: spdktest.Restart}, true},
		{"the connection drops before the request runs", spdktest.Fault{Instead: spdktest.Drop}, false},
		{"no response", spdktest.Fault{Then: spdktest.Silence}, false},
	}
	first := number % len(all)
	return slices.Concat(all[first:], all[:first])
}

// asked is a request of the plugin: the one after `before` others of its
// method.
type asked struct {
	method string
	before int
}

// requests returns the requests sent during do.
func (s *site) requests(do func()) []asked {
	s.snap.Forget()
	do()
	count := map[string]int{}
	var all []asked
	for _, c := range s.snap.Calls() {
		// Reconnects and version queries happen at any time.
		if c.Method == "framework_wait_init" || c.Method == "spdk_get_version" {
			continue
		}
		all = append(all, asked{c.Method, count[c.Method]})
		count[c.Method]++
	}
	return all
}

// Each request of a CreateDevice and of a DeleteDevice fails in each way, for
// each kind of device. After a retry the device is created, or deleted, and
// nothing else exists. A restarted SNAP process has no device until
// CreateDevice is repeated. In CI each request fails in three of the ways,
// which rotate.
func TestEachRequestFails(t *testing.T) {
	t.Parallel()
	program := hasty(t)
	for number, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, k.snap, program)
			s.start()
			beside := s.neighbour(k.volume(s, "neighbour"))
			v := k.volume(s, "victim")
			var device string
			var creates []asked
			for range 20 { // such short timeouts can expire on a busy machine
				if creates = s.requests(func() { device, _ = s.try(v) }); device != "" {
					break
				}
				s.remove(v, "")
				s.awaitAgreement(map[string]string{beside.id: beside.device}, beside.volume)
			}
			removes := s.requests(func() { _ = s.plugin.Delete(s.ctx, v.id, device) })
			if device == "" || len(creates) == 0 || len(removes) == 0 {
				t.Fatalf("device %q takes the requests %v, and %v to remove", device, creates, removes)
			}
			for i, r := range creates {
				for _, f := range soak.Pick(3, failures(number+i)) {
					t.Run(fmt.Sprintf("CreateDevice %s %d %s", r.method, r.before, f.name), func(t *testing.T) {
						s.of(t).createFails(r, f, v, &beside)
					})
				}
			}
			for i, r := range removes {
				for _, f := range soak.Pick(3, failures(number+len(creates)+i)) {
					t.Run(fmt.Sprintf("DeleteDevice %s %d %s", r.method, r.before, f.name), func(t *testing.T) {
						s.of(t).removeFails(r, f, v, &beside)
					})
				}
			}
			s.snap.Clear()
			s.hide(beside)
			s.remove(beside.volume, beside.device)
			s.empty()
			s.forgotten()
		})
	}
}

// fails injects a failure of a request.
func (s *site) fails(r asked, f failure) {
	s.snap.Forget()
	f.fault.Method, f.fault.Skip, f.fault.Times = r.method, r.before, 1
	s.snap.Inject(f.fault)
}

// failed checks that the request was sent, and clears the fault.
func (s *site) failed(r asked) {
	s.t.Helper()
	n := 0
	for _, c := range s.snap.Calls() {
		if c.Method == r.method {
			n++
		}
	}
	if n <= r.before {
		s.t.Errorf("%s was sent %d times, so nothing failed", r.method, n)
	}
	s.snap.Clear()
}

func (s *site) createFails(r asked, f failure, v volume, beside *neighbour) {
	s.t.Helper()
	s.fails(r, f)
	device := s.create(v)
	s.failed(r)
	if f.restarts {
		s.madeAgain(beside)
	}
	devices := map[string]string{beside.id: beside.device, v.id: device}
	s.awaitAgreement(devices, v, beside.volume)
	s.unharmed(*beside)
	s.remove(v, device)
	delete(devices, v.id)
	s.awaitAgreement(devices, beside.volume)
}

func (s *site) removeFails(r asked, f failure, v volume, beside *neighbour) {
	s.t.Helper()
	device := s.create(v)
	s.fails(r, f)
	s.remove(v, device)
	s.failed(r)
	s.absent(v, device)
	if f.restarts {
		s.madeAgain(beside)
	}
	s.awaitAgreement(map[string]string{beside.id: beside.device}, beside.volume)
	s.unharmed(*beside)
}

// madeAgain checks that a device is absent after a restart of SNAP, until
// CreateDevice is repeated.
func (s *site) madeAgain(n *neighbour) {
	s.t.Helper()
	s.absent(n.volume, n.device)
	was := n.device
	if *n = s.neighbour(n.volume); n.device != was {
		s.t.Errorf("volume %s has device %s after a restart of SNAP, it had %s", n.id, n.device, was)
	}
}

// statusReport is the plugin's part of /status.
type statusReport struct {
	Objects   int               `json:"objects"`
	Leftovers map[string]string `json:"leftovers"`
}

func (s *site) status() (statusReport, error) {
	var found struct {
		DPU *statusReport `json:"dpu"`
	}
	err := server.Ask(s.ctx, s.telemetry(), "/status", &found)
	if err == nil && found.DPU == nil {
		err = errors.New("the status has no part dpu")
	}
	if err != nil {
		return statusReport{}, err
	}
	return *found.DPU, nil
}

// forgotten waits until the plugin reports no records and no pending clean-up.
func (s *site) forgotten() {
	s.t.Helper()
	s.eventually("no records", func() error {
		found, err := s.status()
		if err == nil && (found.Objects > 0 || len(found.Leftovers) > 0) {
			err = fmt.Errorf("the plugin's status: %+v", found)
		}
		return err
	})
}

// SNAP restarts without calls in progress: no device exists until CreateDevice
// is repeated, which returns the same device; the others can be deleted. The
// plugin can be killed meanwhile and restart before or after SNAP.
func TestSNAPRestarts(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, k.snap, plain)
			s.start()
			v, other := k.volume(s, "victim"), k.volume(s, "neighbour")
			device, second := s.create(v), s.create(other)
			for _, way := range []struct {
				name string
				do   func()
			}{
				// A call on the lost connection is to be repeated.
				{"alone", func() { testkit.Must(s.t, s.snap.Restart()); testkit.Must(s.t, s.plugin.ready(s.ctx)) }},
				{"then the plugin", func() { testkit.Must(s.t, s.snap.Restart()); s.kill(); s.start() }},
				{"while the plugin is away", func() { s.kill(); testkit.Must(s.t, s.snap.Restart()); s.start() }},
				{"after the plugin, which waits for it", func() {
					s.snap.Kill()
					s.kill()
					s.begin()
					if ready, _, err := s.plugin.Probe(s.ctx); err != nil || ready {
						t.Errorf("without SNAP the plugin is ready: %t, %v", ready, err)
					}
					s.refused(onlyErr(s.plugin.Get(s.ctx, v.id, device)), "snap.sock")
					testkit.Must(s.t, s.snap.Start())
					testkit.Must(s.t, s.plugin.ready(s.ctx))
				}},
			} {
				t.Run(way.name, func(t *testing.T) {
					s := s.of(t)
					way.do()
					s.absent(v, device)
					s.absent(other, second)
					if got := s.create(v); got != device {
						t.Errorf("device %s, it was %s", got, device)
					}
					s.absent(other, second) // also when both are of one controller
					s.remove(other, second)
					s.awaitAgreement(map[string]string{v.id: device}, v, other)
					if got := s.create(other); got != second {
						t.Errorf("device %s, it was %s", got, second)
					}
					s.awaitAgreement(map[string]string{v.id: device, other.id: second}, v, other)
				})
			}
			s.remove(v, "")
			s.remove(other, second)
			s.empty()
		})
	}
}

func onlyErr[T any](_ T, err error) error { return err }

// Probe reports that SNAP is unavailable, and that it is available again.
func TestProbeFollowsSNAP(t *testing.T) {
	t.Parallel()
	s := newSite(t, spdktest.Config{WaitForRPC: true}, plain)
	s.begin()
	probe := func(want bool) {
		t.Helper()
		s.eventually(fmt.Sprintf("Probe answers %t", want), func() error {
			ready, reported, err := s.plugin.Probe(s.ctx)
			if err == nil && (!reported || ready != want) {
				err = fmt.Errorf("ready %t, reported %t", ready, reported)
			}
			return err
		})
	}
	probe(false) // SNAP is not initialised
	testkit.Must(s.t, s.rpc.Do(s.ctx, "framework_start_init", nil))
	probe(true)
	s.snap.Kill()
	probe(false)
	testkit.Must(s.t, s.snap.Start())
	probe(false)
	testkit.Must(s.t, s.rpc.Do(s.ctx, "framework_start_init", nil))
	probe(true)
	all := testkit.Value(s.plugin.Capabilities(s.ctx))(s.t)
	if want := []string{"TYPE_CREATE_DELETE_BLOCK_DEVICE", "TYPE_CREATE_DELETE_FS_DEVICE", "TYPE_GET_DEVICE_STATS", "TYPE_LIST_DEVICES"}; !slices.Equal(slices.Sorted(slices.Values(all.All)), want) {
		t.Errorf("capabilities %q, want %q", all.All, want)
	}
}

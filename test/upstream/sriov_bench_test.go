package upstream

import (
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/test/testkit"
)

// How fast the kubelet's allocatable devices follow the control of the devices:
// the plugin and the config daemon are processes, and so is the device manager,
// which is polled every 10 ms. Times are from just before the cause to the line
// with the change.

// sriovRounds is the number of rounds of repeatable measurements.
const sriovRounds = 30

// spread collects durations.
type spread []time.Duration

func (s *spread) since(at time.Time, k *sriovKubelet, holds func([2]int64) bool) {
	*s = append(*s, max(0, k.when(at, holds).Sub(at)))
}

// report prints the median and the 99th percentile.
func (s spread) report(b *testing.B) {
	b.Helper()
	if len(s) == 0 {
		return
	}
	sorted := slices.Sorted(slices.Values(s))
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(milliseconds(sorted[len(sorted)/2]), "p50-ms")
	b.ReportMetric(milliseconds(sorted[len(sorted)*99/100]), "p99-ms")
	b.ReportMetric(float64(len(s)), "times")
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// when returns the time when the kubelet first reported a condition after a
// moment.
func (k *sriovKubelet) when(after time.Time, holds func([2]int64) bool) time.Time {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.past {
		if c.at.After(after) && holds(c.counts[sriovResource]) {
			return c.at
		}
	}
	return after
}

func none(n [2]int64) bool { return n[1] == 0 }

func all(count int) func([2]int64) bool {
	return func(n [2]int64) bool { return n == [2]int64{int64(count), int64(count)} }
}

// spreads reports each spread as a benchmark.
func spreads(b *testing.B, of ...any) {
	b.Helper()
	for i := 0; i < len(of); i += 2 {
		b.Run(of[i].(string), func(b *testing.B) { of[i+1].(*spread).report(b) })
	}
}

// BenchmarkSriovControl measures control by a bare client: only the plugin and
// the kubelet contribute.
func BenchmarkSriovControl(b *testing.B) {
	for _, c := range []struct {
		name   string
		vfs    int
		way    string
		rounds int
	}{
		{"registration=register/functions=64", 64, "register", sriovRounds},
		{"registration=register/functions=2048", 2048, "register", 10},
		{"registration=watcher/functions=64", 64, "watcher", sriovRounds},
	} {
		var first, again, closed, disabled, acknowledged spread
		measure := func(b *testing.B) {
			s := newSriovSite(b, c.vfs)
			flags := []string{"--registration", c.way, "--registration-dir", s.registry}
			s.awaitServing()
			for g := range int64(c.rounds) {
				s.serve(flags...)
				s.awaitStatus("waiting", func(g gate.Status) bool { return g.Holding == gate.Waiting })
				if c.way == "watcher" {
					// The kubelet has released the plugin before, at a random point of its second.
					rest := time.NewTimer(2*time.Second + time.Duration(g)*time.Second/time.Duration(c.rounds))
					<-rest.C
				}
				began := time.Now()
				s.propose(g + 1)
				s.awaitCounts(int64(c.vfs), int64(c.vfs))
				first.since(began, s.kubelet, all(c.vfs))
				s.server.terminate()
				s.awaitCounts(0, 0)
			}
			s.serve(flags...)
			leave := s.propose(1)
			s.awaitCounts(int64(c.vfs), int64(c.vfs))
			leave()
			s.awaitCounts(0, 0)
			client, err := control.Dial(b.Context(), s.socket)
			if err != nil {
				b.Fatal(err)
			}
			defer client.Close()
			for g := range int64(2 * c.rounds) {
				began := time.Now()
				leave := s.propose(g + 1)
				s.awaitCounts(int64(c.vfs), int64(c.vfs))
				again.since(began, s.kubelet, all(c.vfs))
				began = time.Now()
				if g%2 == 0 {
					leave()
					s.awaitAllocatable(0)
					closed.since(began, s.kubelet, none)
				} else {
					if _, err := client.Disable(b.Context(), ""); err != nil {
						b.Fatal(err)
					}
					acknowledged = append(acknowledged, time.Since(began))
					s.awaitAllocatable(0)
					disabled.since(began, s.kubelet, none)
				}
				s.awaitCounts(0, 0)
			}
		}
		b.Run(c.name, func(b *testing.B) {
			if len(first) == 0 {
				measure(b)
			}
			spreads(b, "EnableDevices-to-allocatable/first", &first, "EnableDevices-to-allocatable/again", &again,
				"stream-closed-to-none", &closed, "DisableDevices-to-none", &disabled, "DisableDevices-to-its-answer", &acknowledged)
		})
	}
}

// BenchmarkSriovDaemon measures the loss of the daemon.
func BenchmarkSriovDaemon(b *testing.B) {
	const lease = time.Second
	for _, c := range []struct {
		name   string
		flags  []string
		lose   func(s *sriovSite) time.Time // returns the reference time
		regain func(s *sriovSite, round int64)
	}{
		{"killed-to-none", nil,
			func(s *sriovSite) time.Time { began := time.Now(); s.daemon.Kill(); return began },
			func(s *sriovSite, _ int64) { s.answer() }},
		{"lease-expired-to-none/standing-still", []string{"--lease", lease.String()},
			func(s *sriovSite) time.Time {
				s.daemon.signal(syscall.SIGSTOP)
				var ends time.Time
				s.awaitStatus("a lease without renewal", func(g gate.Status) bool {
					still := !g.LeaseEnds.IsZero() && g.LeaseEnds.Equal(ends)
					ends = g.LeaseEnds
					return still || g.LeaseEnds.IsZero()
				})
				return ends
			},
			func(s *sriovSite, _ int64) { s.daemon.signal(syscall.SIGCONT) }},
		{"generation-that-needs-work-to-none", nil,
			func(s *sriovSite) time.Time {
				began := time.Now()
				s.want(began.UnixMilli(), impossible)
				return began
			},
			func(s *sriovSite, _ int64) { s.want(time.Now().UnixMilli(), "") }},
	} {
		var took spread
		b.Run(c.name, func(b *testing.B) {
			if len(took) == 0 {
				s := newSriovSite(b, 64)
				s.serve()
				s.answer(c.flags...)
				for round := range int64(sriovRounds) {
					s.awaitCounts(64, 64)
					s.awaitStatus("served", func(g gate.Status) bool { return g.Holding == gate.Live && g.State == gate.Serving })
					began := c.lose(s)
					s.awaitAllocatable(0)
					took.since(began, s.kubelet, none)
					s.awaitCounts(0, 0)
					c.regain(s, round)
				}
			}
			took.report(b)
		})
	}
}

// BenchmarkSriovAllocate admits pods of one device each, with our plugin and,
// alternately, with one that does nothing.
func BenchmarkSriovAllocate(b *testing.B) {
	const rounds = 300
	const bare = "example.com/bare"
	var ours, theirs spread
	b.Run("pod-admitted", func(b *testing.B) {
		if len(ours) == 0 {
			s := newSriovSite(b, 64)
			s.serve()
			s.propose(1)
			s.awaitCounts(64, 64)
			defer s.register(bare, "bare.sock")()
			s.await("the bare plugin", func(k *sriovKubelet) bool { return k.counts[bare][1] == 2 })
			for i := range rounds {
				for resource, took := range map[string]*spread{sriovResource: &ours, bare: &theirs} {
					began := time.Now()
					answer := s.ask(resource, 1)
					*took = append(*took, time.Since(began))
					if answer["error"] != nil {
						b.Fatalf("pod %d of %s: %s", i, resource, answer["error"])
					}
					s.kubelet.say("end " + strings.Trim(string(answer["pod"]), `"`))
				}
			}
		}
		spreads(b, "ours", &ours, "a-plugin-that-does-nothing", &theirs)
	})
}

// BenchmarkSriovMemory measures the plugin's memory.
func BenchmarkSriovMemory(b *testing.B) {
	for _, vfs := range []int{0, 64, 2048} {
		var resident float64
		b.Run(fmt.Sprintf("functions=%d", vfs), func(b *testing.B) {
			if resident == 0 {
				s := newSriovSite(b, vfs)
				s.serve()
				s.propose(1)
				if vfs > 0 {
					s.awaitCounts(int64(vfs), int64(vfs))
				}
				// One scan a second, 60 times the usual rate.
				rest := time.NewTimer(5 * time.Second)
				<-rest.C
				resident = testkit.Resident(b, s.server.PID())
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(resident, "resident-MiB")
		})
	}
}

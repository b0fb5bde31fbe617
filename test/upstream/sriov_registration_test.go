package upstream

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cleatproject/cleat/sriov/gate"
)

// registrations are the ways to register with the kubelet: a call of Register,
// or a socket that the kubelet's plugin watcher finds in its polling period of
// a second.
var registrations = []string{"register", "watcher"}

// byWay runs a test for each way, with a plugin without a claim.
func byWay(t *testing.T, vfs int, do func(t *testing.T, s *sriovSite, flags []string)) {
	t.Parallel()
	for _, way := range registrations {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			s := newSriovSite(t, vfs)
			flags := []string{"--registration", way, "--registration-dir", s.registry}
			s.serve(flags...)
			do(t, s, flags)
		})
	}
}

// registered returns the sockets that the plugin watcher can see.
func (s *sriovSite) registered() (sockets []string) {
	s.t.Helper()
	entries, err := os.ReadDir(s.registry)
	if err != nil {
		s.t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			sockets = append(sockets, e.Name())
		}
	}
	return sockets
}

// The gate works the same with both ways of registration.
func TestSriovRegistrationGate(t *testing.T) {
	byWay(t, 4, func(t *testing.T, s *sriovSite, _ []string) {
		s.awaitStatus("waiting", func(g gate.Status) bool { return g.Holding == gate.Waiting })
		if sockets := s.registered(); len(sockets) > 0 {
			t.Errorf("the kubelet finds %q before the first claim", sockets)
		}
		s.answer()
		s.awaitCounts(4, 4)
		for range 3 {
			s.daemon.Kill()
			s.awaitCounts(0, 0)
			s.answer()
			s.awaitCounts(4, 4)
		}
		s.server.terminate()
		s.awaitCounts(0, 0)
		if sockets := s.registered(); len(sockets) > 0 {
			t.Errorf("left over by the plugin: %q", sockets)
		}
	})
}

// Trap B: kubelets lose the race with a plugin that stops and restarts at once.
// This plugin gets its devices back after any kind of stop.
func TestSriovPluginRestarts(t *testing.T) {
	byWay(t, 4, func(t *testing.T, s *sriovSite, flags []string) {
		s.answer()
		s.awaitCounts(4, 4)
		pods := 0
		for i := range 10 {
			if i%5 == 0 {
				s.server.terminate()
			} else {
				s.server.Kill()
			}
			s.serve(flags...)
			s.held(1)
			s.awaitCounts(4, 4)
			// On a busy machine the kubelet can close the new connection with the
			// old one; the plugin then registers again.
			until(t, fmt.Sprintf("a pod is admitted after restart %d", i), func() (bool, string) {
				answer := s.admit(1)
				pods++
				return answer["error"] == nil, string(answer["error"])
			})
			s.kubelet.say(fmt.Sprintf("end %d", pods-1))
		}
	})
}

// The kubelet restarts in every state of the plugin, also during a control
// stream.
func TestSriovKubeletRestartsBesideProcesses(t *testing.T) {
	byWay(t, 4, func(t *testing.T, s *sriovSite, _ []string) {
		restart := func() {
			s.kubelet.stop()
			s.startKubelet()
		}
		s.awaitStatus("waiting", func(g gate.Status) bool { return g.Holding == gate.Waiting })
		restart() // never offered
		s.answer()
		s.awaitCounts(4, 4)
		restart() // offered
		s.awaitCounts(4, 4)
		s.daemon.Kill()
		s.awaitCounts(0, 0)
		restart() // withdrawn
		s.answer()
		s.awaitCounts(4, 4)
		// The kubelet is down while control is lost.
		s.kubelet.stop()
		s.daemon.Kill()
		s.awaitStatus("no claim", func(g gate.Status) bool { return g.Holding == gate.Waiting })
		s.startKubelet()
		s.awaitStatus("the kubelet streams a withdrawn resource", func(g gate.Status) bool { return g.Resources[sriovResource].Streaming })
		for _, counts := range s.kubelet.since(time.Time{}, sriovResource) {
			if counts[1] != 0 {
				t.Errorf("a kubelet that started without a claim had %v", counts)
			}
		}
		s.answer()
		s.awaitCounts(4, 4)
		// The plugin restarts.
		s.kubelet.stop()
		s.server.signal(syscall.SIGSTOP)
		s.startKubelet()
		s.server.signal(syscall.SIGCONT)
		s.awaitCounts(4, 4)
	})
}

// After another plugin registers for the same resource and stops, the kubelet
// keeps its devices, and this plugin's connection. A pod that is refused shows
// that to this plugin.
func TestSriovOtherPluginStartsAndStops(t *testing.T) {
	byWay(t, 4, func(t *testing.T, s *sriovSite, _ []string) {
		s.answer()
		s.awaitCounts(4, 4)
		s.held(1)
		pods := 0
		for i := range 2 {
			end := s.register(sriovResource, fmt.Sprintf("other%d.sock", i))
			s.awaitCounts(2, 2)
			shows(t, filepath.Join(s.dir, "p.sock"), "/status", "another device plugin has registered for it")
			end()
			until(t, "a pod is admitted", func() (bool, string) {
				answer := s.admit(1)
				pods++
				return answer["error"] == nil, string(answer["error"])
			})
			s.awaitCounts(4, 4)
			s.held(1)
			s.kubelet.say(fmt.Sprintf("end %d", pods-1))
		}
		s.daemon.Kill()
		s.awaitCounts(0, 0)
	})
}

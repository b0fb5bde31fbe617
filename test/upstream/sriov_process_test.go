package upstream

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
)

// The device plugin and the config daemon, each a process, with the device
// manager of a real kubelet.

// impossible requests more functions than the node's PF can have.
const impossible = `{"pciAddress": "` + sriovPF + `", "numVfs": 1000, "name": "ens2"}`

// When the daemon loses control of the devices for any reason, the kubelet
// offers none of them, and offers them again when control is regained.
func TestSriovLossOfControl(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		daemon []string // flags
		lose   func(s *sriovSite)
		regain func(s *sriovSite)
		listed int64 // devices afterwards
	}{
		{
			name: "the daemon is killed",
			lose: func(s *sriovSite) { s.daemon.Kill() },
		}, {
			name: "the daemon is stopped",
			lose: func(s *sriovSite) { s.daemon.terminate() },
		}, {
			name:   "the daemon hangs",
			daemon: []string{"--lease", "2s"},
			lose:   func(s *sriovSite) { s.daemon.signal(syscall.SIGSTOP) },
			regain: func(s *sriovSite) { s.daemon.signal(syscall.SIGCONT) },
		}, {
			name:   "a generation that cannot be met",
			listed: 4, // of a closed PF, unhealthy
			lose:   func(s *sriovSite) { s.want(2, impossible) },
			regain: func(s *sriovSite) { s.want(3, ""); s.held(3) },
		}, {
			name:   "a generation that the operator has not applied",
			daemon: []string{"--mode", "follow"},
			lose:   func(s *sriovSite) { s.want(2, "", "InProgress") },
			regain: func(s *sriovSite) { s.want(2, "", "Succeeded"); s.held(2) },
		}, {
			name: "the node state is deleted",
			lose: func(s *sriovSite) {
				if err := os.Remove(s.nodeState); err != nil {
					s.t.Error(err)
				}
			},
			regain: func(s *sriovSite) { s.want(2, ""); s.held(2) },
		}, {
			name: "the plugin is killed",
			lose: func(s *sriovSite) { s.server.Kill() },
			regain: func(s *sriovSite) {
				s.serve()
				s.held(1)
			},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newSriovSite(t, 4)
			s.want(1, "", "Succeeded")
			s.serve()
			s.answer(c.daemon...)
			s.awaitCounts(4, 4)
			s.held(1)
			for range 2 {
				c.lose(s)
				s.awaitAllocatable(0)
				if s.server.runs() {
					if answer := s.admit(1); answer["error"] == nil {
						t.Errorf("a pod was admitted after the loss: %s", answer)
					}
					s.awaitCounts(c.listed, 0)
				}
				if c.regain == nil {
					s.answer(c.daemon...)
				} else {
					c.regain(s)
				}
				s.awaitCounts(4, 4)
			}
		})
	}
}

// A daemon that implements only the published proposal takes part by its
// stream.
func TestSriovProposalDaemon(t *testing.T) {
	t.Parallel()
	s := newSriovSite(t, 4)
	s.serve()
	for g := int64(1); g < 4; g++ {
		leave := s.propose(g)
		s.awaitCounts(4, 4)
		leave()
		s.awaitCounts(0, 0)
	}
	first := s.propose(7)
	s.awaitCounts(4, 4)
	began := time.Now()
	second := s.propose(8) // takes over
	s.held(8)
	first()
	s.held(8)
	if all := s.kubelet.since(began, sriovResource); len(all) != 1 {
		t.Errorf("during the takeover by another daemon the kubelet had %v, want no change", all)
	}
	second()
	s.awaitCounts(0, 0)
}

// A generation that changes nothing on the node changes nothing in the kubelet.
func TestSriovGenerationWithoutWork(t *testing.T) {
	t.Parallel()
	s := newSriovSite(t, 4)
	s.serve()
	s.answer()
	s.awaitCounts(4, 4)
	s.held(1)
	began := time.Now()
	for g := int64(2); g < 6; g++ {
		s.want(g, "")
		s.held(g)
	}
	if all := s.kubelet.since(began, sriovResource); len(all) != 1 {
		t.Errorf("the kubelet had %v, want no change", all)
	}
}

// With a hold time the kubelet does not see a daemon's restart, unless it takes
// too long.
func TestSriovHold(t *testing.T) {
	t.Parallel()
	t.Run("within", func(t *testing.T) {
		t.Parallel()
		s := newSriovSite(t, 4)
		s.serve()
		s.answer("--hold", "1m")
		s.awaitCounts(4, 4)
		s.held(1)
		began := time.Now()
		for range 3 {
			s.daemon.Kill()
			s.awaitStatus("the hold time runs", func(g gate.Status) bool { return g.Holding == gate.Lost })
			s.answer("--hold", "1m")
			s.held(1)
		}
		if all := s.kubelet.since(began, sriovResource); len(all) != 1 {
			t.Errorf("the kubelet had %v, want no change", all)
		}
	})
	t.Run("beyond", func(t *testing.T) {
		t.Parallel()
		s := newSriovSite(t, 4)
		s.serve()
		s.answer("--hold", "3s")
		s.awaitCounts(4, 4)
		s.held(1)
		lost := time.Now()
		s.daemon.Kill()
		s.awaitAllocatable(0)
		if held := time.Since(lost); held < 3*time.Second {
			t.Errorf("the devices were withdrawn after %s, before the hold time of 3s", held)
		}
		s.answer("--hold", "3s")
		s.awaitCounts(4, 4)
		s.held(1)
		// The hold time does not apply when the daemon closes the devices.
		s.want(2, impossible)
		s.awaitStatus("a closed PF", func(g gate.Status) bool { return g.Holding == gate.Live && g.Withdrawn })
		s.awaitCounts(4, 0)
	})
}

// After an orderly stop of the plugin the node has no capacity of its resource.
// After a kill the capacity stays for minutes.
func TestSriovPluginEnds(t *testing.T) {
	t.Parallel()
	s := newSriovSite(t, 4)
	s.serve()
	s.answer()
	for range 2 {
		s.awaitCounts(4, 4)
		s.server.terminate()
		s.awaitCounts(0, 0)
		s.serve()
	}
	s.awaitCounts(4, 4)
}

// Without controlled mode the plugin offers its devices from its start.
func TestSriovNotControlled(t *testing.T) {
	t.Parallel()
	s := newSriovSite(t, 4)
	s.serve("--controlled-mode=false")
	s.awaitCounts(4, 4)
	d := s.answer()
	d.says("no process serves the control socket")
	shows(t, filepath.Join(s.dir, "q.sock"), "/status", "no process serves the control socket")
	shows(t, filepath.Join(s.dir, "p.sock"), "/metrics", `cleat_sriov_control{control="none"} 1`)
	s.want(2, impossible) // the daemon continues without an acknowledgement
	shows(t, filepath.Join(s.dir, "q.sock"), "/status", "numVfs is 1000")
	s.awaitCounts(4, 4)
	if answer := s.admit(1); answer["error"] != nil {
		t.Errorf("a pod was refused: %s", answer)
	}
}

// A controlled plugin without a config daemon, as beside a daemon without
// support for it, reports that it waits.
func TestSriovWaitingIsReported(t *testing.T) {
	t.Parallel()
	s := newSriovSite(t, 4)
	p := s.serve()
	s.awaitStatus("waiting", func(g gate.Status) bool { return g.Holding == gate.Waiting && g.State == gate.Initializing })
	if got := s.cleat("sriov", "status", "--control-socket", s.socket); !strings.Contains(got, "none: waiting for a config daemon") {
		t.Errorf("cleat sriov status does not report the wait:\n%s", got)
	}
	shows(t, filepath.Join(s.dir, "p.sock"), "/metrics", `cleat_sriov_control{control="waiting"} 1`)
	shows(t, filepath.Join(s.dir, "p.sock"), "/status", `"waiting"`)
	p.says("waiting for a config daemon before offering devices")
	s.kubelet.mu.Lock()
	defer s.kubelet.mu.Unlock()
	if counts, known := s.kubelet.counts[sriovResource]; known {
		t.Errorf("the kubelet has %v without a daemon", counts)
	}
}

// The second plugin of a node reports the conflict, and leaves the first one
// alone.
func TestSriovSecondPlugin(t *testing.T) {
	t.Parallel()
	t.Run("controlled", func(t *testing.T) {
		t.Parallel()
		s := newSriovSite(t, 4)
		s.serve()
		s.answer()
		s.awaitCounts(4, 4)
		s.held(1)
		first, began := s.server, time.Now()
		s.serve("--state-dir", filepath.Join(s.dir, "p2"), "--metrics-address", filepath.Join(s.dir, "p2.sock"))
		if err := s.server.Wait(); err == nil || !strings.Contains(s.server.said(), s.socket) {
			t.Errorf("the second plugin ended with %v and logged:\n%s", err, s.server.tail())
		}
		unharmed(s, first, began)
	})
	t.Run("not controlled", func(t *testing.T) {
		t.Parallel()
		s := newSriovSite(t, 4)
		first := s.serve("--controlled-mode=false")
		s.awaitCounts(4, 4)
		began := time.Now()
		second := s.serve("--controlled-mode=false", "--state-dir", filepath.Join(s.dir, "p2"), "--metrics-address", filepath.Join(s.dir, "p2.sock"))
		second.says("another SR-IOV device plugin serves this resource")
		shows(t, filepath.Join(s.dir, "p2.sock"), "/status", "another SR-IOV device plugin serves this resource")
		unharmed(s, first, began)
		second.terminate()
		unharmed(s, first, began)
	})
}

// unharmed checks that the kubelet has noticed nothing of a plugin's conflict.
func unharmed(s *sriovSite, p *sriovProcess, began time.Time) {
	s.t.Helper()
	if !p.runs() {
		s.t.Fatalf("the first plugin ended:\n%s", p.tail())
	}
	if all := s.kubelet.since(began, sriovResource); len(all) != 1 || all[0] != [2]int64{4, 4} {
		s.t.Errorf("the kubelet had %v, want 4 and 4 all the time", all)
	}
	if answer := s.admit(1); answer["error"] != nil {
		s.t.Errorf("a pod is refused: %s", answer["error"])
	}
}

// One resource is split in two: pods keep their devices in the original
// resource, and no other pod gets them.
func TestSriovConfigurationChanges(t *testing.T) {
	t.Parallel()
	s := newSriovSite(t, 8)
	s.serve()
	s.answer()
	s.awaitCounts(8, 8)
	mine := s.given(s.admit(2), "PCIDEVICE_EXAMPLE_COM_VF")
	if len(mine) != 2 {
		t.Fatalf("the pod has %v, want two devices", mine)
	}
	s.configure(fmt.Sprintf(`{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"rootDevices": ["%[1]s#0-3"]}]},
		{"resourceName": "other", "resourcePrefix": "example.com", "selectors": [{"rootDevices": ["%[1]s#4-7"]}]}`, sriovPF))
	const other = "example.com/other"
	inOther := 0
	for _, id := range mine {
		for _, v := range s.vfs[4:] {
			if id == v {
				inOther++
			}
		}
	}
	// Allocated devices stay in the resource of their allocation.
	s.await("two resources", func(k *sriovKubelet) bool {
		return k.counts[sriovResource] == [2]int64{int64(4 + inOther), int64(4 + inOther)} && k.counts[other] == [2]int64{int64(4 - inOther), int64(4 - inOther)}
	})
	got := map[string]bool{}
	for _, id := range mine {
		got[id] = true
	}
	take := func(resource, variable string, count int) {
		t.Helper()
		for i := range count {
			answer := s.ask(resource, 1)
			if answer["error"] != nil {
				t.Errorf("pod %d of %d that asks for %s is refused: %s", i, count, resource, answer["error"])
				continue
			}
			for _, id := range s.given(answer, variable) {
				if got[id] {
					t.Errorf("%s is allocated twice", id)
				}
				got[id] = true
			}
		}
		if answer := s.ask(resource, 1); answer["error"] == nil {
			t.Errorf("one pod more than devices of %s: %s", resource, answer)
		}
	}
	take(sriovResource, "PCIDEVICE_EXAMPLE_COM_VF", 2+inOther)
	take(other, "PCIDEVICE_EXAMPLE_COM_OTHER", 4-inOther)
	if len(got) != 8 {
		t.Errorf("%d devices are allocated, want 8", len(got))
	}
	// Back to one resource, and one is removed.
	s.configure(`{"resourceName": "other", "resourcePrefix": "example.com", "selectors": [{"rootDevices": ["` + sriovPF + `"]}]}`)
	s.await("one resource is gone", func(k *sriovKubelet) bool { return k.counts[sriovResource][1] == 0 })
	s.lives()
}

// DisableDevices by another client, such as an administrator before a repair,
// revokes the daemon's claim, and the daemon does not claim again.
func TestSriovDisabledByAdministrator(t *testing.T) {
	t.Parallel()
	s := newSriovSite(t, 4)
	s.serve()
	s.answer()
	s.awaitCounts(4, 4)
	c, err := control.Dial(t.Context(), s.socket)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	w, err := c.Disable(t.Context(), "")
	if err != nil || !w.Acknowledged || !w.Confirmed {
		t.Fatalf("Disable: %+v, %v; want acknowledged, and confirmed by the kubelet", w, err)
	}
	s.awaitCounts(0, 0)
	shows(t, filepath.Join(s.dir, "q.sock"), "/status", fmt.Sprintf("%q", control.StateDisabled))
	s.want(2, "")
	s.awaitCounts(4, 4)
}

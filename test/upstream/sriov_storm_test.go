package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// sriovStormCycles is how often the devices are enabled and withdrawn.
var sriovStormCycles = map[bool]int{true: 1000, false: 40}[soak.Enabled]

// sriovStorm enables and withdraws devices while pods request them all the
// time.
type sriovStorm struct {
	*sriovSite
	renewer    *control.Renewer
	stop       func() // ends the renewer as if its process were killed
	generation int64
	pods       *sriovPods
	admitted   int
	refused    int
	late       int // pods admitted after an acknowledged withdrawal
	acks       int
}

// sriovPods are pods that request a device each from one kubelet process, one
// after another. Responses come in order.
type sriovPods struct {
	kubelet *sriovKubelet
	end     chan struct{}
	done    sync.WaitGroup

	mu    sync.Mutex
	asked int
}

func (p *sriovPods) ask() (number int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kubelet.say(sriovResource + " 1")
	p.asked++
	return p.asked - 1
}

// run keeps three pods pending while the kubelet offers devices, as a scheduler
// would, and ends admitted ones.
func (p *sriovPods) run() {
	handled := 0
	for {
		p.mu.Lock()
		asked := p.asked
		p.mu.Unlock()
		p.kubelet.mu.Lock()
		answers, changed, offered := p.kubelet.answers[handled:], p.kubelet.changed, p.kubelet.counts[sriovResource][1]
		p.kubelet.mu.Unlock()
		for _, a := range answers {
			handled++
			var uid string
			if json.Unmarshal(a["pod"], &uid) == nil {
				p.kubelet.say("end " + uid)
			}
		}
		if offered > 0 && asked-handled < 3 {
			p.ask()
			select {
			case <-p.end:
				return
			default:
			}
			continue
		}
		select {
		case <-changed:
		case <-p.end:
			return
		}
	}
}

func newSriovStorm(t *testing.T) *sriovStorm {
	s := &sriovStorm{sriovSite: newSriovSite(t, 16)}
	s.serve()
	s.renew()
	s.startPods()
	t.Cleanup(func() { s.stop() })
	return s
}

func (s *sriovStorm) renew() {
	s.t.Helper()
	r, err := control.NewRenewer(control.RenewerConfig{Socket: s.socket})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() { _ = r.Run(ctx) })
	s.renewer, s.stop = r, func() { cancel(); done.Wait() }
}

func (s *sriovStorm) startPods() {
	s.pods = &sriovPods{kubelet: s.kubelet, end: make(chan struct{})}
	s.pods.done.Go(s.pods.run)
}

func (s *sriovStorm) endPods() {
	close(s.pods.end)
	s.pods.done.Wait()
	s.kubelet.mu.Lock()
	defer s.kubelet.mu.Unlock()
	for _, a := range s.kubelet.answers {
		if a["error"] == nil {
			s.admitted++
		} else {
			s.refused++
		}
	}
}

// claim enables the next generation, without waiting.
func (s *sriovStorm) claim() {
	s.generation++
	s.renewer.Enable(gate.Claim{UID: "u", Generation: s.generation, Node: "worker"})
}

func (s *sriovStorm) offered() {
	s.t.Helper()
	s.held(s.generation)
	s.awaitAllocatable(16)
}

// withdrawn fails if a pod requested after the withdrawal gets a device.
func (s *sriovStorm) withdrawn() {
	s.t.Helper()
	number := s.pods.ask()
	var answer map[string]json.RawMessage
	s.await("an answer to a pod", func(k *sriovKubelet) bool {
		if len(k.answers) > number {
			answer = k.answers[number]
		}
		return answer != nil
	})
	if answer["error"] == nil {
		s.late++
		s.t.Errorf("generation %d: a pod was admitted after the withdrawal: %s", s.generation, answer)
	}
}

func (s *sriovStorm) disable() { s.disabling()() }

// disabling starts a withdrawal, and returns a function that waits for it.
func (s *sriovStorm) disabling() (wait func()) {
	result := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(s.t.Context(), testkit.Timeout)
		defer cancel()
		w, err := s.renewer.Disable(ctx)
		if err == nil && !w.Acknowledged {
			err = fmt.Errorf("not acknowledged: %s", w.Reason)
		}
		result <- err
	}()
	return func() {
		s.t.Helper()
		if err := <-result; err != nil {
			s.t.Fatalf("generation %d: %v", s.generation, err)
		}
		s.acks++
		s.withdrawn()
	}
}

// sriovDisturbances run beside plain cycles of enable and disable.
var sriovDisturbances = []struct {
	name string
	do   func(s *sriovStorm)
}{
	{"claims without a wait", func(s *sriovStorm) {
		for range 10 {
			s.claim()
		}
		s.disable()
	}},
	{"the stream is lost", func(s *sriovStorm) {
		s.claim()
		s.offered()
		s.stop()
		s.awaitAllocatable(0)
		s.withdrawn()
		s.renew()
	}},
	{"the daemon is killed", func(s *sriovStorm) {
		s.process()
		s.daemon.Kill()
		s.awaitAllocatable(0)
		s.withdrawn()
	}},
	{"the daemon is stopped", func(s *sriovStorm) {
		s.process()
		s.daemon.signal(syscall.SIGSTOP)
		s.daemon.awaitStopped()
		s.awaitAllocatable(0)
		s.withdrawn()
		s.daemon.signal(syscall.SIGCONT)
		s.offered() // after it has checked the node again
		s.daemon.Kill()
		s.awaitAllocatable(0)
	}},
	{"the plugin is killed", func(s *sriovStorm) {
		s.claim()
		s.offered()
		s.server.Kill()
		s.awaitAllocatable(0)
		s.serve()
		s.offered()
		s.disable()
	}},
	{"the plugin is killed during a withdrawal", func(s *sriovStorm) {
		s.claim()
		s.offered()
		wait := s.disabling()
		s.server.Kill()
		s.serve()
		wait()
	}},
	{"the plugin is stopped", func(s *sriovStorm) {
		s.claim()
		s.offered()
		s.server.signal(syscall.SIGSTOP)
		s.server.awaitStopped()
		s.pods.ask()
		wait := s.disabling()
		until(s.t, "the withdrawal has begun", func() (bool, string) {
			state := s.renewer.Status().State
			return state == control.StateDisabling, string(state)
		})
		s.server.signal(syscall.SIGCONT)
		wait()
	}},
	{"the kubelet restarts", func(s *sriovStorm) {
		s.claim()
		s.offered()
		s.lives()
		s.endPods()
		s.kubelet.stop()
		s.startKubelet()
		s.startPods()
		s.offered()
		s.disable()
	}},
}

// process has a daemon process enable the next generation.
func (s *sriovStorm) process() {
	s.t.Helper()
	s.generation++
	s.want(s.generation, "")
	s.answer("--lease", "2s")
	s.offered()
}

// awaitStopped waits until a process is stopped (SIGSTOP).
func (p *sriovProcess) awaitStopped() {
	p.t.Helper()
	until(p.t, p.name+" is stopped", func() (bool, string) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.PID()))
		return err == nil && strings.Contains(string(stat), ") T "), string(stat)
	})
}

// Pods come and go, and daemon, plugin and kubelet are killed and stopped,
// while the devices are enabled and withdrawn: no pod gets a device after an
// acknowledged withdrawal, every withdrawal ends, and the kubelet survives
// every list.
func TestSriovManyWithdrawals(t *testing.T) {
	t.Parallel()
	s := newSriovStorm(t)
	const plain = 4 // cycles between two disturbances
	disturbed := map[string]int{}
	for cycle := range sriovStormCycles {
		if cycle%(plain+1) == plain {
			d := sriovDisturbances[cycle/(plain+1)%len(sriovDisturbances)]
			disturbed[d.name]++
			d.do(s)
		} else {
			s.claim()
			s.offered()
			s.disable()
		}
		s.lives()
		if t.Failed() {
			t.FailNow()
		}
	}
	s.endPods()
	t.Logf("%d cycles, %d withdrawals acknowledged; %d pods admitted, %d refused, %d late; %s", sriovStormCycles, s.acks, s.admitted, s.refused, s.late, fmt.Sprint(disturbed))
	if s.admitted == 0 {
		t.Error("no pod was admitted")
	}
}

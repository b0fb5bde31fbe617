package dpu

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

// TestAttachEndsLate has SNAP complete the attach of a killed plugin after
// DeleteDevice, with and without a CreateDevice before that. It runs against
// the double, or against a real process with a target.
func TestAttachEndsLate(t *testing.T) {
	t.Parallel()
	socket, target := os.Getenv(socketEnvironment), os.Getenv(targetEnvironment)
	if socket != "" && target == "" {
		t.Fatalf("%s is set and %s is not: the test attaches a namespace", socketEnvironment, targetEnvironment)
	}
	for _, again := range []bool{false, true} { // sequential: a real process has one target
		t.Run(fmt.Sprintf("CreateDevice again %t", again), func(t *testing.T) {
			if socket == "" {
				s := newSite(t, spdktest.Config{SNAP: true}, plain)
				s.target("late", 1)
				s.attachEndsLate(s.snap.Socket(), s.namespace("late", "late", 1), again)
				return
			}
			to, nqn, nsids, err := parseTarget(target)
			if err != nil {
				t.Fatalf("%s=%q: %v", targetEnvironment, target, err)
			}
			s := emptySite(t, plain)
			s.join(socket)
			t.Cleanup(func() { _ = s.rpc.Close() })
			s.patience = stormPatience
			s.attachEndsLate(socket, realNamespace("late", to, nqn, nsids[0]), again)
		})
	}
}

// attachEndsLate holds the first attach until DeleteDevice has returned. again:
// a second attach has created the volume's device meanwhile.
func (s *site) attachEndsLate(snap string, v volume, again bool) {
	g := newGate(s.t, s.dir, snap)
	s.t.Cleanup(s.end) // before the gate
	s.flags[slices.Index(s.flags, "--snap-socket")+1] = g.socket
	s.flags = append(s.flags, "--tcp-transport", "TCP") // otherwise the first attach can be for a transport that SNAP does not have
	s.start()
	held, release := g.hold("bdev_nvme_attach_controller")
	defer release()
	creating := make(chan error, 1)
	go func() { creating <- onlyErr(s.try(v)) }()
	select {
	case <-held:
	case err := <-creating:
		s.t.Fatalf("CreateDevice did not attach: %v", err)
	case <-time.After(patience):
		s.t.Fatalf("CreateDevice sent no attach in %s", patience)
	}
	s.kill()
	<-creating
	s.start()
	if again {
		s.create(v)
	}
	s.refused(s.plugin.Delete(s.ctx, v.id, ""), "can still complete until 20")
	s.absent(v, "")
	testkit.Must(s.t, s.noControllers())
	release()
	if again && s.snap != nil { // no need to wait for the timeout
		s.eventually("the controller that appeared is removed", func() error {
			n := 0
			for _, c := range s.snap.Calls() {
				if c.Method == "bdev_nvme_detach_controller" {
					n++
				}
			}
			if n < 2 {
				return fmt.Errorf("%d detaches, want those of two controllers", n)
			}
			return s.noControllers()
		})
		return
	}
	s.remove(v, "")
	testkit.Must(s.t, s.noControllers())
	s.forgotten()
}

// noControllers checks that SNAP has no controller of the plugin.
func (s *site) noControllers() error {
	all, err := s.rpc.NVMeControllers(s.ctx)
	for _, c := range all {
		if strings.HasPrefix(c.Name, "cleat_") {
			return fmt.Errorf("SNAP has controller %s without a record", c.Name)
		}
	}
	return err
}

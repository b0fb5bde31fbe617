package main

import (
	"testing"

	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/volume/access"
)

// Host and DPU derive the host NQN that the controller admits.
func TestHostNQNOfAllProcesses(t *testing.T) {
	for cluster, want := range map[string]string{"": access.HostNQN("n"), "east": access.HostNQN("east/n")} {
		s := dpuServer{cluster: cluster, node: "n", answerWithin: 1, lossTimeout: -1, reconnectDelay: 2}
		s.plan.Plugin = "cleat"
		if err := s.Complete(); err != nil || s.plan.HostNQN != want {
			t.Errorf("cluster %q: the DPU has host NQN %s, %v, want %s", cluster, s.plan.HostNQN, err, want)
		}
		if got := driver.HostNQN(cluster, "n"); got != want {
			t.Errorf("cluster %q: the host has host NQN %s, want %s", cluster, got, want)
		}
	}
}

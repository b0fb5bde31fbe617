package spdk

import (
	"os"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
)

// The controller of this tree continues with the state of the build before, and that
// one with the state of this tree, while a host uses a volume. The state is in a file, or
// in a ConfigMap.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	previous := features.BuildPreviousRemote(t, "crashpoints") // as test/vm/nvme
	for name, order := range map[string][2]string{"upgrade": {previous, cleat}, "downgrade": {cleat, previous}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			upgrade(t, order, nil)
		})
		t.Run(name+" with a ConfigMap", func(t *testing.T) {
			t.Parallel()
			const state = "state"
			maps, leases := kubeapi.New(t, kubeapi.ConfigMaps()), kubeapi.New(t, kubeapi.Leases())
			flags := []string{"--spdk-state", "configmap:" + kubeapi.ConfigMaps().Namespace + "/" + state, "--spdk-kubeconfig", maps.Kubeconfig(t)}
			of := map[string][]string{previous: flags, cleat: flags}
			if order[1] == cleat { // it is started once, so that it does not wait for the Lease of a killed process
				of[cleat] = append(flags, "--lease", kubeapi.Leases().Namespace+"/lease", "--lease-kubeconfig", leases.Kubeconfig(t)) // the state has its holder
			}
			upgrade(t, order, of)
			if _, exists := maps.Get(state); !exists {
				t.Error("the state is not in the ConfigMap")
			}
		})
	}
	t.Run("cleared", func(t *testing.T) { refusesCleared(t, previous) })
}

func upgrade(t *testing.T, order [2]string, flags map[string][]string) {
	s := newHostSite(t, order[0], flags)
	hosts := []string{"node-3", "node-4"}
	addresses := [2]string{"203.0.113.3", "203.0.113.4"} // no machine has them
	o := &driver.Takeover{
		TB: t, Capability: capability(), Addresses: addresses,
		Nodes: [2]string{hosts[0] + "@" + addresses[0], hosts[1] + "@" + addresses[1]},
		Start: func(program string) *driver.Process {
			s.program = program
			s.killController()
			return s.controller
		},
		Fence: s.fence,
		Admitted: func(v *csi.Volume, nodes ...int) {
			var names []string
			for _, i := range nodes {
				names = append(names, hosts[i])
			}
			s.admitted(v, names...)
		},
		Use: func(v *csi.Volume) func() bool {
			session := testkit.Value(s.network.Connect(hostNQN(hosts[0]), addresses[0], subnqn(v), s.target.Address()))(t)
			t.Cleanup(session.Close)
			return session.Alive
		},
	}
	o.Run(order[0], order[1])
	s.target.CheckEmpty(t)
}

// refusesCleared: docs/spdk.md says that an earlier build needs a configuration
// without cleared. That build says which field it is.
func refusesCleared(t *testing.T, previous string) {
	t.Parallel()
	s := newHostSite(t, cleat, nil)
	config := testkit.Value(os.ReadFile(s.target.Config))(t)
	testkit.Must(t, os.WriteFile(s.target.Config, []byte(strings.Replace(string(config), "{name:", "{cleared: [unclean-abcd2345], name:", 1)), 0o600))
	s.killController()
	testkit.Must(t, s.controller.Stop())
	_, err := driver.Launch(t.Context(), previous, s.dir, "controller", nil, "--engine", "spdk", "--services", "controller", "--cluster-id", cluster, "--spdk-config", s.target.Config)
	if err == nil || !strings.Contains(err.Error(), "cleared") {
		t.Errorf("an earlier build with cleared in its configuration: %v", err)
	}
	testkit.Must(t, os.WriteFile(s.target.Config, config, 0o600))
	s.program = previous
	s.startController()
}

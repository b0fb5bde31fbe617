package spdk

import (
	"os"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/testkit"
)

// The controller of this tree continues with the state of the build before, and that
// one with the state of this tree, while a host uses a volume.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	previous := features.BuildPreviousRemote(t, "")
	for name, order := range map[string][2]string{"upgrade": {previous, cleat}, "downgrade": {cleat, previous}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newHostSite(t, order[0])
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
		})
	}
	t.Run("cleared", func(t *testing.T) { refusesCleared(t, previous) })
}

// refusesCleared: docs/spdk.md says that an earlier build needs a configuration
// without cleared. That build says which field it is.
func refusesCleared(t *testing.T, previous string) {
	t.Parallel()
	s := newHostSite(t, cleat)
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

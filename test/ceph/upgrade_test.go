//go:build ceph

package ceph

import (
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// The controller of this tree continues with the state of the build before, and that
// one with the state of this tree. What fences do at the OSDs is tested in guests
// (test/vm/ceph), and here that they are in force.
func TestUpgrade(t *testing.T) {
	if !soak.Enabled { // the other build would cost CI a minute
		return
	}
	previous := features.BuildPreviousRemote(t, "ceph,pacific")
	for engine, newSite := range engines() {
		for name, order := range map[string][2]string{"upgrade": {previous, shared.cleat}, "downgrade": {shared.cleat, previous}} {
			t.Run(engine+"/"+name, func(t *testing.T) {
				t.Parallel()
				upgrade(t, newSite(t), order)
			})
		}
	}
}

func upgrade(t *testing.T, r *rig, order [2]string) {
	var now *driver.Process
	t.Cleanup(func() { testkit.Must(t, now.Stop()) })
	addresses := [2]string{"203.0.113.3", "203.0.113.4"} // no machine has them
	capability := mounted()
	capability.AccessMode.Mode = spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	if r.pool != "" {
		capability.AccessType = &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}}
	}
	o := &driver.Takeover{
		TB: t, Capability: capability, Addresses: addresses,
		Nodes: [2]string{"node-3@" + addresses[0], "node-4@" + addresses[1]},
		Start: func(program string) *driver.Process {
			if now != nil {
				testkit.Must(t, now.Kill())
			}
			now = testkit.Value(driver.Launch(t.Context(), program, r.dir, "one", nil, r.controllerFlags("one")...))(t)
			return now
		},
		Fence:    func(command, address string) { r.fence("one", command, address) },
		Admitted: func(*spec.Volume, ...int) {},
		Use:      func(*spec.Volume) func() bool { return nil },
	}
	o.Run(order[0], order[1])
}

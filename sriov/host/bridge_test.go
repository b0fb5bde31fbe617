package host

import (
	"testing"
	"time"

	"github.com/cleatproject/cleat/internal/ovsdb/ovsdbtest"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/test/testkit"
)

// With Open vSwitch itself.
func TestBridge(t *testing.T) {
	r := newRig(t)
	socket, startSwitch := ovsdbtest.Start(t)
	r.host.config.OVS = socket
	vsctl := func(args ...string) { testkit.Run(t, "ovs-vsctl", append([]string{"--db=unix:" + socket}, args...)...) }
	config := `{"name":"br0","bridge":{"externalIDs":{"a":"b"},"failMode":"secure"},"uplinks":[{"pciAddress":"` + pfAddress + `","interface":{"mtuRequest":9000}}]}`
	create := plan.CreateBridge{PF: pfAddress, Name: "br0", Config: config}
	testkit.WantError(t, "without the switch", r.host.Do(t.Context(), create), nil, "ovs-vswitchd has not opened it", "--accept=bridge")
	if b := r.read().Bridges["br0"]; b.Interfaces["eth0"] == "" || b.PF != pfAddress || b.Config != config {
		t.Errorf("without the switch: %+v", b)
	}
	startSwitch()
	r.host.bounds.effect = time.Minute
	for range 2 { // the first time it continues
		r.do(create)
		testkit.Diff(t, "bridges", map[string]plan.Bridge{"br0": {Interfaces: map[string]string{"br0": "", "eth0": ""}, PF: pfAddress, Config: config}}, r.read().Bridges)
	}
	create.Config = `{"name":"br0","uplinks":[{"pciAddress":"` + pfAddress + `"}]}`
	testkit.WantError(t, "another configuration", r.host.Do(t.Context(), create), nil, "did not create it so")
	vsctl("add-br", "br1")
	testkit.WantError(t, "of others", r.host.Do(t.Context(), plan.CreateBridge{PF: pfAddress, Name: "br1", Config: config}), nil, "did not create it so")
	testkit.WantError(t, "a port of another", r.host.Do(t.Context(), plan.CreateBridge{PF: pfAddress, Name: "br2", Config: config}), nil, "eth0", "neither must exist")
	testkit.WantError(t, "an unknown field", r.host.Do(t.Context(), plan.CreateBridge{PF: pfAddress, Name: "br2", Config: `{"bridges":{}}`}), nil, "one uplink", "bridges")
	testkit.WantError(t, "of others", r.host.Do(t.Context(), plan.DeleteBridge{PF: pfAddress, Name: "br1"}), nil, "cleat-sriov-pf")
	for range 2 {
		r.do(plan.DeleteBridge{PF: pfAddress, Name: "br0"})
	}
	if all := r.read().Bridges; len(all) != 1 || all["br1"].Interfaces == nil {
		t.Errorf("left: %+v", all)
	}
}

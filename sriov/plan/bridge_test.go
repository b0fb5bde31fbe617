package plan

import (
	"testing"

	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/test/testkit"
)

// A bridge is created after the steps that create the PF's network device again.
// Only bridges of this daemon are deleted: not that of others, without a record.
func TestBridges(t *testing.T) {
	bridge := nodestate.Bridge{Name: "br0", Bridge: map[string]any{"datapathType": "netdev"}, Uplinks: []nodestate.Uplink{{PCIAddress: pf0}}}
	create := CreateBridge{pf0, "br0", `{"name":"br0","bridge":{"datapathType":"netdev"},"uplinks":[{"pciAddress":"0000:3b:00.0"}]}`}
	created := Bridge{map[string]string{"br0": "", "ens1f0": ""}, pf0, create.Config}
	for name, c := range map[string]struct {
		change  func(*nodestate.Spec, *State, *Options)
		steps   []Step
		touches []string
	}{
		"missing":        {nil, []Step{create}, nil},
		"exists":         {func(_ *nodestate.Spec, s *State, _ *Options) { s.Bridges = map[string]Bridge{"br0": created} }, nil, nil},
		"of others":      {func(_ *nodestate.Spec, s *State, _ *Options) { s.Bridges = map[string]Bridge{"br0": {}, "br1": {}} }, nil, nil},
		"accepted":       {func(_ *nodestate.Spec, _ *State, o *Options) { o.Accept = []string{UnmetBridge} }, nil, nil},
		"not known":      {func(_ *nodestate.Spec, s *State, _ *Options) { s.BridgesUnknown = "no socket" }, nil, nil},
		"not read":       {func(_ *nodestate.Spec, _ *State, o *Options) { o.Unreadable = map[string]string{pf0: "EIO"} }, nil, nil},
		"PF not healthy": {func(spec *nodestate.Spec, _ *State, _ *Options) { spec.Interfaces[0].NumVFs = 1000 }, nil, nil},
		"mode first":     {func(_ *nodestate.Spec, s *State, _ *Options) { s.PFs[0].ESwitch = nodestate.Legacy }, []Step{SetESwitch{pf0, nodestate.Switchdev}}, []string{vfAddress(0)}},
		"not desired": {func(spec *nodestate.Spec, s *State, _ *Options) {
			spec.Bridges.OVS, s.Bridges = nil, map[string]Bridge{"br0": created, "br1": {}}
		}, []Step{DeleteBridge{pf0, "br0"}}, []string{vfAddress(0)}},
		"another configuration": {func(spec *nodestate.Spec, s *State, _ *Options) {
			spec.Bridges.OVS[0].Bridge, s.Bridges = nil, map[string]Bridge{"br0": created}
		}, []Step{DeleteBridge{pf0, "br0"}}, []string{vfAddress(0)}},
		"PF gone": {func(spec *nodestate.Spec, s *State, _ *Options) {
			spec.Bridges.OVS, s.Bridges, s.PFs = nil, map[string]Bridge{"br0": created}, nil
		}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			spec, s, o := one(1, group("0-0")), State{PFs: []PF{ready(1)}}, Options{}
			spec.Interfaces[0].ESwitchMode, s.PFs[0].ESwitch, s.PFs[0].TCOffload = nodestate.Switchdev, nodestate.Switchdev, nodestate.On
			spec.Bridges.OVS = []nodestate.Bridge{bridge}
			if c.change != nil {
				c.change(&spec, &s, &o)
			}
			p := Compute(spec, s, o)
			testkit.Diff(t, "touches", c.touches, p.Touches)
			if len(c.steps) == 1 && name == "mode first" {
				c.steps = append([]Step{Unbind{vfAddress(0)}}, c.steps...)
			}
			testkit.Diff(t, "steps", c.steps, p.Steps)
		})
	}
}

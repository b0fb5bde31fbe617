package plan

import (
	"testing"

	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/test/testkit"
)

// What the desired state asks for and the node does not have closes the
// functions concerned, until it is accepted or resolved.
func TestUnmet(t *testing.T) {
	const noGUID = "00:00:00:00:00:00:00:00"
	switchdev := func(spec *nodestate.Spec, s *State) {
		spec.Interfaces[0].ESwitchMode, s.PFs[0].ESwitch, s.PFs[0].Vendor = nodestate.Switchdev, nodestate.Switchdev, "15b3"
		s.PFs[0].TCOffload, s.PFs[0].FlowSteering = nodestate.On, "smfs"
		spec.Bridges.OVS = []nodestate.Bridge{{Name: "br0", Uplinks: []nodestate.Uplink{{PCIAddress: pf0}}}}
		s.Bridges = map[string]Bridge{"br0": {Interfaces: map[string]string{"br0": "", "ens1f0": ""}}}
	}
	assigned := func(spec *nodestate.Spec, s *State, kind, driver string) {
		spec.Interfaces[0].VFGroups[0].DeviceType = kind
		s.PFs, s.Others = nil, []Function{{Address: pf0, Driver: driver}}
	}
	for name, c := range map[string]struct {
		change func(spec *nodestate.Spec, s *State)
		want   Unmet // Kind "": nothing
		notes  int
	}{
		"switchdev": {change: switchdev},
		"offload":   {func(spec *nodestate.Spec, s *State) { switchdev(spec, s); s.PFs[0].TCOffload = Fixed }, Unmet{pf0, "", UnmetOffload}, 0},
		"offload, external": {func(spec *nodestate.Spec, s *State) {
			switchdev(spec, s)
			spec.Interfaces[0].ExternallyManaged, s.PFs[0].TCOffload = true, nodestate.Off
		}, Unmet{pf0, "", UnmetOffload}, 0},
		"not reported": {func(spec *nodestate.Spec, s *State) {
			switchdev(spec, s)
			s.PFs[0].TCOffload, s.PFs[0].FlowSteering = "", ""
		}, Unmet{}, 0},
		"steering, external": {func(spec *nodestate.Spec, s *State) {
			switchdev(spec, s)
			spec.Interfaces[0].ExternallyManaged, s.PFs[0].FlowSteering = true, "dmfs"
		}, Unmet{pf0, "", UnmetSteering}, 0},
		"no bridge, two uplinks": {func(spec *nodestate.Spec, s *State) {
			switchdev(spec, s)
			s.Bridges, spec.Bridges.OVS[0].Uplinks = nil, append(spec.Bridges.OVS[0].Uplinks, nodestate.Uplink{PCIAddress: "0000:99:00.0"})
		}, Unmet{pf0, "", UnmetBridge}, 0},
		"no uplink": {func(spec *nodestate.Spec, s *State) { switchdev(spec, s); s.Bridges["br0"] = Bridge{} }, Unmet{pf0, "", UnmetBridge}, 0},
		"not opened": {func(spec *nodestate.Spec, s *State) {
			switchdev(spec, s)
			s.Bridges["br0"].Interfaces["ens1f0"] = "no such device"
		}, Unmet{pf0, "", UnmetBridge}, 0},
		"bridge unknown": {func(spec *nodestate.Spec, s *State) { switchdev(spec, s); s.BridgesUnknown = "no socket" }, Unmet{}, 1},
		"assigned":       {func(spec *nodestate.Spec, s *State) { assigned(spec, s, "vfio-pci", "vfio-pci") }, Unmet{}, 0},
		"iavf":           {func(spec *nodestate.Spec, s *State) { assigned(spec, s, "vfio-pci", "iavf") }, Unmet{pf0, pf0, UnmetDriver}, 0},
		"not iavf":       {func(spec *nodestate.Spec, s *State) { assigned(spec, s, "netdevice", "vfio-pci") }, Unmet{pf0, pf0, UnmetDriver}, 0},
		"no GUID": {func(spec *nodestate.Spec, s *State) {
			pf := &s.PFs[0]
			infiniband(pf)
			pf.MAC = ""
			pf.VFs[0].NodeGUID, pf.VFs[0].PortGUID = noGUID, noGUID
		}, Unmet{pf0, vfAddress(0), UnmetGUID}, 0},
		"no RDMA": {func(spec *nodestate.Spec, s *State) {
			spec.Interfaces[0].VFGroups[0].IsRDMA, s.PFs[0].VFs[0].RDMA = true, nil
		}, Unmet{pf0, vfAddress(0), UnmetRDMA}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			spec, s := one(1, group("0-0")), State{PFs: []PF{ready(1)}}
			c.change(&spec, &s)
			p := Compute(spec, s, Options{})
			if c.want.Kind == "" {
				if !p.Done() || len(p.Unmet) > 0 || len(p.Notes) != c.notes {
					t.Errorf("%+v", p)
				}
				return
			}
			if len(p.Steps) > 0 || len(p.Unmet) != 1 || p.Unmet[0] != c.want ||
				len(p.Problems) != 1 || p.Problems[0].PF != c.want.PF || p.Problems[0].Function != c.want.Function {
				t.Errorf("%+v", p)
			}
			for _, o := range []Options{{Accept: []string{c.want.Kind}}, {Accepted: []Unmet{c.want}}} {
				if p := Compute(spec, s, o); !p.Done() || len(p.Unmet) != 1 || len(p.Notes) != 1 {
					t.Errorf("accepted: %+v", p)
				}
			}
			if f := Follow(spec, s, Options{}); !f.Done() {
				t.Errorf("mode follow: %+v", f)
			}
		})
	}
}

// What a step can provide is provided, and closes the PF until then, unless it is
// accepted as it is.
func TestProvide(t *testing.T) {
	spec, s := one(1, group("0-0")), State{PFs: []PF{ready(1)}}
	pf := &s.PFs[0]
	spec.Interfaces[0].ESwitchMode, pf.ESwitch, pf.Vendor = nodestate.Switchdev, nodestate.Switchdev, mellanox
	for kind, c := range map[string]struct {
		offload, steering string
		steps             []Step
		touches           []string
	}{
		UnmetOffload: {nodestate.Off, SMFS, []Step{SetTCOffload{pf0}}, nil},
		UnmetSteering: {nodestate.On, "dmfs", []Step{Unbind{vfAddress(0)}, SetESwitch{pf0, nodestate.Legacy}, SetFlowSteering{pf0, SMFS}, SetESwitch{pf0, nodestate.Switchdev}},
			[]string{vfAddress(0)}},
	} {
		t.Run(kind, func(t *testing.T) {
			pf.TCOffload, pf.FlowSteering = c.offload, c.steering
			p := Compute(spec, s, Options{Held: []string{vfAddress(0)}})
			testkit.Diff(t, "steps", c.steps, p.Steps)
			testkit.Diff(t, "touches", c.touches, p.Touches)
			if closed, node := p.Closes(s); len(p.Problems)+len(p.Unmet) > 0 || closed[pf0] == "" || node != "" {
				t.Errorf("%+v closes %v, %q, want the PF", p, closed, node)
			}
			for _, o := range []Options{{Accept: []string{kind}}, {Accepted: []Unmet{{PF: pf0, Kind: kind}}}} {
				if p := Compute(spec, s, o); !p.Done() || len(p.Unmet) != 1 || len(p.Notes) != 1 {
					t.Errorf("accepted: %+v", p)
				}
			}
			if f := Follow(spec, s, Options{}); !f.Done() {
				t.Errorf("mode follow: %+v", f)
			}
		})
	}
	pf.ESwitch, pf.TCOffload, pf.FlowSteering, pf.VFs[0].Driver = nodestate.Legacy, "", "dmfs", "" // as after a failed step
	testkit.Diff(t, "steps", []Step{SetFlowSteering{pf0, SMFS}, SetESwitch{pf0, nodestate.Switchdev}}, Compute(spec, s, Options{}).Steps)
	pf.Vendor = "8086"
	testkit.Diff(t, "steps", []Step{SetESwitch{pf0, nodestate.Switchdev}}, Compute(spec, s, Options{}).Steps)
}

package plan

import (
	"fmt"
	"testing"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

// Only what the operator's daemon resolves keeps a node from being offered in
// mode follow. Compute, whose plan decided before, has something to do in every
// row that is content, so that the gate stayed closed for ever.
func TestFollow(t *testing.T) {
	type pair struct {
		spec  *nodestate.Interface
		state *PF
	}
	vf := func(p pair) *VF { return &p.state.VFs[0] }
	group := func(p pair) *nodestate.VFGroup { return &p.spec.VFGroups[0] }
	for name, c := range map[string]struct {
		change  func(pair)
		content bool
	}{
		"no administrative MAC":     {func(p pair) { vf(p).AdminMAC = "00:00:00:00:00:00" }, true},
		"linkType of another PF":    {func(p pair) { p.spec.LinkType = "ib" }, true},
		"PF down":                   {func(p pair) { p.state.Up = false }, true},
		"trust":                     {func(p pair) { group(p).Trust = nodestate.On }, true},
		"no such PF":                {func(p pair) { p.state.Netdev = "" }, true},
		"another user-space driver": {func(p pair) { vf(p).Driver = "mlx5_vfio_pci" }, true},
		"a group that is no range":  {func(p pair) { group(p).VFRange = "0" }, true},
		"isRdma with vfio-pci": {func(p pair) {
			p.state.VFs[0].Driver, p.state.VFs[1].Driver = nodestate.VFIO, nodestate.VFIO
			group(p).DeviceType, group(p).IsRDMA = nodestate.VFIO, true
		}, true},
		"a function is missing":         {func(p pair) { p.state.VFs = p.state.VFs[:1] }, true},
		"too few functions":             {func(p pair) { p.spec.NumVFs = 3 }, false},
		"too many functions":            {func(p pair) { p.state.NumVFs = 3 }, false},
		"PF's MTU":                      {func(p pair) { p.spec.MTU = 9000 }, false},
		"switch mode":                   {func(p pair) { p.spec.ESwitchMode = nodestate.Switchdev }, false},
		"no driver":                     {func(p pair) { vf(p).Driver = "" }, false},
		"vfio-pci instead of a netdev":  {func(p pair) { vf(p).Driver = nodestate.VFIO }, false},
		"a netdev instead of vfio-pci":  {func(p pair) { group(p).DeviceType = nodestate.VFIO }, false},
		"VF's MTU":                      {func(p pair) { group(p).MTU = 9000 }, false},
		"vDPA":                          {func(p pair) { group(p).VDPAType = nodestate.VirtIO }, false},
		"external, too few functions":   {func(p pair) { p.spec.ExternallyManaged, p.spec.NumVFs = true, 3 }, false},
		"external, with another driver": {func(p pair) { p.spec.ExternallyManaged, vf(p).Driver = true, nodestate.VFIO }, false},
	} {
		t.Run(name, func(t *testing.T) {
			pf := PF{Address: "0000:3b:00.0", Driver: "ice", Netdev: "ens1", Link: Ether, MAC: "0c:42:a1:00:00:01", MTU: 1500, Up: true, TotalVFs: 8, NumVFs: 2}
			for n, address := range []string{"0000:3b:02.0", "0000:3b:02.1"} {
				pf.VFs = append(pf.VFs, VF{Index: n, Address: address, Driver: "iavf", Netdev: "v", MTU: 1500, Known: true, AdminMAC: fmt.Sprintf("02:00:00:00:00:0%d", n)})
			}
			i := nodestate.Interface{PCIAddress: pf.Address, NumVFs: 2, VFGroups: []nodestate.VFGroup{{ResourceName: "a", VFRange: "0-1"}}}
			plans := func() (compute, follow Plan) {
				spec, state := nodestate.Spec{Interfaces: []nodestate.Interface{i}}, State{PFs: []PF{pf}}
				return Compute(spec, state, Options{}), Follow(spec, state, Options{})
			}
			if compute, follow := plans(); !compute.Done() || !follow.Done() {
				t.Fatalf("before the change: %+v, %+v", compute, follow)
			}
			c.change(pair{&i, &pf})
			compute, follow := plans()
			if follow.Done() != c.content || len(follow.Steps) > 0 {
				t.Errorf("content %t, want %t: %+v", follow.Done(), c.content, follow)
			}
			if compute.Done() || c.content && len(follow.Notes) == 0 {
				t.Errorf("no note of %+v", compute)
			}
		})
	}
}

// A function in no group is reset by the operator if it is for user space, and
// functions of pods keep the MTU that the pod's network set.
func TestFollowOtherFunctions(t *testing.T) {
	pf := PF{Address: "0000:3b:00.0", Netdev: "ens1", NumVFs: 2, VFs: []VF{
		{Index: 0, Address: "0000:3b:02.0", Driver: "iavf", MTU: 9000}, {Index: 1, Address: "0000:3b:02.1", Driver: "iavf"},
	}}
	spec := nodestate.Spec{Interfaces: []nodestate.Interface{{PCIAddress: pf.Address, NumVFs: 2, VFGroups: []nodestate.VFGroup{{VFRange: "0-0", MTU: 1500}}}}}
	held := Options{Held: []string{"0000:3b:02.0"}}
	if p := Follow(spec, State{PFs: []PF{pf}}, held); !p.Done() {
		t.Errorf("%v", p.Problems)
	}
	if p := Follow(spec, State{PFs: []PF{pf}}, Options{}); p.Done() {
		t.Error("the MTU of a free function is not compared")
	}
	pf.VFs[1].Driver = nodestate.VFIO
	if p := Follow(spec, State{PFs: []PF{pf}}, held); p.Done() {
		t.Error("a function in no group with vfio-pci is left")
	}
}

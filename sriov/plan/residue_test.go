package plan

import (
	"strings"
	"testing"

	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/test/testkit"
)

// What the network of an ended pod left on a function is reset; what an
// administrator set is the baseline.
func TestResidue(t *testing.T) {
	at := Entry{pf0, 0, vfAddress(0)}
	const mac, foreign = "0c:42:a1:00:01:00", "02:00:00:00:00:07"
	rebound := func(mac string) []Step {
		return []Step{Unbind{at.Address}, SetMAC{at, mac}, Bind{at.Address, ""}}
	}
	vfioPF := func(pf *PF, before *VF) {
		for _, v := range []*VF{&pf.VFs[0], before} {
			v.Driver, v.Netdev, v.MAC, v.MTU = "vfio-pci", "", "", 0
		}
	}
	for name, c := range map[string]struct {
		group   nodestate.VFGroup
		change  func(pf *PF, before *VF)
		options Options
		want    []Step
	}{
		"nothing":         {group: group("0-1")},
		"VLAN":            {group: group("0-1"), change: func(pf *PF, _ *VF) { pf.VFs[0].VLAN, pf.VFs[0].QoS = 7, 3 }, want: []Step{SetVLAN{Entry: at}}},
		"baseline's VLAN": {group: group("0-1"), change: func(_ *PF, b *VF) { b.VLAN, b.QoS, b.QinQ = 7, 3, true }, want: []Step{SetVLAN{at, 7, 3, true}}},
		"trust and check": {group: group("0-1"), change: func(pf *PF, _ *VF) { pf.VFs[0].Trust, pf.VFs[0].SpoofCheck = true, false }, want: []Step{SetTrust{at, false}, SetSpoofCheck{at, true}}},
		"specified trust": {group: nodestate.VFGroup{VFRange: "0-1", Trust: nodestate.On}, change: func(pf *PF, _ *VF) { pf.VFs[0].Trust, pf.VFs[1].Trust = true, true }},
		"rate and link": {group: group("0-1"), change: func(pf *PF, b *VF) { pf.VFs[0].MaxRate, b.LinkState = 10, LinkUp },
			want: []Step{SetRates{Entry: at}, SetLinkState{at, LinkUp}}},
		"MTU":             {group: group("0-1"), change: func(pf *PF, _ *VF) { pf.VFs[0].MTU = 9000 }, want: []Step{SetMTU{at.Address, 1500}}},
		"specified MTU":   {group: nodestate.VFGroup{VFRange: "0-1", MTU: 9000}, change: func(pf *PF, _ *VF) { pf.VFs[0].MTU, pf.VFs[1].MTU = 9000, 9000 }},
		"MAC":             {group: group("0-1"), change: func(pf *PF, _ *VF) { pf.VFs[0].AdminMAC = foreign }, want: rebound(mac)},
		"MAC removed":     {group: group("0-1"), change: func(pf *PF, _ *VF) { pf.VFs[0].AdminMAC = "" }, want: rebound(mac)},
		"the link's MAC":  {group: group("0-1"), change: func(pf *PF, _ *VF) { pf.VFs[0].MAC = foreign }, want: rebound(mac)},
		"no MAC before":   {group: group("0-1"), change: func(pf *PF, b *VF) { pf.VFs[0].AdminMAC, pf.VFs[0].MAC, b.AdminMAC = foreign, foreign, "" }, want: rebound(mac)},
		"MAC, vfio":       {group: vfio("0-0"), change: func(pf *PF, b *VF) { vfioPF(pf, b); pf.VFs[0].AdminMAC = foreign }, want: []Step{SetMAC{at, mac}}},
		"VLAN, vfio":      {group: vfio("0-0"), change: func(pf *PF, b *VF) { vfioPF(pf, b); pf.VFs[0].VLAN = 7 }, want: []Step{SetVLAN{Entry: at}}},
		"the PF's MAC":    {group: group("0-1"), change: func(pf *PF, b *VF) { pf.VFs[0].AdminMAC = pf.MAC }, want: rebound(mac)},
		"that of another": {group: group("0-1"), change: func(pf *PF, b *VF) { pf.VFs[0].AdminMAC = pf.VFs[1].AdminMAC }, want: rebound(mac)},
		"the baseline's is used": {group: group("0-1"), change: func(pf *PF, b *VF) { b.AdminMAC, b.MAC = pf.VFs[1].AdminMAC, pf.VFs[1].AdminMAC },
			options: Options{Held: []string{vfAddress(1)}}, want: rebound("76:dc:39:07:d8:02")},
		"held":     {group: group("0-1"), change: func(pf *PF, _ *VF) { pf.VFs[0].VLAN = 7 }, options: Options{Held: []string{at.Address}}},
		"in a pod": {group: group("0-1"), change: func(pf *PF, _ *VF) { pf.VFs[0].VLAN, pf.VFs[0].Netdev, pf.VFs[0].MAC = 7, "", "" }},
		"no group": {group: group("1-1"), change: func(pf *PF, _ *VF) { pf.VFs[0].VLAN = 7 }},
		"kept":     {group: group("0-1"), change: func(pf *PF, _ *VF) { pf.VFs[0].VLAN, pf.VFs[0].AdminMAC = 7, pf.MAC }, options: Options{KeepResidue: true}},
		"other GUID": {group: group("0-1"), change: func(pf *PF, b *VF) {
			infiniband(pf)
			for n := range pf.VFs {
				pf.VFs[n].NodeGUID, pf.VFs[n].PortGUID = "02:00:00:00:00:00:00:01", "02:00:00:00:00:00:00:01"
			}
			*b = pf.VFs[0]
			pf.VFs[0].PortGUID = "02:00:00:00:00:00:00:02"
		}, want: []Step{Unbind{at.Address}, SetGUID{at, "02:00:00:00:00:00:00:01"}, Bind{at.Address, ""}}},
	} {
		t.Run(name, func(t *testing.T) {
			pf := ready(2)
			before := pf.VFs[0]
			if c.change != nil {
				c.change(&pf, &before)
			}
			c.options.Baselines = map[string]VF{at.Address: before}
			p := Compute(one(2, c.group), State{PFs: []PF{pf}}, c.options)
			testkit.Diff(t, "steps", c.want, p.Steps)
			if len(p.Problems) > 0 || len(c.want) > 0 != (len(p.Touches) == 1) {
				t.Errorf("%+v", p)
			}
			if c.options.KeepResidue && (len(p.Notes) != 1 || !strings.Contains(p.Notes[0].Text, "VF 0: changed while a pod held it")) {
				t.Errorf("notes %v", p.Notes)
			}
			if f := Follow(one(2, c.group), State{PFs: []PF{pf}}, c.options); !f.Done() {
				t.Errorf("mode follow: %+v", f)
			}
		})
	}
}

// Equal addresses are residue without a baseline, too.
func TestEqualMACs(t *testing.T) {
	pf := ready(3)
	pf.VFs[2].AdminMAC, pf.VFs[2].MAC = pf.VFs[0].AdminMAC, pf.VFs[0].AdminMAC
	pf.VFs[1].AdminMAC = pf.MAC
	p := Compute(one(3, group("0-2")), State{PFs: []PF{pf}}, Options{Held: []string{vfAddress(0)}})
	testkit.Diff(t, "touched", []string{vfAddress(1), vfAddress(2)}, p.Touches)
	set := map[string]bool{pf.MAC: true, pf.VFs[0].AdminMAC: true}
	for _, s := range p.Steps {
		if s, ok := s.(SetMAC); ok {
			if set[s.MAC] {
				t.Errorf("%v: another function has it", s)
			}
			set[s.MAC] = true
		}
	}
	if len(set) != 4 {
		t.Errorf("steps %v", p.Steps)
	}
	if p := Compute(one(3, group("0-2")), State{PFs: []PF{pf}}, Options{KeepResidue: true}); !p.Done() || len(p.Notes) != 1 {
		t.Errorf("%+v", p)
	}
	pf.MAC = ""
	p = Compute(one(3, group("0-2")), State{PFs: []PF{pf}}, Options{})
	if len(p.Problems) != 1 || p.Problems[0].Function != vfAddress(2) || p.Problems[0].PF != pf0 {
		t.Errorf("without an address of the PF: %+v", p)
	}
}

// Without an entry in the table nothing proves that a function is as before.
func TestResidueNotReadable(t *testing.T) {
	pf := ready(1)
	before := pf.VFs[0]
	pf.VFs[0].Known, pf.VFs[0].AdminMAC = false, ""
	p := Compute(one(1, group("0-0")), State{PFs: []PF{pf}}, Options{Baselines: map[string]VF{before.Address: before}})
	if len(p.Steps) > 0 || len(p.Problems) != 1 || p.Problems[0].Function != before.Address {
		t.Errorf("%+v", p)
	}
}

// A VLAN that no pod is known to have left is shown.
func TestVLANNote(t *testing.T) {
	pf := ready(2)
	pf.VFs[1].VLAN = 7
	p := Compute(one(2, group("0-1")), State{PFs: []PF{pf}}, Options{})
	if !p.Done() || len(p.Notes) != 1 || !strings.HasPrefix(p.Notes[0].Text, "VF 1: it has a VLAN") {
		t.Errorf("%+v", p)
	}
}

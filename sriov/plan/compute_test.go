package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	pf0 = "0000:3b:00.0"
	pf1 = "0000:3b:00.1"
)

func vfAddress(index int) string { return fmt.Sprintf("0000:3b:%02x.%d", 2+index/8, index%8) }

func ready(vfs int) PF {
	pf := PF{Address: pf0, Vendor: "8086", Device: "1592", Driver: "iavfpf", Netdev: "ens1f0", Names: []string{"ens1f0", "enp59s0f0"}, Link: Ether,
		MAC: "0c:42:a1:00:00:01", MTU: 1500, Up: true, TotalVFs: 64, NumVFs: vfs, ESwitch: nodestate.Legacy}
	for n := range vfs {
		mac := fmt.Sprintf("0c:42:a1:00:01:%02x", n)
		pf.VFs = append(pf.VFs, VF{Index: n, Address: vfAddress(n), Device: "1889", Driver: "iavf", Netdev: fmt.Sprintf("ens1f0v%d", n), MAC: mac, MTU: 1500,
			Known: true, AdminMAC: mac, SpoofCheck: true, RDMA: []string{fmt.Sprintf("irdma%d", n)}})
	}
	return pf
}

func infiniband(pf *PF) {
	pf.Driver, pf.Link, pf.MAC = "mlx5_core", InfiniBand, "00:00:10:49:fe:80:00:00:00:00:00:00:0c:42:a1:03:00:00:00:01"
	for n := range pf.VFs {
		pf.VFs[n].Driver, pf.VFs[n].AdminMAC, pf.VFs[n].GUIDs = "mlx5_core", "", true
	}
}

func one(vfs int, groups ...nodestate.VFGroup) nodestate.Spec {
	return nodestate.Spec{Interfaces: []nodestate.Interface{{PCIAddress: pf0, NumVFs: vfs, VFGroups: groups}}}
}

func group(r string) nodestate.VFGroup { return nodestate.VFGroup{VFRange: r} }

func vfio(r string) nodestate.VFGroup {
	return nodestate.VFGroup{VFRange: r, DeviceType: nodestate.VFIO}
}

func TestCompute(t *testing.T) {
	mac := func(n int, mac string) Step {
		return SetMAC{Entry{pf0, n, vfAddress(n)}, mac}
	}
	type test struct {
		spec    nodestate.Spec
		pf      PF
		change  func(i *nodestate.Interface, pf *PF)
		options Options
		steps   []Step
		touches []string
		more    bool
	}
	for name, c := range map[string]test{
		"no difference":              {spec: one(4, group("0-1")), pf: ready(4)},
		"nothing is desired":         {spec: nodestate.Spec{}, pf: ready(4)},
		"another PF was managed":     {spec: nodestate.Spec{}, pf: ready(4), options: Options{Managed: []string{pf1}}},
		"managed and desired":        {spec: one(4), pf: ready(4), options: Options{Managed: []string{pf0}}},
		"released, has none":         {spec: nodestate.Spec{}, pf: ready(0), options: Options{Managed: []string{pf0}}},
		"ungrouped are left alone":   {spec: one(2, group("0-0")), pf: ready(2), change: func(_ *nodestate.Interface, pf *PF) { pf.VFs[1].AdminMAC, pf.VFs[1].Driver = "", "" }},
		"make the first":             {spec: one(4), pf: ready(0), steps: []Step{SetNumVFs{pf0, 4}}, more: true},
		"not from one to another":    {spec: one(4), pf: ready(2), steps: []Step{SetNumVFs{pf0, 0}, SetNumVFs{pf0, 4}}, touches: []string{vfAddress(0), vfAddress(1)}, more: true},
		"fewer, too":                 {spec: one(1), pf: ready(2), steps: []Step{SetNumVFs{pf0, 0}, SetNumVFs{pf0, 1}}, touches: []string{vfAddress(0), vfAddress(1)}, more: true},
		"remove":                     {spec: one(0), pf: ready(2), steps: []Step{SetNumVFs{pf0, 0}}, touches: []string{vfAddress(0), vfAddress(1)}},
		"release":                    {spec: nodestate.Spec{}, pf: ready(1), options: Options{Managed: []string{pf0}}, steps: []Step{SetNumVFs{pf0, 0}}, touches: []string{vfAddress(0)}},
		"release one of no driver":   {spec: nodestate.Spec{}, pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) { pf.Netdev, pf.Driver = "", "" }, options: Options{Managed: []string{pf0}}, steps: []Step{SetNumVFs{pf0, 0}}, touches: []string{vfAddress(0)}},
		"PF: up, and its MTU raised": {spec: one(0), pf: ready(0), change: func(i *nodestate.Interface, pf *PF) { pf.Up, i.MTU = false, 9000 }, steps: []Step{SetMTU{pf0, 9000}, SetUp{pf0}}},
		"PF: MTU is not lowered":     {spec: one(0), pf: ready(0), change: func(i *nodestate.Interface, pf *PF) { pf.MTU, i.MTU = 9000, 1500 }},
		"PF: before functions":       {spec: one(1), pf: ready(0), change: func(i *nodestate.Interface, pf *PF) { pf.Up, i.MTU = false, 9000 }, steps: []Step{SetMTU{pf0, 9000}, SetUp{pf0}, SetNumVFs{pf0, 1}}, more: true},
		"none desired, no device here": {spec: one(0), pf: ready(0), change: func(i *nodestate.Interface, pf *PF) {
			pf.Netdev, pf.Link, pf.Up, i.MTU, i.LinkType = "", "", false, 9000, "eth"
		}},
		"another number, some come or go": {spec: one(1), pf: ready(2), change: func(_ *nodestate.Interface, pf *PF) { pf.VFs = pf.VFs[:1] },
			steps: []Step{SetNumVFs{pf0, 0}, SetNumVFs{pf0, 1}}, touches: []string{vfAddress(0)}, more: true},

		"its own address": {spec: one(1, group("0-0")), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) { pf.VFs[0].AdminMAC = "" },
			steps: []Step{mac(0, "0c:42:a1:00:01:00")}, touches: []string{vfAddress(0)}},
		"zeros are no address": {spec: one(1, group("0-0")), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) { pf.VFs[0].AdminMAC = "00:00:00:00:00:00" },
			steps: []Step{mac(0, "0c:42:a1:00:01:00")}, touches: []string{vfAddress(0)}},
		"another address is kept": {spec: one(1, group("0-0")), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) { pf.VFs[0].AdminMAC = "02:00:00:00:00:07" }},
		"no driver: a made address, then the driver": {spec: one(1, group("0-0")), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) {
			pf.VFs[0].AdminMAC, pf.VFs[0].Driver, pf.VFs[0].Netdev, pf.VFs[0].MAC = "", "", "", ""
		}, steps: []Step{mac(0, "76:dc:39:07:d8:02"), Bind{vfAddress(0), ""}}, touches: []string{vfAddress(0)}, more: true},
		"a multicast address is not used": {spec: one(1, group("0-0")), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) {
			pf.VFs[0].AdminMAC, pf.VFs[0].MAC = "", "01:00:5e:00:00:01"
		}, steps: []Step{mac(0, "76:dc:39:07:d8:02")}, touches: []string{vfAddress(0)}},
		"new: what the table shows is set": {spec: one(2, group("0-0"), vfio("1-1")), pf: ready(2), options: Options{Fresh: []string{pf0}},
			steps:   []Step{mac(0, "0c:42:a1:00:01:00"), mac(1, "0c:42:a1:00:01:01"), Bind{vfAddress(1), "vfio-pci"}},
			touches: []string{vfAddress(0), vfAddress(1)}},
		"another PF is new": {spec: one(2, group("0-1")), pf: ready(2), options: Options{Fresh: []string{pf1}}},
		"new, and in a pod": {spec: one(1, group("0-0")), pf: ready(1), options: Options{Fresh: []string{pf0}, Held: []string{vfAddress(0)}}},
		"address before vfio": {spec: one(2, vfio("1-1")), pf: ready(2), change: func(_ *nodestate.Interface, pf *PF) { pf.VFs[1].AdminMAC = "" },
			steps: []Step{mac(1, "0c:42:a1:00:01:01"), Bind{vfAddress(1), "vfio-pci"}}, touches: []string{vfAddress(1)}},
		"RDMA takes its GUID from the address": {spec: one(1, nodestate.VFGroup{VFRange: "0-0", IsRDMA: true}), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) { pf.VFs[0].AdminMAC = "" },
			steps: []Step{Unbind{vfAddress(0)}, mac(0, "0c:42:a1:00:01:00"), Bind{vfAddress(0), ""}}, touches: []string{vfAddress(0)}, more: true},
		"vfio is as desired": {spec: one(1, vfio("0-0")), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) {
			pf.VFs[0].Driver, pf.VFs[0].Netdev, pf.VFs[0].MAC, pf.VFs[0].AdminMAC = "vfio-pci", "", "", ""
		}},
		"another driver for programs": {spec: one(1, vfio("0-0")), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) {
			pf.VFs[0].Driver, pf.VFs[0].Netdev = "uio_pci_generic", ""
		}, steps: []Step{mac(0, "0c:42:a1:00:01:00"), Bind{vfAddress(0), "vfio-pci"}}, touches: []string{vfAddress(0)}},
		"back to the network": {spec: one(1, nodestate.VFGroup{VFRange: "0-0", MTU: 9000}), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) {
			pf.VFs[0].Driver, pf.VFs[0].Netdev, pf.VFs[0].MAC, pf.VFs[0].MTU = "mlx5_vfio_pci", "", "", 0
		}, steps: []Step{mac(0, "0c:42:a1:00:01:00"), Bind{vfAddress(0), ""}}, touches: []string{vfAddress(0)}, more: true},
		"MTU, also lower": {spec: one(2, nodestate.VFGroup{VFRange: "0-1", MTU: 1400}), pf: ready(2), change: func(_ *nodestate.Interface, pf *PF) { pf.VFs[1].MTU = 1400 },
			steps: []Step{SetMTU{vfAddress(0), 1400}}, touches: []string{vfAddress(0)}},
		"trust and spoof check": {spec: one(2, nodestate.VFGroup{VFRange: "0-0", Trust: "on", SpoofCheck: "off"}, nodestate.VFGroup{VFRange: "1-1", DeviceType: "vfio-pci", Trust: "off", SpoofCheck: "on"}), pf: ready(2),
			change: func(_ *nodestate.Interface, pf *PF) { pf.VFs[1].Trust, pf.VFs[1].SpoofCheck = true, false },
			steps: []Step{
				SetTrust{Entry{pf0, 0, vfAddress(0)}, true}, SetSpoofCheck{Entry{pf0, 0, vfAddress(0)}, false},
				mac(1, "0c:42:a1:00:01:01"), SetTrust{Entry{pf0, 1, vfAddress(1)}, false}, SetSpoofCheck{Entry{pf0, 1, vfAddress(1)}, true}, Bind{vfAddress(1), "vfio-pci"},
			}, touches: []string{vfAddress(0), vfAddress(1)}},
		"only one of the two is desired": {spec: one(2, nodestate.VFGroup{VFRange: "0-0", Trust: "on"}, nodestate.VFGroup{VFRange: "1-1", SpoofCheck: "on"}), pf: ready(2),
			change: func(_ *nodestate.Interface, pf *PF) { pf.VFs[0].Trust, pf.VFs[1].Trust = true, true }},
		"vfio: trust all the same": {spec: one(1, nodestate.VFGroup{VFRange: "0-0", DeviceType: "vfio-pci", Trust: "on"}), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) {
			pf.VFs[0].Driver, pf.VFs[0].Netdev = "vfio-pci", ""
		}, steps: []Step{SetTrust{Entry{pf0, 0, vfAddress(0)}, true}}, touches: []string{vfAddress(0)}},
		"trust is as desired": {spec: one(1, nodestate.VFGroup{VFRange: "0-0", Trust: "off", SpoofCheck: "on"}), pf: ready(1)},

		"in a pod, as it shows": {spec: one(1, nodestate.VFGroup{VFRange: "0-0", MTU: 9000, Trust: "on", IsRDMA: true}), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) {
			pf.VFs[0].Netdev, pf.VFs[0].MAC, pf.VFs[0].MTU, pf.VFs[0].AdminMAC, pf.VFs[0].RDMA = "", "", 0, "", nil
		}},
		"in a pod, by Options.Held": {spec: one(1, nodestate.VFGroup{VFRange: "0-0", DeviceType: "vfio-pci", Trust: "on"}), pf: ready(1), options: Options{Held: []string{vfAddress(0)}},
			change: func(_ *nodestate.Interface, pf *PF) { pf.VFs[0].Driver = "vfio-pci" }},
		"in a pod, with a wrong driver": {spec: one(1, vfio("0-0")), pf: ready(1), options: Options{Held: []string{vfAddress(0)}},
			steps: []Step{mac(0, "0c:42:a1:00:01:00"), Bind{vfAddress(0), "vfio-pci"}}, touches: []string{vfAddress(0)}},

		"external: as it is": {spec: one(2, group("0-1")), pf: ready(4), change: func(i *nodestate.Interface, _ *PF) { i.ExternallyManaged, i.MTU = true, 1500 }},
		"external: functions and up": {spec: one(2, vfio("0-0")), pf: ready(4), change: func(i *nodestate.Interface, pf *PF) { i.ExternallyManaged, pf.Up = true, false },
			steps: []Step{SetUp{pf0}, mac(0, "0c:42:a1:00:01:00"), Bind{vfAddress(0), "vfio-pci"}}, touches: []string{vfAddress(0)}},

		"switchdev: the functions, then the mode": {spec: one(2), pf: ready(0), change: func(i *nodestate.Interface, _ *PF) { i.ESwitchMode = nodestate.Switchdev },
			steps: []Step{SetNumVFs{pf0, 2}}, more: true},
		"switchdev: with existing functions": {spec: one(2, vfio("0-0")), pf: ready(2), change: func(i *nodestate.Interface, _ *PF) { i.ESwitchMode = nodestate.Switchdev },
			steps:   []Step{Unbind{vfAddress(0)}, Unbind{vfAddress(1)}, SetESwitch{pf0, nodestate.Switchdev}, Bind{vfAddress(1), ""}},
			touches: []string{vfAddress(0), vfAddress(1)}, more: true},
		"switchdev: an ungrouped one keeps vfio": {spec: one(1), pf: ready(1), change: func(i *nodestate.Interface, pf *PF) {
			i.ESwitchMode, pf.VFs[0].Driver = nodestate.Switchdev, "vfio-pci"
		},
			steps: []Step{Unbind{vfAddress(0)}, SetESwitch{pf0, nodestate.Switchdev}, Bind{vfAddress(0), "vfio-pci"}}, touches: []string{vfAddress(0)}, more: true},
		"switchdev: interrupted": {spec: one(1), pf: ready(1), change: func(i *nodestate.Interface, pf *PF) { i.ESwitchMode, pf.VFs[0].Driver = nodestate.Switchdev, "" },
			steps: []Step{SetESwitch{pf0, nodestate.Switchdev}}, touches: []string{vfAddress(0)}, more: true},
		"switchdev: another number": {spec: one(1), pf: ready(2), change: func(i *nodestate.Interface, pf *PF) {
			i.ESwitchMode, pf.ESwitch = nodestate.Switchdev, nodestate.Switchdev
		},
			steps: []Step{Unbind{vfAddress(0)}, Unbind{vfAddress(1)}, SetESwitch{pf0, nodestate.Legacy}, SetNumVFs{pf0, 0}, SetNumVFs{pf0, 1}}, touches: []string{vfAddress(0), vfAddress(1)}, more: true},
		"switchdev: without functions": {spec: one(0), pf: ready(0), change: func(i *nodestate.Interface, _ *PF) { i.ESwitchMode = nodestate.Switchdev },
			steps: []Step{SetESwitch{pf0, nodestate.Switchdev}}, more: true},
		"switchdev: the driver reports no mode yet": {spec: one(1), pf: ready(0), change: func(i *nodestate.Interface, pf *PF) { i.ESwitchMode, pf.ESwitch = nodestate.Switchdev, "" },
			steps: []Step{SetNumVFs{pf0, 1}}, more: true},
		"switchdev: none left": {spec: one(0), pf: ready(1), change: func(i *nodestate.Interface, pf *PF) {
			i.ESwitchMode, pf.ESwitch = nodestate.Switchdev, nodestate.Switchdev
		},
			steps: []Step{Unbind{vfAddress(0)}, SetESwitch{pf0, nodestate.Legacy}, SetNumVFs{pf0, 0}}, touches: []string{vfAddress(0)}, more: true},
		"back to legacy": {spec: one(1, group("0-0")), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) { pf.ESwitch = nodestate.Switchdev },
			steps: []Step{Unbind{vfAddress(0)}, SetESwitch{pf0, nodestate.Legacy}}, touches: []string{vfAddress(0)}, more: true},
		"released from switchdev": {spec: nodestate.Spec{}, pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) { pf.ESwitch = nodestate.Switchdev }, options: Options{Managed: []string{pf0}},
			steps: []Step{Unbind{vfAddress(0)}, SetESwitch{pf0, nodestate.Legacy}, SetNumVFs{pf0, 0}}, touches: []string{vfAddress(0)}, more: true},
		"release interrupted": {spec: nodestate.Spec{}, pf: ready(0), change: func(_ *nodestate.Interface, pf *PF) { pf.ESwitch = nodestate.Switchdev }, options: Options{Managed: []string{pf0}},
			steps: []Step{SetESwitch{pf0, nodestate.Legacy}}, more: true},
		"ice: the mode, then functions": {spec: one(2), pf: ready(2), change: func(i *nodestate.Interface, pf *PF) { i.ESwitchMode, pf.Driver = nodestate.Switchdev, "ice" },
			steps: []Step{SetNumVFs{pf0, 0}, SetESwitch{pf0, nodestate.Switchdev}, SetNumVFs{pf0, 2}}, touches: []string{vfAddress(0), vfAddress(1)}, more: true},
		"ice: stays in switchdev": {spec: one(1), pf: ready(2), change: func(i *nodestate.Interface, pf *PF) {
			i.ESwitchMode, pf.Driver, pf.ESwitch = nodestate.Switchdev, "ice", nodestate.Switchdev
		}, steps: []Step{SetNumVFs{pf0, 0}, SetNumVFs{pf0, 1}}, touches: []string{vfAddress(0), vfAddress(1)}, more: true},

		"vDPA": {spec: one(3, nodestate.VFGroup{VFRange: "0-1", VDPAType: "vhost"}, group("2-2")), pf: ready(3), change: func(i *nodestate.Interface, pf *PF) {
			i.ESwitchMode, pf.ESwitch, pf.VFs[1].VDPA, pf.VFs[2].VDPA = nodestate.Switchdev, nodestate.Switchdev, "virtio", "virtio"
		}, steps: []Step{SetVDPA{vfAddress(0), "vhost"}, SetVDPA{vfAddress(1), ""}, SetVDPA{vfAddress(1), "vhost"}, SetVDPA{vfAddress(2), ""}}, touches: []string{vfAddress(0), vfAddress(1), vfAddress(2)}},

		"InfiniBand: GUIDs without a driver": {spec: one(1, group("0-0")), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) { infiniband(pf) },
			steps:   []Step{Unbind{vfAddress(0)}, SetGUID{Entry{pf0, 0, vfAddress(0)}, "9e:08:46:92:c7:e2:90:e7"}, Bind{vfAddress(0), ""}},
			touches: []string{vfAddress(0)}, more: true},
		"InfiniBand: before vfio": {spec: one(1, vfio("0-0")), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) {
			infiniband(pf)
			pf.VFs[0].NodeGUID, pf.VFs[0].PortGUID = "00:00:00:00:00:00:00:00", "02:00:00:00:00:00:00:09"
		}, steps: []Step{SetGUID{Entry{pf0, 0, vfAddress(0)}, "02:00:00:00:00:00:00:09"}, Bind{vfAddress(0), "vfio-pci"}}, touches: []string{vfAddress(0)}},
		"InfiniBand: GUIDs are there": {spec: one(1, group("0-0")), pf: ready(1), change: func(i *nodestate.Interface, pf *PF) {
			infiniband(pf)
			i.LinkType, pf.VFs[0].NodeGUID, pf.VFs[0].PortGUID = "IB", "02:00:00:00:00:00:00:08", "02:00:00:00:00:00:00:09"
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.change != nil {
				var unused nodestate.Interface
				i := &unused
				if len(c.spec.Interfaces) > 0 {
					i = &c.spec.Interfaces[0]
				}
				c.change(i, &c.pf)
			}
			p := Compute(c.spec, State{PFs: []PF{c.pf}}, c.options)
			testkit.Diff(t, "steps", c.steps, p.Steps)
			testkit.Diff(t, "touches", c.touches, p.Touches)
			if len(p.Problems) > 0 || p.More != c.more || p.Done() != (len(c.steps) == 0) {
				t.Errorf("problems %v, more %v, done %v", p.Problems, p.More, p.Done())
			}
		})
	}
}

func TestComputeProblems(t *testing.T) {
	for name, c := range map[string]struct {
		spec   nodestate.Spec
		pf     PF
		change func(i *nodestate.Interface, pf *PF)
		want   []string
	}{
		"too many": {spec: one(65), pf: ready(1), want: []string{pf0 + ": numVfs is 65, but the function supports at most 64 virtual functions"}},
		"a link of another type": {spec: one(1), pf: ready(0), change: func(i *nodestate.Interface, _ *PF) { i.LinkType = "IB" },
			want: []string{pf0 + `: the link type is "ether", want linkType "ib"`}},
		"no driver": {spec: one(1), pf: ready(0), change: func(_ *nodestate.Interface, pf *PF) { pf.Driver, pf.Netdev, pf.Link = "", "", "" },
			want: []string{pf0 + ": no driver is bound"}},
		"no network device": {spec: one(1), pf: ready(0), change: func(_ *nodestate.Interface, pf *PF) { pf.Netdev, pf.Link = "", "" },
			want: []string{pf0 + `: the network device of this function (driver "iavfpf") is not in the host`}},
		"switchdev and InfiniBand": {spec: one(1), pf: ready(1), change: func(i *nodestate.Interface, pf *PF) { infiniband(pf); i.ESwitchMode = nodestate.Switchdev },
			want: []string{pf0 + `: eSwitchMode "switchdev" requires Ethernet, but the link type is "infiniband"`}},
		"no mode reported": {spec: one(1), pf: ready(1), change: func(i *nodestate.Interface, pf *PF) { i.ESwitchMode, pf.ESwitch = nodestate.Switchdev, "" },
			want: []string{pf0 + `: the driver "iavfpf" reports no embedded switch mode, want "switchdev"`}},
		"no mode reported by ice": {spec: one(1), pf: ready(0), change: func(i *nodestate.Interface, pf *PF) {
			i.ESwitchMode, pf.ESwitch, pf.Driver = nodestate.Switchdev, "", "ice"
		},
			want: []string{pf0 + `: the driver "ice" reports no embedded switch mode`}},
		"number of functions is changing": {spec: one(4), pf: ready(4), change: func(_ *nodestate.Interface, pf *PF) { pf.VFs = pf.VFs[:2] },
			want: []string{pf0 + ": 4 virtual functions are configured but 2 exist"}},
		"missing VF": {spec: one(2, group("0-1")), pf: ready(2), change: func(_ *nodestate.Interface, pf *PF) { pf.VFs[1].Index = 7 },
			want: []string{pf0 + ": VF 1 does not exist, though 2 virtual functions are configured"}},
		"external: all differences": {spec: one(4), pf: ready(2), change: func(i *nodestate.Interface, pf *PF) {
			i.ExternallyManaged, i.MTU, i.ESwitchMode = true, 9000, nodestate.Switchdev
			pf.Up = false
		}, want: []string{pf0 + ": externally managed, with 2 virtual functions, want at least 4",
			pf0 + `: externally managed, with its embedded switch in mode "legacy", want "switchdev"`,
			pf0 + ": externally managed, with MTU 1500, want at least 9000"}},
		"external: number of functions is changing": {spec: one(2), pf: ready(4), change: func(i *nodestate.Interface, pf *PF) {
			i.ExternallyManaged = true
			pf.VFs = pf.VFs[:1]
		}, want: []string{pf0 + ": 4 virtual functions are configured but 1 exist"}},
		"trust without a table": {spec: one(1, nodestate.VFGroup{VFRange: "0-0", Trust: "on"}), pf: ready(1), change: func(_ *nodestate.Interface, pf *PF) { pf.VFs[0].Known = false },
			want: []string{vfAddress(0) + ": VF 0 is not in the function table of ens1f0, so trust and spoofChk cannot be set"}},
		"invalid": {spec: one(2, group("0-2"), nodestate.VFGroup{VFRange: "x", MTU: 3}), pf: ready(0),
			want: []string{pf0 + ": spec.interfaces[0].vfGroups[0].vfRange: ", pf0 + ": spec.interfaces[0].vfGroups[1].mtu: ", pf0 + ": spec.interfaces[0].vfGroups[1].vfRange: "}},
	} {
		t.Run(name, func(t *testing.T) {
			if c.change != nil {
				c.change(&c.spec.Interfaces[0], &c.pf)
			}
			p := Compute(c.spec, State{PFs: []PF{c.pf}}, Options{})
			var got []string
			for n, problem := range p.Problems {
				got = append(got, problem.String())
				if n < len(c.want) && strings.HasPrefix(problem.String(), c.want[n]) {
					got[n] = c.want[n]
				}
			}
			testkit.Diff(t, "problems", c.want, got)
			if len(p.Steps) > 0 || len(p.Touches) > 0 || p.More || p.Done() {
				t.Errorf("%+v", p)
			}
		})
	}
}

func TestProblemDoesNotBlockOtherPFs(t *testing.T) {
	other := ready(0)
	other.Address, other.TotalVFs = pf1, 0
	spec := nodestate.Spec{Interfaces: []nodestate.Interface{{PCIAddress: pf1, NumVFs: 1}, {PCIAddress: pf0, NumVFs: 1}}}
	p := Compute(spec, State{PFs: []PF{ready(0), other}}, Options{})
	if diff := cmp.Diff([]Step{SetNumVFs{pf0, 1}}, p.Steps); diff != "" || len(p.Problems) != 1 || p.Problems[0].PF != pf1 {
		t.Errorf("problems %v\n%s", p.Problems, diff)
	}
}

func TestMissingPF(t *testing.T) {
	for _, c := range []struct{ address, name, want string }{
		{pf1, "", "no network function with SR-IOV support at this address; the node has 0000:3b:00.0 ens1f0"},
		{pf1, "enp59s0f0", "physical function not found; enp59s0f0 is at 0000:3b:00.0"},
		{vfAddress(1), "", "this is the address of a virtual function (VF 1 of 0000:3b:00.0); use that of a physical function"},
	} {
		spec := one(1)
		spec.Interfaces = append(spec.Interfaces, nodestate.Interface{PCIAddress: c.address, Name: c.name, NumVFs: 1})
		p := Compute(spec, State{PFs: []PF{ready(2)}}, Options{})
		if len(p.Problems) != 0 || len(p.Steps) != 2 || len(p.Notes) != 1 || p.Notes[0].String() != c.address+": "+c.want {
			t.Errorf("%s: %+v, want the steps of the other PF and the note %q", c.address, p, c.want)
		}
	}
}

func TestComputeNotes(t *testing.T) {
	pf := ready(8)
	for _, n := range []int{1, 2, 3, 5} {
		pf.VFs[n].Netdev = ""
	}
	pf.VFs[6].Known, pf.VFs[7].RDMA = false, nil
	spec := one(8, group("0-6"), nodestate.VFGroup{VFRange: "7-7", IsRDMA: true})
	spec.Interfaces[0].Name = "ens9"
	spec.System.RDMAMode = nodestate.Exclusive
	p := Compute(spec, State{PFs: []PF{pf}}, Options{Accept: []string{UnmetRDMA}})
	if !p.Done() {
		t.Fatalf("steps %v, problems %v", p.Steps, p.Problems)
	}
	want := []string{
		`the desired RDMA mode is "exclusive", but the kernel does not report the current mode`,
		pf0 + `: the network device is "ens1f0", but the desired state names "ens9"; the PCI address is used`,
		vfAddress(7) + ": isRdma is set, but it has no RDMA device: load the RDMA module of its driver; accepted",
		pf0 + ": VF 1-3, 5: has a network driver but no network device on the host: a pod has it, or the driver created no device; address and MTU are not compared",
		pf0 + ": VF 6: not in the PF's function table: no address is set",
	}
	var got []string
	for _, n := range p.Notes {
		got = append(got, n.String())
	}
	testkit.Diff(t, "result", want, got)

	infiniband(&pf)
	pf.VFs[0].GUIDs = false
	p = Compute(one(8, group("0-0")), State{PFs: []PF{pf}}, Options{})
	if len(p.Notes) != 1 || !strings.Contains(p.Notes[0].Text, "VF 0: the kernel does not report the GUIDs") || !p.Done() {
		t.Errorf("%+v", p)
	}
}

func TestComputeRDMAMode(t *testing.T) {
	spec := nodestate.Spec{System: nodestate.System{RDMAMode: nodestate.Shared}}
	if p := Compute(spec, State{RDMAMode: "shared"}, Options{}); !p.Done() || len(p.Notes) > 0 {
		t.Errorf("%+v", p)
	}
	p := Compute(spec, State{RDMAMode: "exclusive"}, Options{})
	if len(p.Problems) != 1 || !strings.Contains(p.Problems[0].String(), "netns_mode=1") || p.Problems[0].PF != "" {
		t.Errorf("%+v", p)
	}
	spec.System.RDMAMode = nodestate.Exclusive
	if p := Compute(spec, State{RDMAMode: "shared"}, Options{}); len(p.Problems) != 1 || !strings.Contains(p.Problems[0].Text, "netns_mode=0") {
		t.Errorf("%+v", p)
	}
}

func TestDerivedAddresses(t *testing.T) {
	pf := ready(0)
	ib := ready(0)
	infiniband(&ib)
	again := ib
	again.MAC = "80:00:02:08" + ib.MAC[len("00:00:10:49"):] // queue pair number
	seen := map[string]bool{}
	for n := range 256 {
		mac, ok := macFor(pf, VF{Index: n})
		guid, ok2 := guidFor(ib, VF{Index: n})
		if !ok || !ok2 || len(mac) != 17 || len(guid) != 23 || !strings.Contains("26ae", mac[1:2]) || !strings.Contains("26ae", guid[1:2]) {
			t.Fatalf("%q %v, %q %v", mac, ok, guid, ok2)
		}
		if seen[mac] || seen[guid] {
			t.Fatalf("twice: %q or %q", mac, guid)
		}
		seen[mac], seen[guid] = true, true
		if same, _ := guidFor(again, VF{Index: n}); same != guid {
			t.Fatalf("%q, then %q", guid, same)
		}
	}
	for _, bad := range []PF{{}, {MAC: "x"}, ib} {
		if mac, ok := macFor(bad, VF{}); ok {
			t.Errorf("%q from %q", mac, bad.MAC)
		}
	}
	for _, bad := range []PF{{}, {MAC: "x"}, pf} {
		if guid, ok := guidFor(bad, VF{}); ok {
			t.Errorf("%q from %q", guid, bad.MAC)
		}
	}
}

func TestFormatRanges(t *testing.T) {
	for want, indexes := range map[string][]int{"": nil, "3": {3}, "0-1": {1, 0}, "0, 2-4, 9": {9, 2, 0, 3, 4}} {
		if got := formatRanges(slices.Clone(indexes)); got != want {
			t.Errorf("%v: %q, want %q", indexes, got, want)
		}
	}
}

package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/test/testkit"
)

var configuration = []struct {
	step plan.Step
	so   func(r *rig) bool
}{
	{plan.SetUp{Address: pfAddress}, func(r *rig) bool { return r.read().PFs[0].Up }},
	{plan.SetMTU{Address: pfAddress, MTU: 9000}, func(r *rig) bool { return r.read().PFs[0].MTU == 9000 }},
	{plan.SetNumVFs{PF: pfAddress, Number: 3}, func(r *rig) bool { return r.read().PFs[0].NumVFs == 3 }},
	{plan.SetMAC{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, MAC: mac}, func(r *rig) bool { return r.virtual(1).AdminMAC == mac }},
	{plan.SetTrust{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, On: true}, func(r *rig) bool { return r.virtual(1).Trust }},
	{plan.SetSpoofCheck{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}}, func(r *rig) bool { return !r.virtual(1).SpoofCheck }},
	{plan.SetVLAN{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, VLAN: 7, QoS: 3, QinQ: true}, func(r *rig) bool {
		v := r.virtual(1)
		return v.VLAN == 7 && v.QoS == 3 && v.QinQ
	}},
	{plan.SetVLAN{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}}, func(r *rig) bool { v := r.virtual(1); return v.VLAN == 0 && v.QoS == 0 && !v.QinQ }},
	{plan.SetRates{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, Max: 100}, func(r *rig) bool { return r.virtual(1).MaxRate == 100 }},
	{plan.SetLinkState{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, State: plan.LinkDown}, func(r *rig) bool { return r.virtual(1).LinkState == plan.LinkDown }},
	{plan.Bind{Address: vf0, Driver: "vfio-pci"}, func(r *rig) bool { return r.virtual(0).Driver == "vfio-pci" && r.override(vf0) == "" }},
	{plan.Bind{Address: vf0}, func(r *rig) bool { return r.virtual(0).Driver == "igbvf" && r.override(vf0) == "" }},
	{plan.Unbind{Address: vf1}, func(r *rig) bool { return r.virtual(1).Driver == "" }},
	{plan.Bind{Address: vf1, Driver: "igbvf"}, func(r *rig) bool {
		v := r.virtual(1)
		return v.Driver == "igbvf" && v.MAC == mac && r.override(vf1) == ""
	}},
	{plan.SetMTU{Address: vf1, MTU: 8900}, func(r *rig) bool { return r.virtual(1).MTU == 8900 }},
	{plan.SetUp{Address: vf1}, func(r *rig) bool {
		return testkit.Value(r.host.config.Network.Link(r.Context(), r.virtual(1).Netdev))(r).Up
	}},
	{plan.SetVDPA{Address: vf1, Type: "vhost"}, func(r *rig) bool { return r.virtual(1).VDPA == "vhost" }},
	{plan.SetVDPA{Address: vf1, Type: "virtio"}, func(r *rig) bool { return r.virtual(1).VDPA == "virtio" }},
	{plan.SetVDPA{Address: vf1}, func(r *rig) bool { return r.virtual(1).VDPA == "" }},
	{plan.SetMAC{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, MAC: "00:00:00:00:00:00"}, func(r *rig) bool { return r.virtual(1).AdminMAC == "" }},
	{plan.SetFlowSteering{PF: pf2Address, Mode: plan.SMFS}, func(r *rig) bool { return r.read().PFs[1].FlowSteering == plan.SMFS }},
	{plan.SetESwitch{PF: pf2Address, Mode: nodestate.Switchdev}, func(r *rig) bool { return r.read().PFs[1].ESwitch == nodestate.Switchdev }},
	{plan.SetTCOffload{PF: pf2Address}, func(r *rig) bool { return r.read().PFs[1].TCOffload == nodestate.On }},
	{plan.SetNumVFs{PF: pfAddress}, func(r *rig) bool { return r.read().PFs[0].NumVFs == 0 }},
}

func TestSteps(t *testing.T) {
	r := newRig(t)
	for _, c := range configuration {
		r.do(c.step)
		if !c.so(r) {
			t.Fatalf("%s: no error, but the machine is %+v", c.step, r.read())
		}
		changes := r.budget.changes()
		r.do(c.step)
		// It can be the driver's own choice.
		if _, mac := c.step.(plan.SetMAC); mac {
			changes++
		}
		if n := r.budget.changes() - changes; n != 0 {
			t.Errorf("%s: a repeat changes %d things: %q", c.step, n, r.tree.Writes())
		}
		if !c.so(r) {
			t.Fatalf("%s: after a repeat the machine is %+v", c.step, r.read())
		}
	}
}

// Killed before any of its changes.
func TestKilledStepIsRepeatable(t *testing.T) {
	killed := 0
	for i, c := range configuration {
		for changes := 0; ; changes++ {
			r := newRig(t)
			for _, before := range configuration[:i] {
				r.do(before.step)
			}
			r.restart(changes)
			err := r.host.Do(t.Context(), c.step)
			if err == nil {
				break
			}
			if !errors.Is(err, errKilled) {
				t.Fatalf("%s, killed after %d changes: %v", c.step, changes, err)
			}
			killed++
			r.restart(-1)
			if _, err := r.host.Read(t.Context()); err != nil {
				t.Errorf("%s, killed after %d changes: read: %v", c.step, changes, err)
			}
			r.do(c.step)
			if !c.so(r) {
				t.Errorf("%s, killed after %d changes and repeated: %+v", c.step, changes, r.read())
			}
		}
	}
	if killed < len(configuration) {
		t.Errorf("%d kills for %d steps", killed, len(configuration))
	}
}

func TestRead(t *testing.T) {
	r := newRig(t)
	r.host.config.OVS = filepath.Join(t.TempDir(), "db.sock")
	r.do(plan.SetUp{Address: pfAddress}, plan.SetNumVFs{PF: pfAddress, Number: 2}, plan.SetNumVFs{PF: pf2Address, Number: 1})
	r.tree.ChangeLink("eth0", func(l *netlinks.Link) { l.Names = []string{"ens1f0"} })
	r.tree.ChangeLink("ib0", func(l *netlinks.Link) { l.Encapsulation = plan.InfiniBand })
	const ib = "0000:5e:02.0"
	r.do(plan.SetGUID{Entry: plan.Entry{PF: pf2Address, Address: ib}, GUID: "00:11:22:33:44:55:66:77"}, plan.SetMAC{Entry: plan.Entry{PF: pfAddress, Address: vf0}, MAC: mac},
		plan.SetVDPA{Address: ib, Type: "vhost"}, plan.Bind{Address: vf1, Driver: "vfio-pci"})
	r.tree.AddRDMA(sysfstest.Device(ib), "mlx5_2", "")
	r.tree.Add(sysfstest.Function{Address: "0000:00:02.0", Vendor: "1234", Device: "1111", Driver: "e1000e", Netdev: "lan"})
	r.tree.Add(sysfstest.Function{Address: "0000:00:03.0", Class: 0x120000, Vendor: "8086", Device: "4940", Driver: "4xxx", TotalVFs: 16})

	got := r.read()
	for i := range got.PFs {
		got.PFs[i].MAC = ""
		for v := range got.PFs[i].VFs {
			got.PFs[i].VFs[v].MAC = ""
			if got.PFs[i].VFs[v].Instance == "" {
				t.Errorf("VF %d of PF %d has no instance", v, i)
			}
			got.PFs[i].VFs[v].Instance = ""
		}
	}
	if !strings.Contains(got.BridgesUnknown, "no such file") {
		t.Errorf("bridges: %q", got.BridgesUnknown)
	}
	got.BridgesUnknown = ""
	want := plan.State{RDMAMode: "shared", Others: []plan.Function{{Address: "0000:00:02.0", Driver: "e1000e"}}, PFs: []plan.PF{
		{
			Address: pfAddress, Vendor: "8086", Device: "10c9", Driver: "igb", Netdev: "eth0", Names: []string{"eth0", "ens1f0"},
			Link: plan.Ether, MTU: 1500, Up: true, TotalVFs: 4, NumVFs: 2, VFs: []plan.VF{
				{Index: 0, Address: vf0, Device: "10ca", Driver: "igbvf", Netdev: "eth0v0", MTU: 1500, Known: true, AdminMAC: mac, SpoofCheck: true},
				{Index: 1, Address: vf1, Device: "10ca", Driver: "vfio-pci", Known: true, AdminMAC: "02:00:5e:00:00:04", SpoofCheck: true},
			},
		},
		{
			Address: pf2Address, Vendor: "15b3", Device: "1017", Driver: "mlx5_core", Netdev: "ib0", Names: []string{"ib0"},
			Link: plan.InfiniBand, MTU: 1500, TotalVFs: 4, NumVFs: 1, ESwitch: nodestate.Legacy, FlowSteering: "dmfs", VFs: []plan.VF{
				{
					Index: 0, Address: ib, Device: "1018", Driver: "mlx5_core", Netdev: "ib0v0", MTU: 1500, Known: true, SpoofCheck: true,
					GUIDs: true, NodeGUID: "00:11:22:33:44:55:66:77", PortGUID: "00:11:22:33:44:55:66:77", RDMA: []string{"mlx5_2"}, VDPA: "vhost",
				},
			},
		},
	}}
	testkit.Diff(t, "result", want, got)
}

// A function that is created again at its address is another instance.
func TestInstance(t *testing.T) {
	r := newRig(t)
	r.do(plan.SetNumVFs{PF: pfAddress, Number: 1})
	first := r.virtual(0).Instance
	r.do(plan.SetMTU{Address: vf0, MTU: 8900}, plan.Unbind{Address: vf0}, plan.Bind{Address: vf0})
	if again := r.virtual(0).Instance; again != first {
		t.Errorf("%q, then %q", first, again)
	}
	boot := filepath.Join(t.TempDir(), "boot_id")
	testkit.Must(t, os.WriteFile(boot, []byte("another\n"), 0o600))
	r.host.config.BootID = boot
	if again := r.virtual(0).Instance; again == first || !strings.HasPrefix(again, "another/") {
		t.Errorf("%q, and %q after a reboot", first, again)
	}
	r.host.config.BootID = boot + ".none"
	testkit.WantError(t, "Read", testkit.Err(r.host.Read(t.Context())), os.ErrNotExist, "boot ID")
}

// hw-tc-offload is read in mode switchdev only, the flow steering mode of each
// embedded switch.
func TestReadSwitchdev(t *testing.T) {
	r := newRig(t)
	if pfs := r.read().PFs; pfs[1].TCOffload != "" || pfs[1].FlowSteering != "dmfs" || pfs[0].FlowSteering != "" {
		t.Errorf("mode legacy: %+v", pfs)
	}
	r.do(plan.SetESwitch{PF: pf2Address, Mode: nodestate.Switchdev})
	if pf := r.read().PFs[1]; pf.TCOffload != "off" || pf.FlowSteering != "dmfs" {
		t.Errorf("mode switchdev: %+v", pf)
	}
	r.tree.Fault(sysfstest.Fault{On: "netlink TCOffload ib0", Err: unix.EIO})
	r.tree.Fault(sysfstest.Fault{On: "netlink FlowSteering " + pf2Address, Err: unix.EIO})
	if _, err := r.host.Read(t.Context()); strings.Count(fmt.Sprint(err), "input/output error") != 2 {
		t.Errorf("%v", err)
	}
}

// The error of a driver that refuses what switchdev needs says what to do.
func TestSwitchdevRefused(t *testing.T) {
	r := newRig(t)
	r.do(plan.SetESwitch{PF: pf2Address, Mode: nodestate.Switchdev})
	testkit.WantError(t, "smfs in mode switchdev", r.host.Do(t.Context(), plan.SetFlowSteering{PF: pf2Address, Mode: plan.SMFS}), unix.EOPNOTSUPP,
		pf2Address, "smfs", "--accept=flow-steering")
	r.tree.TCOffload("ib0", plan.Fixed)
	testkit.WantError(t, "fixed", r.host.Do(t.Context(), plan.SetTCOffload{PF: pf2Address}), nil,
		pf2Address, `hw-tc-offload of ib0 is "fixed"`, "--accept=hw-tc-offload")
	r.tree.TCOffload("ib0", nodestate.Off)
	r.tree.Fault(sysfstest.Fault{On: "netlink SetTCOffload ib0", Err: unix.EBUSY})
	testkit.WantError(t, "refused", r.host.Do(t.Context(), plan.SetTCOffload{PF: pf2Address}), unix.EBUSY, "--accept=hw-tc-offload")
}

func TestReadIncomplete(t *testing.T) {
	r := newRig(t)
	r.do(plan.SetNumVFs{PF: pfAddress, Number: 1})
	r.tree.Fault(sysfstest.Fault{On: "netlink Link eth0", Err: unix.EIO, Times: 1})
	r.tree.Fault(sysfstest.Fault{On: "netlink ESwitch " + pf2Address, Err: unix.EIO, Times: 1})
	s, err := r.host.Read(t.Context())
	partial, ok := errors.AsType[*Incomplete](err)
	if !ok || len(partial.Problems) != 2 || !strings.Contains(err.Error(), pfAddress) || !strings.Contains(err.Error(), pf2Address) {
		t.Fatalf("%v, want two problems", err)
	}
	if partial.Problems[0].Device != pfAddress || partial.Problems[1].Device != pf2Address {
		t.Errorf("%+v, want one of each PF", partial.Problems)
	}
	if len(s.PFs) != 2 || len(s.PFs[0].VFs) != 1 || s.PFs[0].VFs[0].Known {
		t.Errorf("%+v", s)
	}
	many := &Incomplete{Problems: make([]inventory.Problem, 9)}
	if !strings.Contains(many.Error(), "and 6 more") {
		t.Error(many)
	}
	r.tree.Fault(sysfstest.Fault{On: "netlink RDMAMode ", Err: unix.EIO})
	testkit.WantError(t, "Read", testkit.Err(r.host.Read(t.Context())), nil, "RDMA")
	testkit.WantError(t, "without sysfs", testkit.Err(New(Config{Sysfs: r.tree.Sysfs + "/none"}).Read(t.Context())), nil, "sysfs")
}

func TestReadWithoutRoutes(t *testing.T) {
	r := newRig(t)
	r.host.config.Links = sysfstest.Links{Tree: r.tree, RoutesErr: unix.EIO}
	if s := r.read(); len(s.PFs) != 2 {
		t.Errorf("%+v", s)
	}
	r.host.config.Links = sysfstest.Links{Tree: r.tree, LinksErr: unix.EIO}
	if _, err := r.host.Read(t.Context()); !strings.Contains(fmt.Sprint(err), "links") {
		t.Errorf("without links: %v", err)
	}
}

// If the driver never reports it, it counts as set.
func TestSettings(t *testing.T) {
	for _, c := range []struct {
		has       netlinks.Setting
		want, set bool
		wrong     bool
	}{
		{netlinks.On, true, false, false}, {netlinks.Off, false, false, false}, {netlinks.On, false, true, true}, {netlinks.Off, true, true, true},
		{netlinks.Unknown, true, false, true}, {netlinks.Unknown, false, false, true}, {netlinks.Unknown, true, true, false},
	} {
		if got := wrongSetting("trust", c.has, c.want, c.set); (got != "") != c.wrong {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

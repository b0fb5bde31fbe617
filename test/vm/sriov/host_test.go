package sriov

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"syscall"
	"testing"

	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
	"github.com/cleatproject/cleat/test/vm/image"
	"github.com/cleatproject/cleat/test/vm/kernel"
)

// TestHost configures the functions of a real card with package sriov/host and
// verifies the result with other tools.
func TestHost(t *testing.T) {
	t.Parallel()
	if err := findBackports(t); err != nil {
		if errors.Is(err, image.ErrNoSource) {
			fmt.Printf("REPORT: sriov/host: no igb (%v): not tested on real network functions, only on NVMe\n", err)
			return
		}
		t.Fatal(err)
	}
	for _, iommu := range soak.Pick(1, []bool{true, false}) { // sriov/host's double refuses vfio-pci without one, too
		t.Run(fmt.Sprintf("IOMMU %t", iommu), func(t *testing.T) {
			t.Parallel()
			h := bootHost(t, iommu)
			if !iommu {
				h.test(h.noIOMMU)
				return
			}
			h.test(h.drivers)
			h.card()
		})
	}
}

// bootHost boots a guest with the card, with or without an IOMMU.
func bootHost(t *testing.T, iommu bool) configured {
	spec := vm.Spec{
		Name: fmt.Sprintf("host-iommu-%t", iommu), Kernel: image.Backports, Emulator: image.Backports,
		Modules: []string{"igb", "igbvf"}, Extra: []string{"vfio-pci"}, // which is loaded on demand
		Tools: []string{"ip"}, Programs: []string{testkit.Build(t, "./test/vm/sriov/steps")}, Devices: vm.IGB(1), // an Intel 82576
	}
	if iommu {
		withIOMMU(&spec)
	}
	return configured{physicalOf(kernel.Of(t, vm.Boot(t, spec)), "igb")}
}

// test runs all steps, and removes the functions.
func (h configured) test(vfio func()) {
	h.Helper()
	h.makes()
	h.table()
	h.residue()
	h.links()
	h.answers()
	vfio()
	h.do(plan.SetNumVFs{PF: h.address})
	h.do(plan.SetNumVFs{PF: h.address})
	if left := h.virtual(); len(left) != 0 {
		h.Errorf("virtual functions %v are left over", left)
	}
}

// configured is a card that is configured with the program steps.
type configured struct{ physical }

func (h configured) do(s plan.Step) {
	h.Helper()
	if _, err := h.tryStep(s); err != nil {
		h.Fatalf("%s: %v", s, err)
	}
}

func (h configured) tryStep(s plan.Step) (string, error) {
	text, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	return h.Try("steps", "do", strings.TrimPrefix(fmt.Sprintf("%T", s), "plan."), string(text))
}

// refused verifies that a step fails with an error that contains all words.
func (h configured) refused(s plan.Step, words ...string) {
	h.Helper()
	_, err := h.tryStep(s)
	if err == nil {
		h.Errorf("%s: succeeded, want an error with %q", s, words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			h.Errorf("%s: got %v, want an error with %q", s, err, w)
		}
	}
}

// read returns the guest's only physical function.
func (h configured) read() plan.PF {
	h.Helper()
	var s plan.State
	testkit.Must(h, json.Unmarshal([]byte(h.Run("steps", "read")), &s))
	if len(s.PFs) != 1 || s.PFs[0].Address != h.address {
		h.Fatalf("got physical functions %+v, want %s", s.PFs, h.address)
	}
	return s.PFs[0]
}

func (h configured) isUp(netdev string) bool {
	h.Helper()
	return strings.Contains(h.Run("ip", "link", "show", netdev), ",UP")
}

// makes verifies the creation of functions. The number can only change from 0.
func (h configured) makes() {
	h.Helper()
	if got := h.read(); got.TotalVFs != 7 || got.NumVFs != 0 || got.Driver != "igb" || got.Netdev == "" || got.Up || got.Link != plan.Ether || got.ESwitch != "" {
		h.Errorf("initial state: %+v", got)
	}
	h.do(plan.SetUp{Address: h.address})
	h.do(plan.SetNumVFs{PF: h.address, Number: 2})
	h.do(plan.SetNumVFs{PF: h.address, Number: 2})
	h.refused(plan.SetNumVFs{PF: h.address, Number: 3}, "device or resource busy", "remove them first")
	h.refused(plan.SetNumVFs{PF: h.address, Number: 8}, "numerical result out of range", "0 to 7")
	got := h.read()
	if got.NumVFs != 2 || len(got.VFs) != 2 || !got.Up {
		h.Fatalf("got %+v, want two virtual functions and the link up", got)
	}
	for i, v := range got.VFs {
		if v.Index != i || v.Address != h.virtual()[i] || v.Driver != "igbvf" || v.Netdev == "" || !v.Known ||
			h.Read(path.Join("/sys/bus/pci/devices", v.Address, "driver_override")) != "(null)" || h.isUp(v.Netdev) {
			h.Errorf("virtual function %d: %+v", i, v)
		}
		// No administrative MAC was set: igbvf reports its own address to igb.
		if v.AdminMAC != v.MAC || v.Trust || !v.SpoofCheck || v.VLAN != 0 || v.GUIDs {
			h.Errorf("virtual function %d in the VF table: %+v", i, v)
		}
	}
}

// table verifies that ip(8) shows the set values, and that a driver uses the
// address when it is bound.
func (h configured) table() {
	h.Helper()
	const mac = "52:54:00:c1:ea:99"
	pf := h.read()
	v := pf.VFs[1]
	for range 2 {
		h.do(plan.SetMAC{Entry: plan.Entry{PF: h.address, VF: 1, Address: v.Address}, MAC: mac})
		h.do(plan.SetTrust{Entry: plan.Entry{PF: h.address, VF: 1, Address: v.Address}, On: true})
		h.do(plan.SetSpoofCheck{Entry: plan.Entry{PF: h.address, VF: 1, Address: v.Address}, On: false})
	}
	shown := h.Run("ip", "link", "show", pf.Netdev)
	if !strings.Contains(shown, mac) || !strings.Contains(shown, "spoof checking off") || !strings.Contains(shown, "trust on") {
		h.Errorf("ip link shows %s", shown)
	}
	got := h.read().VFs
	if got[1].AdminMAC != mac || !got[1].Trust || got[1].SpoofCheck || got[0].AdminMAC != got[0].MAC || got[0].Trust || !got[0].SpoofCheck {
		h.Errorf("got VF table %+v", got)
	}
	h.do(plan.Unbind{Address: v.Address})
	h.do(plan.Bind{Address: v.Address})
	if got := h.read().VFs[1]; got.MAC != mac || got.Driver != "igbvf" {
		h.Errorf("after rebinding: got %+v, want address %s", got, mac)
	}
	h.refused(plan.SetMAC{Entry: plan.Entry{PF: h.address, VF: 1, Address: h.address}, MAC: mac}, "read the machine's state again")
	h.refused(plan.SetGUID{Entry: plan.Entry{PF: h.address, VF: 1, Address: v.Address}, GUID: "00:11:22:33:44:55:66:77"}, "operation not supported")
	h.refused(plan.SetESwitch{PF: h.address, Mode: nodestate.Switchdev}, h.address)
}

// residue verifies that plans reset what ip(8) sets as CNI plugins do, also the
// address of another function.
func (h configured) residue() {
	h.Helper()
	pf := h.read()
	before, group := pf.VFs[1], nodestate.VFGroup{VFRange: "0-1"}
	for _, words := range [][]string{{"vlan", "77", "qos", "3"}, {"trust", "off"}, {"spoofchk", "on"}, {"mac", pf.VFs[0].MAC}} {
		h.Run(append([]string{"ip", "link", "set", pf.Netdev, "vf", "1"}, words...)...)
	}
	if left := h.read().VFs[1]; left.VLAN != 77 || left.QoS != 3 || plan.Same(group, pf, before, left) {
		h.Errorf("left: %+v, was %+v", left, before)
	}
	spec := nodestate.Spec{Interfaces: []nodestate.Interface{{PCIAddress: h.address, NumVFs: 2, VFGroups: []nodestate.VFGroup{group}}}}
	options := plan.Options{Baselines: map[string]plan.VF{before.Address: before}}
	p := plan.Compute(spec, plan.State{PFs: []plan.PF{h.read()}}, options)
	for range 3 {
		for _, s := range p.Steps {
			h.do(s)
		}
		p = plan.Compute(spec, plan.State{PFs: []plan.PF{h.read()}}, options)
	}
	if after := h.read().VFs[1]; !p.Done() || !plan.Same(group, pf, before, after) || after.MAC != before.AdminMAC || after.Instance != before.Instance {
		h.Errorf("after the plans: %+v, was %+v; left are %+v", after, before, p)
	}
	if shown := h.Run("ip", "link", "show", pf.Netdev); strings.Contains(shown, "vlan 77") {
		h.Errorf("ip link shows %s", shown)
	}
	h.do(plan.SetVLAN{Entry: plan.Entry{PF: h.address, VF: 1, Address: before.Address}, VLAN: 78, QoS: 2})
	h.do(plan.SetVLAN{Entry: plan.Entry{PF: h.address, VF: 1, Address: before.Address}})
	h.refused(plan.SetLinkState{Entry: plan.Entry{PF: h.address, VF: 1, Address: before.Address}, State: plan.LinkUp}, "operation not supported")
}

// links verifies MTU and link state of physical and virtual functions.
func (h configured) links() {
	h.Helper()
	pf := h.read()
	v := pf.VFs[0]
	h.do(plan.SetMTU{Address: h.address, MTU: 2000})
	h.do(plan.SetMTU{Address: v.Address, MTU: 1800})
	h.do(plan.SetUp{Address: v.Address})
	h.refused(plan.SetMTU{Address: v.Address, MTU: 60000}, "60000", "minmtu")
	for netdev, want := range map[string]string{pf.Netdev: "2000", v.Netdev: "1800"} {
		if got := h.Read(path.Join("/sys/class/net", netdev, "mtu")); got != want {
			h.Errorf("MTU of %s: got %s, want %s", netdev, got, want)
		}
	}
	got := h.read()
	if got.MTU != 2000 || got.VFs[0].MTU != 1800 || !h.isUp(got.VFs[0].Netdev) {
		h.Errorf("%+v", got)
	}
}

// answers verifies kernel responses that sysfstest imitates.
func (h configured) answers() {
	h.Helper()
	v := h.read().VFs[0]
	const probe = "/sys/bus/pci/drivers_probe"
	bind := func(driver string) string { return path.Join(drivers, driver, "bind") }
	h.WantErrno(h.TryWrite(bind("virtio-pci"), v.Address), syscall.ENODEV) // the device ID does not match
	h.WantErrno(h.TryWrite(path.Join(drivers, "virtio-pci", "unbind"), v.Address), syscall.ENODEV)
	h.WantErrno(h.TryWrite(bind("igbvf"), v.Address), syscall.EBUSY)
	h.WantErrno(h.TryWrite(bind("igbvf"), "0000:99:00.0"), syscall.ENODEV)
	h.Write(path.Join(drivers, "igbvf", "unbind"), v.Address)
	h.autoprobe(false)
	h.Write(probe, v.Address)
	h.is(v.Address, "")
	h.WantErrno(h.TryWrite(bind("igbvf"), v.Address), syscall.ENODEV)
	h.autoprobe(true)
	h.Write(probe, v.Address)
	h.is(v.Address, "igbvf")

	// The VF table has two entries: VF 2 and a zero MAC are rejected.
	netdev := h.read().Netdev
	for _, words := range [][]string{{"mac", "52:54:00:c1:ea:98"}, {"trust", "on"}, {"spoofchk", "off"}} {
		out, err := h.Try(append([]string{"ip", "link", "set", netdev, "vf", "2"}, words...)...)
		if err == nil || !strings.Contains(err.Error(), "Invalid argument") {
			h.Errorf("set %v of missing VF 2: got %s, %v", words, out, err)
		}
	}
	if out, err := h.Try("ip", "link", "set", netdev, "vf", "0", "mac", "01:00:5e:00:00:01"); err == nil || !strings.Contains(err.Error(), "Invalid argument") {
		h.Errorf("set a multicast MAC: got %s, %v", out, err)
	}
	v = h.read().VFs[1]
	h.do(plan.SetMAC{Entry: plan.Entry{PF: h.address, VF: 1, Address: v.Address}, MAC: "00:00:00:00:00:00"})
	if got := h.read().VFs[1]; got.AdminMAC != "" || got.MAC != v.MAC {
		h.Errorf("without an administrative MAC: %+v", got)
	}
	h.do(plan.Unbind{Address: v.Address})
	h.do(plan.Bind{Address: v.Address})
	if got := h.read().VFs[1]; got.AdminMAC != got.MAC || got.MAC == v.MAC || got.MAC == "" {
		h.Errorf("rebound without an administrative MAC: %+v, previous MAC %s", got, v.MAC)
	}
}

// drivers verifies binding to vfio-pci, whose module is loaded on demand, and
// back.
func (h configured) drivers() {
	h.Helper()
	v := h.read().VFs[0]
	for range 2 {
		h.do(plan.Bind{Address: v.Address, Driver: "vfio-pci"})
		h.is(v.Address, "vfio-pci")
	}
	h.refused(plan.SetMTU{Address: v.Address, MTU: 1500}, "no network device", "vfio-pci")
	for range 2 {
		h.do(plan.Bind{Address: v.Address})
		h.is(v.Address, "igbvf")
	}
	h.do(plan.Bind{Address: v.Address, Driver: "vfio-pci"})
	h.do(plan.Bind{Address: v.Address, Driver: "igbvf"})
	h.is(v.Address, "igbvf")
	h.refused(plan.Bind{Address: v.Address, Driver: "virtio-pci"}, "no such device", "does not support")
	h.is(v.Address, "")
	h.refused(plan.Bind{Address: v.Address, Driver: "no-such-driver"}, "no-such-driver", "modprobe")
	h.is(v.Address, "")
	h.autoprobe(false)
	h.refused(plan.Bind{Address: v.Address}, "sriov_drivers_autoprobe")
	h.do(plan.Bind{Address: v.Address, Driver: "igbvf"})
	h.is(v.Address, "igbvf")
	h.autoprobe(true)
}

// noIOMMU verifies that vfio-pci is refused and the function can be rebound.
func (h configured) noIOMMU() {
	h.Helper()
	v := h.read().VFs[0]
	h.refused(plan.Bind{Address: v.Address, Driver: "vfio-pci"}, "no IOMMU", "intel_iommu=on")
	h.is(v.Address, "")
	h.do(plan.Bind{Address: v.Address})
	h.is(v.Address, "igbvf")
}

// is verifies the driver of a function and that driver_override is not set.
func (h configured) is(address, driver string) {
	h.Helper()
	if got := h.of(address, "driver"); got != driver {
		h.Errorf("driver of %s: got %q, want %q", address, got, driver)
	}
	if got := h.Read(path.Join(devices, address, "driver_override")); got != "(null)" {
		h.Errorf("driver_override of %s: got %q, want none", address, got)
	}
}

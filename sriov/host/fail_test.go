package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/test/testkit"
)

// With the step, the value and the usual cause.
func TestFailures(t *testing.T) {
	makeTwo := func(r *rig) { r.do(plan.SetNumVFs{PF: pfAddress, Number: 2}) }
	fault := func(on string, err error) func(*rig) {
		return func(r *rig) { r.tree.Fault(sysfstest.Fault{On: on, Err: err}) }
	}
	then := func(all ...func(*rig)) func(*rig) {
		return func(r *rig) {
			for _, f := range all {
				f(r)
			}
		}
	}
	const numVFs = pfAddress + "/sriov_numvfs 2"
	for name, c := range map[string]struct {
		prepare func(*rig)
		step    plan.Step
		want    error
		says    []string
	}{
		"too many":                 {nil, plan.SetNumVFs{PF: pfAddress, Number: 5}, unix.ERANGE, []string{"5", pfAddress, "0 to 4"}},
		"negative":                 {nil, plan.SetNumVFs{PF: pfAddress, Number: -1}, unix.ERANGE, []string{"-1"}},
		"other VFs exist":          {makeTwo, plan.SetNumVFs{PF: pfAddress, Number: 3}, unix.EBUSY, []string{"there are 2", "remove them first"}},
		"VFs created concurrently": {fault(numVFs, unix.EBUSY), plan.SetNumVFs{PF: pfAddress, Number: 2}, unix.EBUSY, []string{"only change from 0"}},
		"no space":                 {fault(numVFs, unix.ENOMEM), plan.SetNumVFs{PF: pfAddress, Number: 2}, unix.ENOMEM, []string{"pci=realloc", "ARI"}},
		"no driver of PF":          {func(r *rig) { r.do(plan.Unbind{Address: pfAddress}) }, plan.SetNumVFs{PF: pfAddress, Number: 2}, unix.ENOENT, []string{"bound to a driver"}},
		"read-only":                {fault(numVFs, unix.EROFS), plan.SetNumVFs{PF: pfAddress, Number: 2}, unix.EROFS, []string{"mounted writable"}},
		"used by guests":           {then(makeTwo, fault("sriov_numvfs 0", unix.EPERM)), plan.SetNumVFs{PF: pfAddress}, unix.EPERM, []string{"guests"}},
		"driver created none":      {func(r *rig) { r.host.config.Write = func(string, string) error { return nil } }, plan.SetNumVFs{PF: pfAddress, Number: 2}, nil, []string{"there are 0", "want 2", "kernel's log"}},
		"driver removed none":      {then(makeTwo, func(r *rig) { r.host.config.Write = func(string, string) error { return nil } }), plan.SetNumVFs{PF: pfAddress}, nil, []string{"there are 2", "want 0"}},
		"no SR-IOV":                {makeTwo, plan.SetNumVFs{PF: vf0, Number: 1}, unix.ENOENT, []string{vf0, "cannot have"}},
		"no such function":         {nil, plan.SetNumVFs{PF: "0000:99:00.0"}, unix.ENOENT, []string{"no function 0000:99:00.0"}},

		"no link":       {func(r *rig) { r.do(plan.Unbind{Address: pfAddress}) }, plan.SetMTU{Address: pfAddress, MTU: 1500}, errNoNetdev, []string{pfAddress, "none", "in a pod"}},
		"VFIO's link":   {then(makeTwo, func(r *rig) { r.do(plan.Bind{Address: vf0, Driver: "vfio-pci"}) }), plan.SetUp{Address: vf0}, errNoNetdev, []string{"vfio-pci"}},
		"MTU too large": {nil, plan.SetMTU{Address: pfAddress, MTU: 9999}, unix.EINVAL, []string{"9999"}},
		"no MTU":        {nil, plan.SetMTU{Address: pfAddress}, nil, []string{"MTU of 0", "68 to 65536"}},
		"link refuses":  {fault("netlink SetUp eth0", unix.ENODEV), plan.SetUp{Address: pfAddress}, unix.ENODEV, []string{"bring up"}},

		"no entry":        {nil, plan.SetTrust{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, On: true}, nil, []string{"virtual function 1", "read the machine's state again"}},
		"another's entry": {makeTwo, plan.SetTrust{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf0}, On: true}, nil, []string{vf1, vf0, "read the machine's state again"}},
		"negative index":  {makeTwo, plan.SetTrust{Entry: plan.Entry{PF: pfAddress, VF: -1, Address: vf0}, On: true}, nil, []string{"-1"}},
		"PF's address":    {makeTwo, plan.SetTrust{Entry: plan.Entry{PF: "..", VF: 0, Address: vf0}, On: true}, nil, []string{`".."`, "0000:3b:02.1"}},
		"entry refused":   {then(makeTwo, fault("netlink SetSpoofCheck eth0", unix.EOPNOTSUPP)), plan.SetSpoofCheck{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}}, unix.EOPNOTSUPP, []string{"spoof"}},
		"VLAN":            {makeTwo, plan.SetVLAN{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, VLAN: 4096}, nil, []string{"VLAN 4096", "0 to 4095"}},
		"no MAC":          {makeTwo, plan.SetMAC{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, MAC: "mine"}, nil, []string{"mine", "02:00:5e:10:00:01"}},
		"MAC of a group":  {makeTwo, plan.SetMAC{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, MAC: "01:00:5e:00:00:01"}, nil, []string{"01:00:5e:00:00:01", "even"}},
		"long MAC":        {makeTwo, plan.SetMAC{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, MAC: "00:11:22:33:44:55:66:77"}, nil, []string{"six bytes"}},
		"no GUID":         {makeTwo, plan.SetGUID{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, GUID: mac}, nil, []string{mac, "eight bytes"}},
		"GUID of zeros":   {makeTwo, plan.SetGUID{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, GUID: "00:00:00:00:00:00:00:00"}, nil, []string{"zero"}},
		"GUID, Ethernet":  {makeTwo, plan.SetGUID{Entry: plan.Entry{PF: pfAddress, VF: 1, Address: vf1}, GUID: "00:11:22:33:44:55:66:77"}, unix.EOPNOTSUPP, []string{"GUID"}},

		"no switch":   {nil, plan.SetESwitch{PF: pfAddress, Mode: nodestate.Switchdev}, unix.EOPNOTSUPP, []string{"switchdev"}},
		"switch mode": {nil, plan.SetESwitch{PF: pf2Address, Mode: "hub"}, nil, []string{"hub", "legacy"}},

		"no module": {makeTwo, plan.Bind{Address: vf0, Driver: "uio_pci_generic"}, nil, []string{"no driver uio_pci_generic", "modprobe: module not found"}},
		"no IOMMU": {then(makeTwo, func(r *rig) {
			r.tree.RefuseFunctions("vfio-pci", unix.EINVAL)
			r.tree.Remove(sysfstest.Device(vf0) + "/iommu_group")
		}), plan.Bind{Address: vf0, Driver: "vfio-pci"}, unix.EINVAL, []string{"no IOMMU", "enable_unsafe_noiommu_mode"}},
		"driver refuses":   {then(makeTwo, func(r *rig) { r.tree.RefuseFunctions("vfio-pci", unix.EIO) }), plan.Bind{Address: vf0, Driver: "vfio-pci"}, unix.EIO, []string{"kernel log"}},
		"default refuses":  {then(makeTwo, func(r *rig) { r.do(plan.Unbind{Address: vf0}); r.tree.RefuseFunctions("igbvf", unix.EIO) }), plan.Bind{Address: vf0}, nil, []string{"no driver is bound to " + vf0, "module"}},
		"no probing":       {then(makeTwo, func(r *rig) { r.do(plan.Unbind{Address: vf0}) }, autoprobeOff), plan.Bind{Address: vf0}, nil, []string{"sriov_drivers_autoprobe of " + pfAddress}},
		"driver's name":    {makeTwo, plan.Bind{Address: vf0, Driver: "../../x"}, nil, []string{"../../x", "letters"}},
		"driver's option":  {makeTwo, plan.Bind{Address: vf0, Driver: "-r"}, nil, []string{"-r"}},
		"override refused": {then(makeTwo, fault("driver_override vfio-pci", unix.EACCES)), plan.Bind{Address: vf0, Driver: "vfio-pci"}, unix.EACCES, []string{"root"}},
		"unbind refused":   {then(makeTwo, fault("igbvf/unbind "+vf0, unix.EIO)), plan.Unbind{Address: vf0}, unix.EIO, []string{vf0}},

		"vDPA's type":   {makeTwo, plan.SetVDPA{Address: vf0, Type: "tap"}, nil, []string{"tap", "virtio, vhost"}},
		"vDPA's parent": {then(makeTwo, func(r *rig) { r.do(plan.Unbind{Address: vf0}) }), plan.SetVDPA{Address: vf0, Type: "vhost"}, unix.ENODEV, []string{"mlx5_vdpa"}},

		"address":      {nil, plan.SetUp{Address: "eth0"}, nil, []string{`"eth0"`, "0000:3b:02.1"}},
		"path":         {nil, plan.SetNumVFs{PF: "../../../etc"}, nil, []string{"../../../etc"}},
		"unknown step": {nil, strange{}, nil, []string{"unknown step type host.strange"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			if c.prepare != nil {
				c.prepare(r)
			}
			err := r.host.Do(t.Context(), c.step)
			testkit.WantError(t, "Do", err, c.want, append(c.says, c.step.String())...)
		})
	}
	r := newRig(t)
	testkit.WantError(t, "no step", r.host.Do(t.Context(), nil), nil)
}

func autoprobeOff(r *rig) {
	r.Helper()
	testkit.Must(r, r.tree.Write("bus/pci/devices/"+pfAddress+"/sriov_drivers_autoprobe", "0"))
}

type strange struct{}

func (strange) Function() string { return pfAddress }
func (strange) String() string   { return "do something" }

func TestFailedBindLeavesNoOverride(t *testing.T) {
	r := newRig(t)
	r.do(plan.SetNumVFs{PF: pfAddress, Number: 2})
	r.tree.RefuseFunctions("vfio-pci", unix.EIO)
	if err := r.host.Do(t.Context(), plan.Bind{Address: vf0, Driver: "vfio-pci"}); err == nil {
		t.Fatal("bound to a driver that fails")
	}
	if v := r.virtual(0); v.Driver != "" || r.override(vf0) != "" {
		t.Errorf("%+v", v)
	}
	r.do(plan.Bind{Address: vf0})
}

// Created functions have no driver; an explicit one is still bound.
func TestAutoprobeIsRespected(t *testing.T) {
	r := newRig(t)
	autoprobeOff(r)
	r.do(plan.SetNumVFs{PF: pfAddress, Number: 2})
	if v := r.virtual(0); v.Driver != "" {
		t.Errorf("%+v", v)
	}
	r.do(plan.Bind{Address: vf0, Driver: "igbvf"})
	if got, err := os.ReadFile(filepath.Join(r.tree.Sysfs, "bus/pci/devices", pfAddress, "sriov_drivers_autoprobe")); string(got) != "0\n" {
		t.Errorf("the setting is %q, %v", got, err)
	}
}

// No content of sysfs escapes into a path, and reads do not block.
func TestHostileTrees(t *testing.T) {
	place := sysfstest.Device(pfAddress)
	for name, c := range map[string]struct {
		change func(r *rig)
		step   plan.Step
	}{
		"total is a word":           {func(r *rig) { r.tree.File(place+"/sriov_totalvfs", "many") }, plan.SetNumVFs{PF: pfAddress, Number: 1}},
		"total is negative":         {func(r *rig) { r.tree.File(place+"/sriov_totalvfs", "-1") }, plan.SetNumVFs{PF: pfAddress, Number: 1}},
		"total is a directory":      {func(r *rig) { r.tree.Remove(place + "/sriov_totalvfs"); r.tree.File(place+"/sriov_totalvfs/x", "") }, plan.SetNumVFs{PF: pfAddress, Number: 1}},
		"index is a word":           {func(r *rig) { r.tree.Link(place+"/virtfnx", "devices") }, plan.SetNumVFs{PF: pfAddress, Number: 1}},
		"index is huge":             {func(r *rig) { r.tree.Link(place+"/virtfn99999999999", "devices") }, plan.SetNumVFs{PF: pfAddress, Number: 1}},
		"link to another directory": {func(r *rig) { r.tree.Link(place+"/virtfn0", "kernel/iommu_groups") }, plan.SetNumVFs{PF: pfAddress, Number: 1}},
		"link to itself":            {func(r *rig) { r.tree.Link(place+"/virtfn0", place+"/virtfn0") }, plan.SetNumVFs{PF: pfAddress, Number: 1}},
		"another's":                 {func(r *rig) { r.tree.Link(place+"/virtfn0", sysfstest.Device(pf2Address)) }, plan.SetNumVFs{PF: pfAddress, Number: 1}},
		"physfn is a word":          {func(r *rig) { r.tree.Link(place+"/physfn", "devices") }, plan.SetUp{Address: pfAddress}},
		"physfn is a file":          {func(r *rig) { r.tree.File(place+"/physfn", "") }, plan.SetUp{Address: pfAddress}},
		"driver is a path": {func(r *rig) {
			r.tree.Remove(place + "/driver")
			r.tree.Link(place+"/driver", "bus/pci/drivers/a driver")
		}, plan.Unbind{Address: pfAddress}},
		"driver is a file": {func(r *rig) { r.tree.Remove(place + "/driver"); r.tree.File(place+"/driver", "") }, plan.Bind{Address: pfAddress}},
		"function is a file": {func(r *rig) {
			r.tree.Remove("bus/pci/devices/" + pfAddress)
			r.tree.File("bus/pci/devices/"+pfAddress, "")
		}, plan.SetUp{Address: pfAddress}},
		"function is a loop": {func(r *rig) {
			r.tree.Remove("bus/pci/devices/" + pfAddress)
			r.tree.Link("bus/pci/devices/"+pfAddress, "bus/pci/devices/"+pfAddress)
		}, plan.SetUp{Address: pfAddress}},
		"links is a file": {func(r *rig) { r.tree.Remove(place + "/net"); r.tree.File(place+"/net", "") }, plan.SetUp{Address: pfAddress}},
		"link is unknown": {func(r *rig) { r.tree.Remove(place + "/net"); r.tree.File(place+"/net/foreign/x", "") }, plan.SetUp{Address: pfAddress}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			c.change(r)
			before := r.budget.changes()
			if err := r.host.Do(t.Context(), c.step); err == nil {
				t.Errorf("%s: no error", c.step)
			} else if !strings.Contains(err.Error(), pfAddress) {
				t.Errorf("%v does not name the function", err)
			}
			if n := r.budget.changes() - before; n != 0 && !strings.HasPrefix(name, "link is") {
				t.Errorf("%d changes: %q", n, r.tree.Writes())
			}
			_, _ = r.host.Read(t.Context())
		})
	}
}

func TestOwnNetdev(t *testing.T) {
	r := newRig(t)
	place := sysfstest.Device(pfAddress) + "/net/"
	for name, port := range map[string]string{"a0": "pf0vf0", "a1": "c1pf0sf3", "eth0": "p0"} {
		r.tree.File(place+name+"/phys_port_name", port)
	}
	f := testkit.Value(r.host.function(pfAddress))(t)
	defer f.dir.Close()
	if got, err := f.netdev(); got != "eth0" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	r.tree.Remove(sysfstest.Device(pfAddress) + "/net")
	r.tree.File(sysfstest.Device(pfAddress)+"/virtio3/net/eth0/x", "")
	if got, err := f.netdev(); got != "eth0" || err != nil {
		t.Errorf("below virtio: %q, %v", got, err)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	file, fifo, link := filepath.Join(dir, "file"), filepath.Join(dir, "fifo"), filepath.Join(dir, "link")
	for _, err := range []error{os.WriteFile(file, nil, 0o600), unix.Mkfifo(fifo, 0o600), os.Symlink(file, link)} {
		testkit.Must(t, err)
	}
	testkit.Must(t, write(file, "4"))
	if got, err := os.ReadFile(file); string(got) != "4" {
		t.Errorf("%q, %v", got, err)
	}
	for name, want := range map[string]error{fifo: unix.ENXIO, link: unix.ELOOP, dir: unix.EISDIR, dir + "/none": unix.ENOENT, "/dev/null": nil} {
		if err := write(name, "4"); err == nil || want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	testkit.WantError(t, "a file was created", testkit.Err(os.Stat(dir+"/none")), nil)
	testkit.WantError(t, "a full device", write("/dev/full", "4"), nil)
}

func FuzzGUID(f *testing.F) {
	for _, s := range []string{"00:11:22:33:44:55:66:77", "0011:22:33:44:55:66:77:", "00-11-22-33-44-55-66-77", "0011.2233.4455.6677"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if guid, err := parseGUID(s); err == nil && !strings.EqualFold(formatGUID(guid), s) {
			t.Errorf("%q is %q", s, formatGUID(guid))
		}
	})
}

func ExampleHung() {
	fmt.Println(&Hung{What: "create 4 virtual functions on 0000:3b:00.0", Call: `write "4" to /sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs`})
	// Output: create 4 virtual functions on 0000:3b:00.0: the kernel has not returned from this call for 0s: write "4" to /sys/bus/pci/devices/0000:3b:00.0/sriov_numvfs: the driver hangs (its stack is in /proc/PID/task/*/stack, its messages are in the kernel's log); further steps are refused until it returns
}

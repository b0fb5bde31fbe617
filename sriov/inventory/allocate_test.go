package inventory

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/test/testkit"
)

func testMember(address, driver string, change ...func(*Function)) Member {
	f := &Function{Address: address, Kind: NetworkClass, Driver: driver, NUMA: NoNode, PF: address, VF: NoIndex}
	for _, c := range change {
		c(f)
	}
	return Member{Device: Device{ID: address, Function: f}}
}

func testScalable(name string, parent Member, rdma ...RDMA) Member {
	return Member{Device: Device{ID: name, Function: parent.Function, Auxiliary: &Auxiliary{Name: name, Type: "sf", Parent: *parent.Function, RDMA: rdma}}}
}

func group(name string) func(*Function) {
	return func(f *Function) { f.IOMMUGroup = name }
}

func uio(name string) func(*Function) {
	return func(f *Function) { f.UIO = name }
}

func vdpaDevice(name, driver, path string) func(*Function) {
	return func(f *Function) { f.VDPA = &VDPA{Name: name, Driver: driver, Path: path} }
}

func withRDMA(devices ...RDMA) func(*Function) {
	return func(f *Function) { f.RDMA, f.RDMACapable = devices, true }
}

func mlx(number string) RDMA {
	return RDMA{Name: "mlx5_" + number, Devices: []CharDevice{
		{Role: "issm", Path: "/dev/infiniband/issm" + number}, {Role: "umad", Path: "/dev/infiniband/umad" + number},
		{Role: "uverbs", Path: "/dev/infiniband/uverbs" + number}, {Role: "rdma_cm", Path: "/dev/infiniband/rdma_cm"}}}
}

func allocateResource(kind DeviceType, selectors ...Selector) Resource {
	return Resource{Prefix: "example.com", Name: "net", Type: kind, Selectors: append(selectors, Selector{})[:max(1, len(selectors))]}
}

func without(paths ...string) func(string) bool {
	return func(path string) bool { return !slices.Contains(paths, path) }
}

func mounts(t *testing.T, answer *v1beta1.ContainerAllocateResponse) []string {
	var all []string
	for _, d := range answer.Devices {
		if d.Permissions != "rw" {
			t.Errorf("permissions of %s are %q, want rw", d.HostPath, d.Permissions)
		}
		if d.HostPath == d.ContainerPath {
			all = append(all, d.HostPath)
		} else {
			all = append(all, d.HostPath+">"+d.ContainerPath)
		}
	}
	return all
}

func TestAllocate(t *testing.T) {
	extra := func(r Resource, info map[string]map[string]string) Resource {
		r.AdditionalInfo = info
		return r
	}
	rdma, vhost := Selector{RDMA: true}, Selector{VhostNet: true}
	bluefield := testMember("0000:03:00.0", "mlx5_core")
	for _, c := range []struct {
		name     string
		resource Resource
		members  []Member
		exists   func(string) bool
		ids      string
		info     string // without "generic"
		nodes    []string
	}{
		{name: "a kernel driver needs no node", resource: allocateResource(NetDevice), members: []Member{testMember("0000:02:02.0", "iavf", group("12"), uio("uio3"))},
			ids: "0000:02:02.0", info: `{"0000:02:02.0":{}}`},
		{name: "vfio, in the kubelet's order", resource: allocateResource(NetDevice), members: []Member{testMember("0000:02:02.1", "vfio-pci", group("170")), testMember("0000:02:02.0", "vfio-pci", group("169"))},
			ids: "0000:02:02.1,0000:02:02.0", info: `{"0000:02:02.1":{"vfio":{"mount":"/dev/vfio/vfio","dev-mount":"/dev/vfio/170"}},"0000:02:02.0":{"vfio":{"mount":"/dev/vfio/vfio","dev-mount":"/dev/vfio/169"}}}`,
			nodes: []string{"/dev/vfio/vfio", "/dev/vfio/170", "/dev/vfio/169"}},
		{name: "two functions of one group", resource: allocateResource(NetDevice), members: []Member{testMember("0000:02:02.0", "vfio-pci", group("7")), testMember("0000:02:02.1", "vfio-pci", group("7"))},
			ids: "0000:02:02.0,0000:02:02.1", info: `{"0000:02:02.0":{"vfio":{"mount":"/dev/vfio/vfio","dev-mount":"/dev/vfio/7"}},"0000:02:02.1":{"vfio":{"mount":"/dev/vfio/vfio","dev-mount":"/dev/vfio/7"}}}`,
			nodes: []string{"/dev/vfio/vfio", "/dev/vfio/7"}},
		{name: "a no-IOMMU group has another name in the container", resource: allocateResource(NetDevice), members: []Member{testMember("0000:00:07.0", "vfio-pci", group("noiommu-3"))},
			ids: "0000:00:07.0", info: `{"0000:00:07.0":{"vfio":{"mount":"/dev/vfio/vfio","dev-mount":"/dev/vfio/3"}}}`,
			nodes: []string{"/dev/vfio/vfio", "/dev/vfio/noiommu-3>/dev/vfio/3"}},
		{name: "igb_uio", resource: allocateResource(NetDevice), members: []Member{testMember("0000:02:02.0", "igb_uio", uio("uio3"))},
			ids: "0000:02:02.0", info: `{"0000:02:02.0":{"uio":{"mount":"/dev/uio3"}}}`, nodes: []string{"/dev/uio3"}},
		{name: "uio", resource: allocateResource(NetDevice), members: []Member{testMember("0000:02:02.0", "uio", uio("uio0"))},
			ids: "0000:02:02.0", info: `{"0000:02:02.0":{"uio":{"mount":"/dev/uio0"}}}`, nodes: []string{"/dev/uio0"}},
		{name: "a driver without nodes in upstream", resource: allocateResource(NetDevice), members: []Member{testMember("0000:02:02.0", "uio_pci_generic", uio("uio0"))},
			ids: "0000:02:02.0", info: `{"0000:02:02.0":{}}`},
		{name: "an accelerator on vfio", resource: allocateResource(Accelerator), members: []Member{testMember("0000:5e:00.0", "vfio-pci", group("44"))},
			ids: "0000:5e:00.0", info: `{"0000:5e:00.0":{"vfio":{"mount":"/dev/vfio/vfio","dev-mount":"/dev/vfio/44"}}}`, nodes: []string{"/dev/vfio/vfio", "/dev/vfio/44"}},
		{name: "accelerators ignore RDMA, vDPA and vhost-net", resource: allocateResource(Accelerator, Selector{RDMA: true, VDPAType: "vhost", VhostNet: true}),
			members: []Member{testMember("0000:5e:00.0", "dfl-pci", withRDMA(mlx("0")), vdpaDevice("vdpa0", "vhost_vdpa", "/dev/vhost-vdpa-0"))},
			ids:     "0000:5e:00.0", info: `{"0000:5e:00.0":{}}`},
		{name: "RDMA with isRdma", resource: allocateResource(NetDevice, rdma), members: []Member{testMember("0000:05:00.1", "mlx5_core", withRDMA(mlx("2")))},
			ids: "0000:05:00.1", info: `{"0000:05:00.1":{"rdma":{"rdma_dev":"mlx5_2","issm":"/dev/infiniband/issm2","umad":"/dev/infiniband/umad2","uverbs":"/dev/infiniband/uverbs2","rdma_cm":"/dev/infiniband/rdma_cm"}}}`,
			nodes: []string{"/dev/infiniband/issm2", "/dev/infiniband/umad2", "/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm"}},
		{name: "RDMA without isRdma", resource: allocateResource(NetDevice), members: []Member{testMember("0000:05:00.1", "mlx5_core", withRDMA(mlx("2")))},
			ids: "0000:05:00.1", info: `{"0000:05:00.1":{}}`},
		{name: "a shared connection manager is added once", resource: allocateResource(NetDevice, rdma), members: []Member{testMember("0000:05:00.1", "mlx5_core", withRDMA(mlx("2"))), testMember("0000:05:00.2", "mlx5_core", withRDMA(mlx("3")))},
			ids: "0000:05:00.1,0000:05:00.2", info: `{"0000:05:00.1":{"rdma":{"rdma_dev":"mlx5_2","issm":"/dev/infiniband/issm2","umad":"/dev/infiniband/umad2","uverbs":"/dev/infiniband/uverbs2","rdma_cm":"/dev/infiniband/rdma_cm"}},
			  "0000:05:00.2":{"rdma":{"rdma_dev":"mlx5_3","issm":"/dev/infiniband/issm3","umad":"/dev/infiniband/umad3","uverbs":"/dev/infiniband/uverbs3","rdma_cm":"/dev/infiniband/rdma_cm"}}}`,
			nodes: []string{"/dev/infiniband/issm2", "/dev/infiniband/umad2", "/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm", "/dev/infiniband/issm3", "/dev/infiniband/umad3", "/dev/infiniband/uverbs3"}},
		{name: "two RDMA devices on one function: the first one's name, the last one's nodes", resource: allocateResource(NetDevice, rdma),
			members: []Member{testMember("0000:05:00.1", "mlx5_core", withRDMA(mlx("2"), RDMA{Name: "mlx5_9", Devices: []CharDevice{{Role: "uverbs", Path: "/dev/infiniband/uverbs9"}, {Role: "uverbs", Path: "/dev/infiniband/uverbs8"}}}))},
			ids:     "0000:05:00.1", info: `{"0000:05:00.1":{"rdma":{"rdma_dev":"mlx5_2","issm":"/dev/infiniband/issm2","umad":"/dev/infiniband/umad2","uverbs":"/dev/infiniband/uverbs9","rdma_cm":"/dev/infiniband/rdma_cm"}}}`,
			nodes: []string{"/dev/infiniband/issm2", "/dev/infiniband/umad2", "/dev/infiniband/uverbs2", "/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs9", "/dev/infiniband/uverbs8"}},
		{name: "an RDMA device without nodes", resource: allocateResource(NetDevice, rdma), members: []Member{testMember("0000:05:00.1", "mlx5_core", withRDMA(RDMA{Name: "mlx5_2"}))},
			ids: "0000:05:00.1", info: `{"0000:05:00.1":{"rdma":{"rdma_dev":"mlx5_2"}}}`},
		{name: "the matching selector determines the nodes", resource: allocateResource(NetDevice, Selector{}, rdma), members: []Member{testMember("0000:05:00.1", "mlx5_core", withRDMA(mlx("2"))), func() Member {
			m := testMember("0000:05:00.2", "mlx5_core", withRDMA(RDMA{Name: "mlx5_3"}))
			m.Selector = 1
			return m
		}()}, ids: "0000:05:00.1,0000:05:00.2", info: `{"0000:05:00.1":{},"0000:05:00.2":{"rdma":{"rdma_dev":"mlx5_3"}}}`},
		{name: "a selector that does not exist", resource: allocateResource(NetDevice, rdma), members: []Member{func() Member {
			m := testMember("0000:05:00.2", "mlx5_core")
			m.Selector = 7
			return m
		}()}, ids: "0000:05:00.2", info: `{"0000:05:00.2":{}}`},
		{name: "vDPA for userspace", resource: allocateResource(NetDevice, Selector{VDPAType: "vhost"}), members: []Member{testMember("0000:06:00.2", "mlx5_core", vdpaDevice("vdpa2", "vhost_vdpa", "/dev/vhost-vdpa-2"))},
			ids: "0000:06:00.2", info: `{"0000:06:00.2":{"vdpa":{"mount":"/dev/vhost-vdpa-2"}}}`, nodes: []string{"/dev/vhost-vdpa-2"}},
		{name: "vDPA for the kernel", resource: allocateResource(NetDevice, Selector{VDPAType: "virtio"}), members: []Member{testMember("0000:06:00.2", "mlx5_core", vdpaDevice("vdpa2", "virtio_vdpa", ""))},
			ids: "0000:06:00.2", info: `{"0000:06:00.2":{"vdpa":{}}}`},
		{name: "vDPA without vdpaType", resource: allocateResource(NetDevice), members: []Member{testMember("0000:06:00.2", "mlx5_core", vdpaDevice("vdpa2", "vhost_vdpa", "/dev/vhost-vdpa-2"))},
			ids: "0000:06:00.2", info: `{"0000:06:00.2":{}}`},
		{name: "vhost-net beside vfio", resource: allocateResource(NetDevice, vhost), members: []Member{testMember("0000:02:02.0", "vfio-pci", group("169"))},
			ids: "0000:02:02.0", info: `{"0000:02:02.0":{"vfio":{"mount":"/dev/vfio/vfio","dev-mount":"/dev/vfio/169"},"vhost":{"net-mount":"/dev/vhost-net","tun-mount":"/dev/net/tun"}}}`,
			nodes: []string{"/dev/vfio/vfio", "/dev/vfio/169", "/dev/vhost-net", "/dev/net/tun"}},
		{name: "vhost-net is missing on the machine", resource: allocateResource(NetDevice, vhost), members: []Member{testMember("0000:02:02.0", "iavf")}, exists: without("/dev/vhost-net"),
			ids: "0000:02:02.0", info: `{"0000:02:02.0":{}}`},
		{name: "vhost-net without tun is reported but not added, as upstream does", resource: allocateResource(NetDevice, vhost), members: []Member{testMember("0000:02:02.0", "iavf")}, exists: without("/dev/net/tun"),
			ids: "0000:02:02.0", info: `{"0000:02:02.0":{"vhost":{"net-mount":"/dev/vhost-net","tun-mount":"/dev/net/tun"}}}`},
		{name: "vhost-net and RDMA of a scalable function", resource: allocateResource(AuxNetDevice, Selector{RDMA: true, VhostNet: true}), members: []Member{testScalable("mlx5_core.sf.4", bluefield, mlx("5"))},
			ids: "mlx5_core.sf.4", info: `{"mlx5_core.sf.4":{"rdma":{"rdma_dev":"mlx5_5","issm":"/dev/infiniband/issm5","umad":"/dev/infiniband/umad5","uverbs":"/dev/infiniband/uverbs5","rdma_cm":"/dev/infiniband/rdma_cm"},"vhost":{"net-mount":"/dev/vhost-net","tun-mount":"/dev/net/tun"}}}`,
			nodes: []string{"/dev/infiniband/issm5", "/dev/infiniband/umad5", "/dev/infiniband/uverbs5", "/dev/infiniband/rdma_cm", "/dev/vhost-net", "/dev/net/tun"}},
		{name: "a parent's nodes are not a scalable function's", resource: allocateResource(AuxNetDevice), members: []Member{testScalable("mlx5_core.sf.4", testMember("0000:03:00.0", "vfio-pci", group("1")))},
			ids: "mlx5_core.sf.4", info: `{"mlx5_core.sf.4":{}}`},
		{name: "additional information, the device's own over that of all", resource: extra(allocateResource(NetDevice), map[string]map[string]string{
			"*": {"token": "original", "zone": "a"}, "0000:86:00.0": {"token": "specific"}}),
			members: []Member{testMember("0000:86:00.0", "iavf"), testMember("0000:3b:02.6", "iavf")},
			ids:     "0000:86:00.0,0000:3b:02.6", info: `{"0000:86:00.0":{"extra":{"token":"specific","zone":"a"}},"0000:3b:02.6":{"extra":{"token":"original","zone":"a"}}}`},
		{name: "additional information of other devices only", resource: extra(allocateResource(NetDevice), map[string]map[string]string{"0000:86:00.0": {"token": "specific"}}),
			members: []Member{testMember("0000:3b:02.6", "iavf")}, ids: "0000:3b:02.6", info: `{"0000:3b:02.6":{"extra":{}}}`},
		{name: "additional information of a scalable function is its parent's", resource: extra(allocateResource(AuxNetDevice), map[string]map[string]string{"0000:03:00.0": {"a": "b"}, "mlx5_core.sf.4": {"c": "d"}}),
			members: []Member{testScalable("mlx5_core.sf.4", bluefield)}, ids: "mlx5_core.sf.4", info: `{"mlx5_core.sf.4":{"extra":{"a":"b"}}}`},
		{name: "nothing", resource: allocateResource(NetDevice), info: `{}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer := testkit.Value(Allocate(c.resource, c.members, AllocateSettings{Exists: c.exists}))(t)
			var want, got map[string]map[string]map[string]string
			testkit.Must(t, json.Unmarshal([]byte(c.info), &want))
			for id, providers := range want {
				providers["generic"] = map[string]string{"deviceID": id}
			}
			testkit.Must(t, json.Unmarshal([]byte(answer.Envs["PCIDEVICE_EXAMPLE_COM_NET_INFO"]), &got))
			testkit.Diff(t, "information", want, got)
			if ids, ok := answer.Envs["PCIDEVICE_EXAMPLE_COM_NET"]; !ok || ids != c.ids || len(answer.Envs) != 2 {
				t.Errorf("environment %v, want ids %q", answer.Envs, c.ids)
			}
			testkit.Diff(t, "device nodes", c.nodes, mounts(t, answer))
			if len(answer.Mounts)+len(answer.Annotations)+len(answer.CdiDevices) > 0 {
				t.Errorf("without CDI the answer has mounts %v, annotations %v and CDI devices %v, want none", answer.Mounts, answer.Annotations, answer.CdiDevices)
			}
		})
	}
}

// Programs read the text: it must be upstream's.
func TestEnvironmentText(t *testing.T) {
	r := allocateResource(NetDevice, Selector{VhostNet: true})
	r.Prefix, r.Name = "intel.com", "dpdk-nic_1"
	r.AdditionalInfo = map[string]map[string]string{"*": {"token": "<3e49019f>"}}
	answer := testkit.Value(Allocate(r, []Member{testMember("0000:3b:02.6", "vfio-pci", group("169"))}, AllocateSettings{}))(t)
	want := map[string]string{
		"PCIDEVICE_INTEL_COM_DPDK-NIC_1":      "0000:3b:02.6",
		"PCIDEVICE_INTEL_COM_DPDK-NIC_1_INFO": `{"0000:3b:02.6":{"extra":{"token":"\u003c3e49019f\u003e"},"generic":{"deviceID":"0000:3b:02.6"},"vfio":{"dev-mount":"/dev/vfio/169","mount":"/dev/vfio/vfio"},"vhost":{"net-mount":"/dev/vhost-net","tun-mount":"/dev/net/tun"}}}`,
	}
	testkit.Diff(t, "environment", want, answer.Envs)
}

func TestAllocateRejects(t *testing.T) {
	rdma, vhost, virtio := Selector{RDMA: true}, Selector{VDPAType: "vhost"}, Selector{VDPAType: "virtio"}
	unknown := Member{Device: Device{ID: "0000:02:02.0"}, Held: true}
	for _, c := range []struct {
		name     string
		selector Selector
		member   Member
		lacks    string
		node     string
		says     string
	}{
		{"the group's node is missing", Selector{}, testMember("0000:02:02.0", "vfio-pci", group("169")), "/dev/vfio/169", "/dev/vfio/169", "IOMMU group"},
		{"the no-IOMMU group's node is missing", Selector{}, testMember("0000:02:02.0", "vfio-pci", group("noiommu-3")), "/dev/vfio/noiommu-3", "/dev/vfio/noiommu-3", "IOMMU group"},
		{"vfio's own node is missing", Selector{}, testMember("0000:02:02.0", "vfio-pci", group("169")), "/dev/vfio/vfio", "/dev/vfio/vfio", "IOMMU group"},
		{"vfio without a group", Selector{}, testMember("0000:02:02.0", "vfio-pci"), "", "", "enable_unsafe_noiommu_mode"},
		{"a group that is a path", Selector{}, testMember("0000:02:02.0", "vfio-pci", group("../sda")), "", "", "no IOMMU group"},
		{"uio's node is missing", Selector{}, testMember("0000:02:02.0", "igb_uio", uio("uio3")), "/dev/uio3", "/dev/uio3", "igb_uio"},
		{"uio without a device", Selector{}, testMember("0000:02:02.0", "igb_uio"), "", "", "igb_uio created no"},
		{"uio's device is a path", Selector{}, testMember("0000:02:02.0", "uio", uio("../etc")), "", "", "uio created no"},
		{"an RDMA node is missing", rdma, testMember("0000:02:02.0", "mlx5_core", withRDMA(mlx("2"))), "/dev/infiniband/uverbs2", "/dev/infiniband/uverbs2", "mlx5_2"},
		{"RDMA is in a pod's namespace", rdma, testMember("0000:02:02.0", "mlx5_core", func(f *Function) { f.RDMACapable = true }), "", "", "exclusive mode"},
		{"an RDMA node elsewhere", rdma, testMember("0000:02:02.0", "mlx5_core", withRDMA(RDMA{Name: "mlx5_2", Devices: []CharDevice{{Role: "uverbs", Path: "/dev/../etc/shadow"}}})), "", "", "/dev/../etc/shadow"},
		{"vDPA's node is missing", vhost, testMember("0000:02:02.0", "mlx5_core", vdpaDevice("vdpa2", "vhost_vdpa", "/dev/vhost-vdpa-2")), "/dev/vhost-vdpa-2", "/dev/vhost-vdpa-2", "vdpa2"},
		{"vDPA has no node", vhost, testMember("0000:02:02.0", "mlx5_core", vdpaDevice("vdpa2", "vhost_vdpa", "")), "", "", "no node"},
		{"vDPA's node is elsewhere", vhost, testMember("0000:02:02.0", "mlx5_core", vdpaDevice("vdpa2", "vhost_vdpa", "/etc/shadow")), "", "", "no node"},
		{"the vDPA device was removed", virtio, testMember("0000:02:02.0", "mlx5_core"), "", "", "no vDPA device"},
		{"the vDPA driver changed", virtio, testMember("0000:02:02.0", "mlx5_core", vdpaDevice("vdpa2", "vhost_vdpa", "/dev/vhost-vdpa-2")), "", "", "type vhost, want virtio"},
		{"vDPA has no driver", vhost, testMember("0000:02:02.0", "mlx5_core", vdpaDevice("vdpa2", "", "")), "", "", "type invalid, want vhost"},
		{"its properties are not known", Selector{}, unknown, "", "", "its properties are not known"},
	} {
		for _, cdi := range []bool{false, true} {
			t.Run(c.name, func(t *testing.T) {
				good := testMember("0000:02:03.0", "iavf", withRDMA(RDMA{Name: "mlx5_7"}), vdpaDevice("vdpa7", c.selector.VDPAType+"_vdpa", "/dev/vhost-vdpa-7"))
				answer, err := Allocate(allocateResource(NetDevice, c.selector), []Member{good, c.member}, AllocateSettings{CDI: cdi, Exists: without(c.lacks)})
				if err == nil || answer != nil {
					t.Fatalf("Allocate = %v, %v, want an error", answer, err)
				}
				if text := err.Error(); !strings.Contains(text, c.says) || c.node != "" && !strings.Contains(text, ": "+c.node+" does not exist; ") || !strings.Contains(text, "0000:02:02.0") || strings.Contains(text, "02:03") {
					t.Errorf("error %q, want one about the device that says %q and %q", text, c.says, c.node)
				}
			})
		}
	}
}

func TestAllocateReportsAllMissingNodes(t *testing.T) {
	members := []Member{testMember("0000:02:02.0", "vfio-pci", group("1")), testMember("0000:02:02.1", "vfio-pci", group("2"))}
	_, err := Allocate(allocateResource(NetDevice), members, AllocateSettings{Exists: func(string) bool { return false }})
	if err == nil {
		t.Fatal("Allocate succeeded, want errors")
	}
	for _, part := range []string{"/dev/vfio/vfio", "/dev/vfio/1 ", "/dev/vfio/2 "} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

func TestTopology(t *testing.T) {
	on := func(node int) func(*Function) { return func(f *Function) { f.NUMA = node } }
	hidden := allocateResource(NetDevice)
	hidden.ExcludeTopology = true
	for _, c := range []struct {
		name     string
		resource Resource
		member   Member
		want     []int64
	}{
		{"node 1", allocateResource(NetDevice), testMember("0000:02:02.0", "iavf", on(1)), []int64{1}},
		{"node 0", allocateResource(NetDevice), testMember("0000:02:02.0", "iavf", on(0)), []int64{0}},
		{"none", allocateResource(NetDevice), testMember("0000:02:02.0", "iavf", on(-1)), nil},
		{"excluded", hidden, testMember("0000:02:02.0", "iavf", on(1)), nil},
		{"the parent's", allocateResource(AuxNetDevice), testScalable("mlx5_core.sf.4", testMember("0000:03:00.0", "mlx5_core", on(1))), []int64{1}},
		{"unknown function", allocateResource(NetDevice), Member{Device: Device{ID: "0000:02:02.0"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Topology(c.resource, c.member)
			var nodes []int64
			for _, n := range got.GetNodes() {
				nodes = append(nodes, n.ID)
			}
			if !slices.Equal(nodes, c.want) || (got == nil) != (c.want == nil) {
				t.Errorf("Topology = %v, want nodes %v", got, c.want)
			}
		})
	}
}

package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestCDISpec(t *testing.T) {
	r := allocateResource(NetDevice, Selector{VhostNet: true})
	members := []Member{testMember("0000:00:07.0", "vfio-pci", group("noiommu-3")), testMember("0000:00:08.0", "iavf")}
	file, content, err := CDISpec(r, members, AllocateSettings{CDI: true})
	if err != nil || file != "sriov-dp-example.com-net-pci-net.yaml" {
		t.Fatalf("CDISpec = %q, %v, want sriov-dp-example.com-net-pci-net.yaml", file, err)
	}
	want := `cdiVersion: 0.5.0
containerEdits: {}
devices:
- containerEdits:
    deviceNodes:
    - hostPath: /dev/vfio/vfio
      path: /dev/vfio/vfio
      permissions: rw
    - hostPath: /dev/vfio/noiommu-3
      path: /dev/vfio/3
      permissions: rw
    - hostPath: /dev/vhost-net
      path: /dev/vhost-net
      permissions: rw
    - hostPath: /dev/net/tun
      path: /dev/net/tun
      permissions: rw
  name: "0000:00:07.0"
- containerEdits:
    deviceNodes:
    - hostPath: /dev/vhost-net
      path: /dev/vhost-net
      permissions: rw
    - hostPath: /dev/net/tun
      path: /dev/net/tun
      permissions: rw
  name: "0000:00:08.0"
kind: example.com/net-pci
`
	testkit.Diff(t, "spec", want, string(content))
}

func TestCDINames(t *testing.T) {
	parent := testMember("0000:03:00.0", "mlx5_core")
	for _, c := range []struct {
		kind   DeviceType
		member Member
		class  string
	}{
		{NetDevice, testMember("0000:02:02.0", "vfio-pci", group("1")), "net-pci"},
		{Accelerator, testMember("0000:5e:00.0", "vfio-pci", group("1")), "net-accel"},
		{AuxNetDevice, testScalable("mlx5_core.sf.4", parent, mlx("4")), "net-sf"},
	} {
		r := allocateResource(c.kind, Selector{RDMA: c.kind == AuxNetDevice})
		file, content, err := CDISpec(r, []Member{c.member}, AllocateSettings{})
		if want := "sriov-dp-example.com-" + c.class + "-net.yaml"; err != nil || file != want {
			t.Errorf("%s: CDISpec = %q, %v, want %q", c.kind, file, err, want)
		}
		if kind := "kind: example.com/" + c.class + "\n"; !strings.Contains(string(content), kind) {
			t.Errorf("%s: spec\n%s\nwant %q in it", c.kind, content, kind)
		}
		answer := testkit.Value(Allocate(r, []Member{c.member}, AllocateSettings{CDI: true}))(t)
		want := "example.com/" + c.class + "=" + c.member.ID
		testkit.Diff(t, "annotations", map[string]string{"cdi.k8s.io/example.com_" + c.class: want}, answer.Annotations)
		if len(answer.CdiDevices) != 1 || answer.CdiDevices[0].Name != want {
			t.Errorf("CDI devices %v, want %s", answer.CdiDevices, want)
		}
	}
}

// Naming a device without nodes would fail the container.
func TestAllocateCDI(t *testing.T) {
	r := allocateResource(NetDevice)
	members := []Member{testMember("0000:02:02.1", "vfio-pci", group("170")), testMember("0000:02:02.5", "iavf"), testMember("0000:02:02.0", "vfio-pci", group("169"))}
	plain := testkit.Value(Allocate(r, members, AllocateSettings{}))(t)
	answer, err := Allocate(r, members, AllocateSettings{CDI: true})
	testkit.Must(t, err)
	if diff := cmp.Diff(plain.Envs, answer.Envs); diff != "" {
		t.Errorf("environment (-without CDI +with):\n%s", diff)
	}
	if len(answer.Devices)+len(answer.Mounts) > 0 {
		t.Errorf("device nodes %v and mounts %v come with CDI, want none", answer.Devices, answer.Mounts)
	}
	want := map[string]string{"cdi.k8s.io/example.com_net-pci": "example.com/net-pci=0000:02:02.1,example.com/net-pci=0000:02:02.0"}
	testkit.Diff(t, "annotations", want, answer.Annotations)

	answer, err = Allocate(r, members[1:2], AllocateSettings{CDI: true})
	if err != nil || len(answer.Annotations)+len(answer.CdiDevices) > 0 {
		t.Errorf("a device without nodes: annotations %v, CDI devices %v, %v, want none", answer.Annotations, answer.CdiDevices, err)
	}
	if file, content, err := CDISpec(r, members[1:2], AllocateSettings{CDI: true}); err != nil || content != nil || file == "" {
		t.Errorf("CDISpec of it = %q, %q, %v, want a name and no content", file, content, err)
	}
}

func TestCDINodesOfOneDevice(t *testing.T) {
	r := allocateResource(NetDevice, Selector{RDMA: true})
	members := []Member{
		testMember("0000:05:00.1", "mlx5_core", withRDMA(mlx("2"), mlx("3"))),
		testMember("0000:05:00.2", "mlx5_core", withRDMA(RDMA{Name: "mlx5_4", Devices: []CharDevice{{Role: "uverbs", Path: "/etc/shadow"}}})),
	}
	_, content, err := CDISpec(r, members, AllocateSettings{CDI: true})
	testkit.Must(t, err)
	if got := strings.Count(string(content), "path: /dev/infiniband/rdma_cm"); got != 1 {
		t.Errorf("the spec has rdma_cm %d times, want once:\n%s", got, content)
	}
	if text := string(content); strings.Contains(text, "shadow") || strings.Contains(text, "05:00.2") {
		t.Errorf("the spec has a device whose nodes are not below /dev:\n%s", text)
	}
}

// Upstream's annotations have the same name, of which the kubelet keeps one.
func TestCDIDevicesOfTwoResources(t *testing.T) {
	names := map[string]bool{}
	for i, name := range []string{"a", "b"} {
		r := allocateResource(NetDevice)
		r.Name = name
		answer := testkit.Value(Allocate(r, []Member{testMember(fmt.Sprintf("0000:02:02.%d", i), "vfio-pci", group("1"))}, AllocateSettings{CDI: true}))(t)
		for _, d := range answer.CdiDevices {
			names[d.Name] = true
		}
	}
	if diff := cmp.Diff(map[string]bool{"example.com/net-pci=0000:02:02.0": true, "example.com/net-pci=0000:02:02.1": true}, names); diff != "" {
		t.Errorf("CDI devices (-want +got):\n%s", diff)
	}
}

// Prefixes that are valid in Kubernetes but not in CDI.
func TestCDIRejectsNames(t *testing.T) {
	for prefix, says := range map[string]string{
		"3com.com":                              "want a letter",
		strings.Repeat("a", 56) + ".com":        "too long",
		"":                                      "want a letter",
		"a/../b":                                "want a letter",
		"example.com-":                          "want a letter",
		strings.Repeat("a.", 120) + "com":       "too long",
		"example.com\x00":                       "want a letter",
		"e:x":                                   "want a letter",
		"\xff":                                  "want a letter",
		strings.Repeat("x", 64-len("_net-pci")): "too long",
	} {
		r := allocateResource(NetDevice)
		r.Prefix = prefix
		members := []Member{testMember("0000:02:02.0", "vfio-pci", group("1"))}
		if _, _, err := CDISpec(r, members, AllocateSettings{}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("CDISpec with prefix %q: %v, want an error that says %q", prefix, err, says)
		}
		if _, err := Allocate(r, members, AllocateSettings{CDI: true}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Allocate with prefix %q: %v, want an error that says %q", prefix, err, says)
		}
	}
	r := allocateResource(NetDevice)
	r.Prefix = strings.Repeat("x", 63-len("_net-pci"))
	if _, _, err := CDISpec(r, nil, AllocateSettings{}); err != nil {
		t.Errorf("CDISpec with the longest prefix: %v, want none", err)
	}
	r = allocateResource(NetDevice)
	r.Name = "../../etc/passwd"
	if file, _, err := CDISpec(r, nil, AllocateSettings{}); err == nil {
		t.Errorf("CDISpec with a path as name = %q, want an error", file)
	}
	bad := testMember("0000:02:02.0", "vfio-pci", group("1"))
	bad.ID = "a,b"
	if _, err := Allocate(allocateResource(NetDevice), []Member{bad}, AllocateSettings{CDI: true}); err == nil || !strings.Contains(err.Error(), `"a,b"`) {
		t.Errorf("Allocate with an id that is no CDI name: %v, want an error that names it", err)
	}
	if _, content, err := CDISpec(allocateResource(NetDevice), []Member{bad}, AllocateSettings{}); err != nil || content != nil {
		t.Errorf("CDISpec with an id that is no CDI name = %q, %v, want it left out", content, err)
	}
}

func TestDeviceInfo(t *testing.T) {
	rdma := Selector{RDMA: true}
	for _, c := range []struct {
		name     string
		selector Selector
		member   Member
		want     string
	}{
		{"a function", Selector{}, testMember("0000:02:02.0", "iavf", withRDMA(mlx("2"))),
			`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:02:02.0"}}`},
		{"RDMA", rdma, testMember("0000:02:02.0", "mlx5_core", withRDMA(mlx("2"))),
			`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:02:02.0","rdma-device":"mlx5_2"}}`},
		{"two RDMA devices", rdma, testMember("0000:02:02.0", "mlx5_core", withRDMA(mlx("2"), mlx("3"))),
			`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:02:02.0","rdma-device":"mlx5_2,mlx5_3"}}`},
		{"RDMA in another namespace", rdma, testMember("0000:02:02.0", "mlx5_core"),
			`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:02:02.0"}}`},
		{"vDPA for userspace", Selector{VDPAType: "vhost"}, testMember("0000:02:02.0", "mlx5_core", vdpaDevice("vdpa2", "vhost_vdpa", "/dev/vhost-vdpa-2")),
			`{"type":"vdpa","version":"1.1.0","vdpa":{"parent-device":"vdpa2","driver":"vhost","path":"/dev/vhost-vdpa-2","pci-address":"0000:02:02.0"}}`},
		{"vDPA for the kernel", Selector{VDPAType: "virtio"}, testMember("0000:02:02.0", "mlx5_core", vdpaDevice("vdpa2", "virtio_vdpa", "")),
			`{"type":"vdpa","version":"1.1.0","vdpa":{"parent-device":"vdpa2","driver":"virtio","pci-address":"0000:02:02.0"}}`},
		{"vDPA that no selector asks for", Selector{}, testMember("0000:02:02.0", "mlx5_core", vdpaDevice("vdpa2", "vhost_vdpa", "/dev/vhost-vdpa-2")),
			`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:02:02.0"}}`},
		{"vDPA that is no more", Selector{VDPAType: "vhost"}, testMember("0000:02:02.0", "mlx5_core"),
			`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:02:02.0"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			file, content, ok := DeviceInfo(allocateResource(NetDevice, c.selector), c.member)
			if !ok || file != "example.com-net-0000:02:02.0-device.json" || string(content) != c.want {
				t.Errorf("DeviceInfo = %q, %s, %v, want example.com-net-0000:02:02.0-device.json with\n%s", file, content, ok, c.want)
			}
		})
	}
}

func TestNoDeviceInfo(t *testing.T) {
	f := testMember("0000:02:02.0", "iavf")
	path, unknown := f, Member{Device: Device{ID: "0000:02:02.0"}}
	path.Function = &Function{}
	path.ID = "../../../etc/cron.d/x"
	named := allocateResource(NetDevice)
	named.Name = "a/b"
	for _, c := range []struct {
		name     string
		resource Resource
		member   Member
	}{
		{"an accelerator", allocateResource(Accelerator), f},
		{"a scalable function", allocateResource(AuxNetDevice), testScalable("mlx5_core.sf.4", f)},
		{"a scalable function that a pod still has from another configuration", allocateResource(NetDevice), testScalable("mlx5_core.sf.4", f)},
		{"its properties are not known", allocateResource(NetDevice), unknown},
		{"an id that is a path", allocateResource(NetDevice), path},
		{"a name that is a path", named, f},
	} {
		if file, content, ok := DeviceInfo(c.resource, c.member); ok || file != "" || content != nil {
			t.Errorf("%s: DeviceInfo = %q, %s, %v, want none", c.name, file, content, ok)
		}
	}
}

func TestDeviceNodesExists(t *testing.T) {
	root := t.TempDir()
	put := func(name string) {
		t.Helper()
		path := filepath.Join(root, name)
		testkit.Must(t, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644))
	}
	for _, name := range []string{"dev/vfio/1", "dev/null", "etc/passwd", "dev/x/y",
		"sys/class/misc/vfio", "sys/class/misc/vhost-net", "sys/class/misc/tun", "sys/class/misc/rdma_cm", "sys/class/vfio/2", "sys/class/vfio/noiommu-3",
		"sys/class/uio/uio4", "sys/class/infiniband_verbs/uverbs5", "sys/class/infiniband_mad/umad6", "sys/class/infiniband_mad/issm6",
		"sys/bus/vdpa/devices/vdpa7/vhost-vdpa-7", "sys/class/misc/loop-control"} {
		put(name)
	}
	h := DeviceNodes{Sysfs: filepath.Join(root, "sys"), Dev: filepath.Join(root, "dev")}
	for path, want := range map[string]bool{
		"/dev/vfio/1": true, "/dev/null": true, "/dev/x/y": true,
		"/dev/vfio/vfio": true, "/dev/vhost-net": true, "/dev/net/tun": true, "/dev/infiniband/rdma_cm": true, "/dev/vfio/2": true, "/dev/vfio/noiommu-3": true,
		"/dev/uio4": true, "/dev/infiniband/uverbs5": true, "/dev/infiniband/umad6": true, "/dev/infiniband/issm6": true, "/dev/vhost-vdpa-7": true,
		"/dev/vfio/3": false, "/dev/uio5": false, "/dev/infiniband/uverbs6": false, "/dev/vhost-vdpa-8": false, "/dev/loop-control": false, "/dev/tun": false,
		"/dev/vfio/*": false, "/dev/vhost-vdpa-*": false, "/dev/../etc/passwd": false, "/etc/passwd": false, "vfio/1": false, "/dev/": false, "/dev": false, "": false,
		"/dev//vfio/1": false, "/dev/infiniband/uverbs": false, "/dev/uio": false,
	} {
		if got := h.Exists(path); got != want {
			t.Errorf("Exists(%q) = %v, want %v", path, got, want)
		}
	}
}

func TestDeviceNodesDefaultToLocalMachine(t *testing.T) {
	if (DeviceNodes{}).Exists("/dev/null") != true || (DeviceNodes{}).Exists("/dev/vfio/4294967296") {
		t.Error("the zero Host does not look at /dev, want it to have /dev/null and no group 4294967296")
	}
}

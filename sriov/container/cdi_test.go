package container

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/sriov/config"
	"github.com/cleatproject/cleat/sriov/discovery"
	"github.com/cleatproject/cleat/sriov/pool"
)

func TestCDISpec(t *testing.T) {
	r := resource(config.NetDevice, config.Selector{VhostNet: true})
	members := []pool.Member{function("0000:00:07.0", "vfio-pci", group("noiommu-3")), function("0000:00:08.0", "iavf")}
	file, content, err := CDISpec(r, members, Settings{CDI: true})
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
	if diff := cmp.Diff(want, string(content)); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
}

func TestCDINames(t *testing.T) {
	parent := function("0000:03:00.0", "mlx5_core")
	for _, c := range []struct {
		kind   config.DeviceType
		member pool.Member
		class  string
	}{
		{config.NetDevice, function("0000:02:02.0", "vfio-pci", group("1")), "net-pci"},
		{config.Accelerator, function("0000:5e:00.0", "vfio-pci", group("1")), "net-accel"},
		{config.AuxNetDevice, scalable("mlx5_core.sf.4", parent, mlx("4")), "net-sf"},
	} {
		r := resource(c.kind, config.Selector{RDMA: c.kind == config.AuxNetDevice})
		file, content, err := CDISpec(r, []pool.Member{c.member}, Settings{})
		if want := "sriov-dp-example.com-" + c.class + "-net.yaml"; err != nil || file != want {
			t.Errorf("%s: CDISpec = %q, %v, want %q", c.kind, file, err, want)
		}
		if kind := "kind: example.com/" + c.class + "\n"; !strings.Contains(string(content), kind) {
			t.Errorf("%s: spec\n%s\nwant %q in it", c.kind, content, kind)
		}
		answer, err := Allocate(r, []pool.Member{c.member}, Settings{CDI: true})
		if err != nil {
			t.Fatal(err)
		}
		want := "example.com/" + c.class + "=" + c.member.ID
		if diff := cmp.Diff(map[string]string{"cdi.k8s.io/example.com_" + c.class: want}, answer.Annotations); diff != "" {
			t.Errorf("annotations (-want +got):\n%s", diff)
		}
		if len(answer.CdiDevices) != 1 || answer.CdiDevices[0].Name != want {
			t.Errorf("CDI devices %v, want %s", answer.CdiDevices, want)
		}
	}
}

// In CDI mode the environment is the same, and the runtime brings the nodes. A
// device without nodes is no CDI device: to name it would fail the container.
func TestAllocateCDI(t *testing.T) {
	r := resource(config.NetDevice)
	members := []pool.Member{function("0000:02:02.1", "vfio-pci", group("170")), function("0000:02:02.5", "iavf"), function("0000:02:02.0", "vfio-pci", group("169"))}
	plain, err := Allocate(r, members, Settings{})
	if err != nil {
		t.Fatal(err)
	}
	answer, err := Allocate(r, members, Settings{CDI: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(plain.Envs, answer.Envs); diff != "" {
		t.Errorf("environment (-without CDI +with):\n%s", diff)
	}
	if len(answer.Devices)+len(answer.Mounts) > 0 {
		t.Errorf("device nodes %v and mounts %v come with CDI, want none", answer.Devices, answer.Mounts)
	}
	want := map[string]string{"cdi.k8s.io/example.com_net-pci": "example.com/net-pci=0000:02:02.1,example.com/net-pci=0000:02:02.0"}
	if diff := cmp.Diff(want, answer.Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}

	answer, err = Allocate(r, members[1:2], Settings{CDI: true})
	if err != nil || len(answer.Annotations)+len(answer.CdiDevices) > 0 {
		t.Errorf("a device without nodes: annotations %v, CDI devices %v, %v, want none", answer.Annotations, answer.CdiDevices, err)
	}
	if file, content, err := CDISpec(r, members[1:2], Settings{CDI: true}); err != nil || content != nil || file == "" {
		t.Errorf("CDISpec of it = %q, %q, %v, want a name and no content", file, content, err)
	}
}

// A node that two RDMA devices share comes once, and a device all of whose nodes
// are elsewhere is none.
func TestCDINodesOfOneDevice(t *testing.T) {
	r := resource(config.NetDevice, config.Selector{RDMA: true})
	members := []pool.Member{
		function("0000:05:00.1", "mlx5_core", withRDMA(mlx("2"), mlx("3"))),
		function("0000:05:00.2", "mlx5_core", withRDMA(discovery.RDMA{Name: "mlx5_4", Devices: []discovery.CharDevice{{Role: "uverbs", Path: "/etc/shadow"}}})),
	}
	_, content, err := CDISpec(r, members, Settings{CDI: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(content), "path: /dev/infiniband/rdma_cm"); got != 1 {
		t.Errorf("the spec has rdma_cm %d times, want once:\n%s", got, content)
	}
	if text := string(content); strings.Contains(text, "shadow") || strings.Contains(text, "05:00.2") {
		t.Errorf("the spec has a device whose nodes are not below /dev:\n%s", text)
	}
}

// Two resources of one prefix are different annotations for upstream's plugin
// with one name, of which the kubelet takes one.
func TestCDIDevicesOfTwoResources(t *testing.T) {
	names := map[string]bool{}
	for i, name := range []string{"a", "b"} {
		r := resource(config.NetDevice)
		r.Name = name
		answer, err := Allocate(r, []pool.Member{function(fmt.Sprintf("0000:02:02.%d", i), "vfio-pci", group("1"))}, Settings{CDI: true})
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range answer.CdiDevices {
			names[d.Name] = true
		}
	}
	if diff := cmp.Diff(map[string]bool{"example.com/net-pci=0000:02:02.0": true, "example.com/net-pci=0000:02:02.1": true}, names); diff != "" {
		t.Errorf("CDI devices (-want +got):\n%s", diff)
	}
}

// Prefixes that Kubernetes takes and CDI does not.
func TestCDIRefusesNames(t *testing.T) {
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
		r := resource(config.NetDevice)
		r.Prefix = prefix
		members := []pool.Member{function("0000:02:02.0", "vfio-pci", group("1"))}
		if _, _, err := CDISpec(r, members, Settings{}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("CDISpec with prefix %q: %v, want an error that says %q", prefix, err, says)
		}
		if _, err := Allocate(r, members, Settings{CDI: true}); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("Allocate with prefix %q: %v, want an error that says %q", prefix, err, says)
		}
	}
	r := resource(config.NetDevice)
	r.Prefix = strings.Repeat("x", 63-len("_net-pci"))
	if _, _, err := CDISpec(r, nil, Settings{}); err != nil {
		t.Errorf("CDISpec with the longest prefix: %v, want none", err)
	}
	r = resource(config.NetDevice)
	r.Name = "../../etc/passwd"
	if file, _, err := CDISpec(r, nil, Settings{}); err == nil {
		t.Errorf("CDISpec with a path as name = %q, want an error", file)
	}
	bad := function("0000:02:02.0", "vfio-pci", group("1"))
	bad.ID = "a,b"
	if _, err := Allocate(resource(config.NetDevice), []pool.Member{bad}, Settings{CDI: true}); err == nil || !strings.Contains(err.Error(), `"a,b"`) {
		t.Errorf("Allocate with an id that is no CDI name: %v, want an error that names it", err)
	}
	if _, content, err := CDISpec(resource(config.NetDevice), []pool.Member{bad}, Settings{}); err != nil || content != nil {
		t.Errorf("CDISpec with an id that is no CDI name = %q, %v, want it left out", content, err)
	}
}

package container

import (
	"testing"

	"github.com/cleatproject/cleat/sriov/config"
	"github.com/cleatproject/cleat/sriov/discovery"
	"github.com/cleatproject/cleat/sriov/pool"
)

func TestDeviceInfo(t *testing.T) {
	rdma := config.Selector{RDMA: true}
	for _, c := range []struct {
		name     string
		selector config.Selector
		member   pool.Member
		want     string
	}{
		{"a function", config.Selector{}, function("0000:02:02.0", "iavf", withRDMA(mlx("2"))),
			`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:02:02.0"}}`},
		{"RDMA", rdma, function("0000:02:02.0", "mlx5_core", withRDMA(mlx("2"))),
			`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:02:02.0","rdma-device":"mlx5_2"}}`},
		{"two RDMA devices", rdma, function("0000:02:02.0", "mlx5_core", withRDMA(mlx("2"), mlx("3"))),
			`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:02:02.0","rdma-device":"mlx5_2,mlx5_3"}}`},
		{"RDMA in another namespace", rdma, function("0000:02:02.0", "mlx5_core"),
			`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:02:02.0"}}`},
		{"vDPA for userspace", config.Selector{VDPAType: "vhost"}, function("0000:02:02.0", "mlx5_core", vdpaDevice("vdpa2", "vhost_vdpa", "/dev/vhost-vdpa-2")),
			`{"type":"vdpa","version":"1.1.0","vdpa":{"parent-device":"vdpa2","driver":"vhost","path":"/dev/vhost-vdpa-2","pci-address":"0000:02:02.0"}}`},
		{"vDPA for the kernel", config.Selector{VDPAType: "virtio"}, function("0000:02:02.0", "mlx5_core", vdpaDevice("vdpa2", "virtio_vdpa", "")),
			`{"type":"vdpa","version":"1.1.0","vdpa":{"parent-device":"vdpa2","driver":"virtio","pci-address":"0000:02:02.0"}}`},
		{"vDPA that no selector asks for", config.Selector{}, function("0000:02:02.0", "mlx5_core", vdpaDevice("vdpa2", "vhost_vdpa", "/dev/vhost-vdpa-2")),
			`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:02:02.0"}}`},
		{"vDPA that is no more", config.Selector{VDPAType: "vhost"}, function("0000:02:02.0", "mlx5_core"),
			`{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:02:02.0"}}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			file, content, ok := DeviceInfo(resource(config.NetDevice, c.selector), c.member)
			if !ok || file != "example.com-net-0000:02:02.0-device.json" || string(content) != c.want {
				t.Errorf("DeviceInfo = %q, %s, %v, want example.com-net-0000:02:02.0-device.json with\n%s", file, content, ok, c.want)
			}
		})
	}
}

func TestNoDeviceInfo(t *testing.T) {
	f := function("0000:02:02.0", "iavf")
	path, unknown := f, pool.Member{Device: pool.Device{ID: "0000:02:02.0"}}
	path.Function = &discovery.Function{}
	path.ID = "../../../etc/cron.d/x"
	named := resource(config.NetDevice)
	named.Name = "a/b"
	for _, c := range []struct {
		name     string
		resource config.Resource
		member   pool.Member
	}{
		{"an accelerator", resource(config.Accelerator), f},
		{"a scalable function", resource(config.AuxNetDevice), scalable("mlx5_core.sf.4", f)},
		{"a scalable function that a pod still has from another configuration", resource(config.NetDevice), scalable("mlx5_core.sf.4", f)},
		{"nothing is known of it", resource(config.NetDevice), unknown},
		{"an id that is a path", resource(config.NetDevice), path},
		{"a name that is a path", named, f},
	} {
		if file, content, ok := DeviceInfo(c.resource, c.member); ok || file != "" || content != nil {
			t.Errorf("%s: DeviceInfo = %q, %s, %v, want none", c.name, file, content, ok)
		}
	}
}

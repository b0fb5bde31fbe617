package inventory

import "testing"

func TestParseDevicePath(t *testing.T) {
	for target, c := range map[string]struct {
		own  int
		want devicePath
	}{
		"../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0":                     {2, devicePath{"0000:00:03.0", "virtio2"}},
		"../../devices/pci0000:00/0000:00:03.0/0000:3b:00.1/net/eth1":                {2, devicePath{"0000:3b:00.1", ""}},
		"../../../devices/pci0000:3b/0000:3b:00.0/mlx5_core.sf.4":                    {1, devicePath{"0000:3b:00.0", ""}},
		"../../devices/pci0000:3b/0000:3b:00.0/mlx5_core.sf.4/infiniband/mlx5_7":     {2, devicePath{"0000:3b:00.0", "mlx5_core.sf.4"}},
		"../../devices/pci0000:3b/0000:3b:00.0/mlx5_core.sf.4/a/b/infiniband/mlx5_7": {2, devicePath{"0000:3b:00.0", "mlx5_core.sf.4/a/b"}},
		"../../devices/virtual/net/lo":                                               {2, devicePath{}},
		"0000:3b:00.0":                                                               {1, devicePath{}},
		"0000:3b:00.0/net/eth0":                                                      {2, devicePath{"0000:3b:00.0", ""}},
		"eth0":                                                                       {2, devicePath{}},
		"":                                                                           {2, devicePath{}},
		"/":                                                                          {0, devicePath{}},
		"//0000:3b:00.0//":                                                           {1, devicePath{"0000:3b:00.0", ""}},
	} {
		if got := parseDevicePath(target, c.own); got != c.want {
			t.Errorf("%q with %d of its own is at %+v, want %+v", target, c.own, got, c.want)
		}
	}
}

func FuzzParseDevicePath(f *testing.F) {
	f.Add("../../devices/pci0000:00/0000:00:03.0/virtio2/net/eth0", 2)
	f.Fuzz(func(t *testing.T, target string, own int) {
		if at := parseDevicePath(target, own%8); at.address != "" && !isAddress(at.address) {
			t.Errorf("%q is at %+v", target, at)
		}
	})
}

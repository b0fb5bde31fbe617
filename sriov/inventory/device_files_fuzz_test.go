package inventory

import (
	"encoding/json"
	"path"
	"strings"
	"testing"

	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"
	cdi "tags.cncf.io/container-device-interface/specs-go"

	"github.com/cleatproject/cleat/test/testkit"
)

func anyResource(t *rapid.T) (Resource, []Member) {
	kind := rapid.SampledFrom(DeviceTypes()).Draw(t, "type")
	r := Resource{Type: kind, Prefix: rapid.StringMatching(`[a-z][a-z0-9]{0,8}(\.[a-z]{1,5}){0,2}`).Draw(t, "prefix"),
		Name: rapid.StringMatching(`[a-zA-Z0-9]([a-zA-Z0-9_-]{0,10}[a-zA-Z0-9])?`).Draw(t, "name")}
	for range rapid.IntRange(1, 3).Draw(t, "selectors") {
		r.Selectors = append(r.Selectors, Selector{VDPAType: rapid.SampledFrom([]string{"", "", "vhost", "virtio"}).Draw(t, "vdpa"),
			RDMA: rapid.Bool().Draw(t, "rdma"), VhostNet: rapid.Bool().Draw(t, "vhost")})
	}
	if rapid.Bool().Draw(t, "extra") {
		r.AdditionalInfo = map[string]map[string]string{"*": rapid.MapOf(rapid.String(), rapid.String()).Draw(t, "info")}
	}
	var members []Member
	for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(0, 7), 0, 5, rapid.ID).Draw(t, "members") {
		digit := string(rune('0' + n))
		m := testMember("0000:02:02."+digit, rapid.SampledFrom([]string{"", "iavf", "vfio-pci", "igb_uio", "mlx5_core"}).Draw(t, "driver"),
			group(rapid.SampledFrom([]string{"", "1", "2", "noiommu-" + digit}).Draw(t, "group")), uio(rapid.SampledFrom([]string{"", "uio" + digit}).Draw(t, "uio")))
		if rapid.Bool().Draw(t, "has rdma") {
			withRDMA(mlx(digit))(m.Function)
		}
		if rapid.Bool().Draw(t, "has vdpa") {
			vdpaDevice("vdpa"+digit, rapid.SampledFrom([]string{"", "vhost_vdpa", "virtio_vdpa"}).Draw(t, "vdpa driver"), "/dev/vhost-vdpa-"+digit)(m.Function)
		}
		if kind == AuxNetDevice {
			m = testScalable("mlx5_core.sf."+digit, m, m.Function.RDMA...)
		}
		m.Selector = rapid.IntRange(0, len(r.Selectors)).Draw(t, "selector")
		members = append(members, m)
	}
	return r, members
}

// The environment has the requested order; host paths are unique; CDI adds the
// same nodes.
func TestAllocateProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r, members := anyResource(t)
		lacking := rapid.SliceOf(rapid.SampledFrom([]string{"/dev/vfio/vfio", "/dev/vfio/1", "/dev/vhost-net", "/dev/net/tun", "/dev/infiniband/uverbs3"})).Draw(t, "lacking")
		s := AllocateSettings{Exists: without(lacking...)}
		answer, err := Allocate(r, members, s)
		withCDI, errCDI := Allocate(r, members, AllocateSettings{CDI: true, Exists: s.Exists})
		if (err == nil) != (errCDI == nil) {
			t.Fatalf("errors without CDI %v and with it %v, want both or none", err, errCDI)
		}
		if err != nil {
			return
		}
		var ids []string
		for _, m := range members {
			ids = append(ids, m.ID)
		}
		if got := answer.Envs[r.EnvVariable()]; got != strings.Join(ids, ",") {
			t.Fatalf("ids %q, want %q", got, ids)
		}
		var info map[string]map[string]map[string]string
		testkit.Must(t, json.Unmarshal([]byte(answer.Envs[r.EnvVariable()+"_INFO"]), &info))
		if len(info) != len(members) {
			t.Fatalf("information of %d devices, want %d", len(info), len(members))
		}
		given := map[string]string{}
		for _, d := range answer.Devices {
			if given[d.HostPath] != "" {
				t.Fatalf("%s is listed twice", d.HostPath)
			}
			if !strings.HasPrefix(d.HostPath, "/dev/") || path.Clean(d.ContainerPath) != d.ContainerPath || !s.Exists(d.HostPath) {
				t.Fatalf("node %v, want one below /dev that is there", d)
			}
			given[d.HostPath] = d.ContainerPath
		}
		for id, providers := range info {
			if providers["generic"]["deviceID"] != id {
				t.Fatalf("information of %s is %v", id, providers)
			}
		}

		_, content, err := CDISpec(r, members, s)
		testkit.Must(t, err)
		var spec cdi.Spec
		testkit.Must(t, yaml.UnmarshalStrict(content, &spec))
		brought := map[string]string{}
		for _, named := range withCDI.CdiDevices {
			found := false
			for _, d := range spec.Devices {
				if spec.Kind+"="+d.Name != named.Name {
					continue
				}
				found = true
				for _, n := range d.ContainerEdits.DeviceNodes {
					brought[n.HostPath] = n.Path
				}
			}
			if !found {
				t.Fatalf("the spec has no %s", named.Name)
			}
		}
		if len(brought) != len(given) {
			t.Fatalf("CDI adds %v, want %v", brought, given)
		}
		for host, inside := range given {
			if brought[host] != inside {
				t.Fatalf("CDI adds %s as %q, want %q", host, brought[host], inside)
			}
		}
	})
}

// No name escapes a directory or /dev, or names another device or file.
func FuzzNames(f *testing.F) {
	f.Add("example.com", "net", "0000:02:02.0", "12", "uio0", "/dev/vhost-vdpa-3", "/dev/infiniband/uverbs0")
	f.Add("a/b", "../c", "../../etc/passwd", "../sda", "..", "/dev/../etc/shadow", "/dev/mem\x00")
	f.Add("example.com", "net", "0000:02:02.0", "../sda", "../sda", "/etc/shadow", "/dev/../etc/shadow")
	f.Add("", "", "", "", "", "", "")
	f.Add("a", "b,c", "x=y", "noiommu-", ".", "/dev/", "/dev//x")
	f.Fuzz(func(t *testing.T, prefix, name, id, iommu, device, vhost, char string) {
		for _, selector := range []Selector{{}, {RDMA: true}, {VDPAType: "vhost"}} {
			for _, driver := range []string{"vfio-pci", "igb_uio", "mlx5_core"} {
				r := Resource{Type: NetDevice, Prefix: prefix, Name: name, Selectors: []Selector{selector}}
				m := testMember(id, driver, group(iommu), uio(device), vdpaDevice("v", "vhost_vdpa", vhost), withRDMA(RDMA{Name: "m", Devices: []CharDevice{{Role: "uverbs", Path: char}}}))
				for _, cdi := range []bool{false, true} {
					answer, err := Allocate(r, []Member{m}, AllocateSettings{CDI: cdi})
					if err != nil {
						continue
					}
					for _, d := range answer.Devices {
						below(t, d.HostPath)
						below(t, d.ContainerPath)
					}
					for _, d := range answer.CdiDevices {
						if strings.Count(d.Name, "=") != 1 || strings.Count(d.Name, "/") != 1 || strings.ContainsAny(d.Name, ", \n") {
							t.Errorf("CDI device %q", d.Name)
						}
					}
				}
				file, content, err := CDISpec(r, []Member{m}, AllocateSettings{})
				if err == nil && !isSpec(file) {
					t.Errorf("CDI spec in %q", file)
				}
				var spec cdi.Spec
				if err := yaml.UnmarshalStrict(content, &spec); err != nil {
					t.Errorf("CDI spec cannot be read: %v", err)
				}
				for _, d := range spec.Devices {
					for _, n := range d.ContainerEdits.DeviceNodes {
						below(t, n.HostPath)
						below(t, n.Path)
					}
				}
				if file, _, ok := DeviceInfo(r, m); ok && (!isFileName(file) || strings.ContainsAny(file, "/\x00") || !strings.HasSuffix(file, infoSuffix)) {
					t.Errorf("device information in %q", file)
				}
			}
		}
	})
}

func below(t *testing.T, name string) {
	t.Helper()
	if !strings.HasPrefix(name, "/dev/") || path.Clean(name) != name || strings.ContainsRune(name, 0) {
		t.Errorf("device node %q, want one below /dev", name)
	}
}

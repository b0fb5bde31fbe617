package inventory

import (
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

func host() *Snapshot {
	net := func(address, vendor, device, driver string, change ...func(*Function)) Function {
		f := Function{Address: address, Kind: NetworkClass, Class: 0x020000, Vendor: vendor, Device: device, Driver: driver,
			NUMA: NoNode, PF: address, VF: NoIndex}
		for _, c := range change {
			c(&f)
		}
		return f
	}
	vf := func(pf, name string, index int) func(*Function) {
		return func(f *Function) { f.PF, f.PFNames, f.VF = pf, []string{name}, index }
	}
	pf := func(name, link string, vfs int) func(*Function) {
		return func(f *Function) {
			f.PFNames, f.VFs, f.TotalVFs = []string{name}, vfs, 64
			f.Netdevs = []Netdev{{Name: name, Link: link}}
		}
	}
	netdev := func(name, link string) func(*Function) {
		return func(f *Function) { f.Netdevs = []Netdev{{Name: name, Link: link}} }
	}
	rdma := func(f *Function) { f.RDMA = []RDMA{{Name: "mlx5_" + f.Address}} }
	vdpa := func(driver string) func(*Function) {
		return func(f *Function) { f.VDPA = &VDPA{Name: "vdpa:" + f.Address, Driver: driver} }
	}
	ddp := func(profile string) func(*Function) {
		return func(f *Function) { f.DDPProfile = profile }
	}
	bluefield := net("0000:03:00.0", "15b3", "a2d6", "mlx5_core", pf("p0", "ether", 0))
	sf := func(name string, index int) Auxiliary {
		return Auxiliary{Name: name, Type: "sf", Index: index, Driver: "mlx5_core.sf", Parent: bluefield}
	}
	return &Snapshot{
		Functions: []Function{
			net("0000:01:00.0", "8086", "1572", "i40e", pf("eno1", "ether", 0), func(f *Function) { f.DefaultRoute = true }),
			net("0000:02:00.0", "8086", "1572", "i40e", pf("enp2s2f1", "ether", 4)),
			net("0000:02:02.0", "8086", "154c", "iavf", vf("0000:02:00.0", "enp2s2f1", 0), netdev("enp2s2f1v0", "ether"), ddp("GTPv1-C/U IPv4/IPv6 payload")),
			net("0000:02:02.1", "8086", "154c", "vfio-pci", vf("0000:02:00.0", "enp2s2f1", 1), ddp("E710 PPPoE and PPPoL2TPv2")),
			net("0000:02:02.2", "8086", "1889", "ixgbevf", vf("0000:02:00.0", "enp2s2f1", 2), netdev("enp2s2f1v2", "ether")),
			net("0000:02:02.3", "8086", "154c", "", vf("0000:02:00.0", "enp2s2f1", 3)),
			bluefield,
			net("0000:05:00.0", "15b3", "1017", "mlx5_core", pf("ib0", "infiniband", 2), rdma),
			net("0000:05:00.1", "15b3", "1018", "mlx5_core", vf("0000:05:00.0", "ib0", 0), netdev("ib0v0", "infiniband"), rdma),
			net("0000:05:00.2", "15b3", "1018", "mlx5_core", vf("0000:05:00.0", "ib0", 1), func(f *Function) { f.RDMACapable = true }),
			net("0000:06:00.2", "15b3", "101e", "mlx5_core", vf("0000:06:00.0", "ens1", 0), vdpa("vhost_vdpa")),
			net("0000:06:00.3", "15b3", "101e", "mlx5_core", vf("0000:06:00.0", "ens1", 1), vdpa("virtio_vdpa")),
			net("0000:06:00.4", "15b3", "101e", "mlx5_core", vf("0000:06:00.0", "ens1", 2), netdev("ens1v2", "ether"), rdma),
			net("0000:07:00.1", "14e4", "1750", "bnxt_en", vf("0000:07:00.0", "ens3", 0)),
			{Address: "0000:5e:00.0", Kind: AcceleratorClass, Class: 0x120000, Vendor: "8086", Device: "0d90", Driver: "dfl-pci", PF: "0000:5e:00.0", VF: NoIndex},
		},
		Auxiliary: []Auxiliary{sf("mlx5_core.sf.4", 0), sf("mlx5_core.sf.5", 1), sf("mlx5_core.sf.6", 5), sf("mlx5_core.sf.7", 6)},
	}
}

func TestUpstreamPoolExamples(t *testing.T) {
	intelNet := `"vendors":["8086"],"devices":["154c","10ed","1889"],"drivers":["i40evf","ixgbevf","iavf"]`
	for _, c := range []struct {
		name, resources string
		want            map[string][]string
	}{
		{"README: one pool per use, the first one wins", `
			{"resourceName":"intel_sriov_netdevice","selectors":[{` + intelNet + `}]},
			{"resourceName":"intel_sriov_dpdk","resourcePrefix":"intel.com","selectors":[{"vendors":["8086"],"devices":["154c","10ed","1889"],
			  "drivers":["vfio-pci"],"pfNames":["enp0s0f0","enp2s2f1"],"needVhostNet":true}]},
			{"resourceName":"mlnx_sriov_rdma","resourcePrefix":"mellanox.com","selectors":[{"vendors":["15b3"],"devices":["1018"],"drivers":["mlx5_ib"],"isRdma":true}]},
			{"resourceName":"infiniband_rdma_netdevs","selectors":[{"linkTypes":["infiniband"],"isRdma":true}]},
			{"resourceName":"ct6dx_vdpa_vhost","selectors":[{"vendors":["15b3"],"devices":["101e"],"drivers":["mlx5_core"],"vdpaType":"vhost"}]},
			{"resourceName":"intel_fpga","deviceType":"accelerator","selectors":[{"vendors":["8086"],"devices":["0d90"]}]},
			{"resourceName":"bf2_sf","resourcePrefix":"nvidia.com","deviceType":"auxNetDevice","selectors":[{"vendors":["15b3"],"devices":["a2d6"],"pfNames":["p0#1-5"],"auxTypes":["sf"]}]},
			{"resourceName":"intel_sriov_netdevice_additional_env","selectors":[{` + intelNet + `}],"additionalInfo":{"*":{"token":"3e49"}}},
			{"resourceName":"brcm_sriov_bnxt","resourcePrefix":"broadcom.com","selectors":[{"vendors":["14e4"],"devices":["1750"],"drivers":["bnxt_en"]}]},
			{"resourceName":"old_selectors_syntax_example","selectors":{` + intelNet + `}}`,
			map[string][]string{
				"intel.com/intel_sriov_netdevice": {"0000:02:02.0", "0000:02:02.2"}, "intel.com/intel_sriov_dpdk": {"0000:02:02.1"},
				// mlx5_ib is not a PCI driver.
				"mellanox.com/mlnx_sriov_rdma": nil, "intel.com/infiniband_rdma_netdevs": {"0000:05:00.1", "0000:05:00.2"},
				"intel.com/ct6dx_vdpa_vhost": {"0000:06:00.2"}, "intel.com/intel_fpga": {"0000:5e:00.0"},
				"nvidia.com/bf2_sf": {"mlx5_core.sf.5", "mlx5_core.sf.6"},
				"intel.com/intel_sriov_netdevice_additional_env": nil, "broadcom.com/brcm_sriov_bnxt": {"0000:07:00.1"},
				"intel.com/old_selectors_syntax_example": nil,
			}},
		{"README: selectors in order, the narrow one first", `{"resourceName":"a","selectors":[{"vendors":["8086"],"devices":["154c"]},{"vendors":["8086"],"needVhostNet":true}]}`,
			map[string][]string{"intel.com/a": {"0:0000:02:02.0", "0:0000:02:02.1", "1:0000:02:02.2"}}},
		{"README: selectors in order, the wide one first", `{"resourceName":"a","selectors":[{"vendors":["8086"],"needVhostNet":true},{"vendors":["8086"],"devices":["154c"]}]}`,
			map[string][]string{"intel.com/a": {"0:0000:02:02.0", "0:0000:02:02.1", "0:0000:02:02.2"}}},
		{"README: VFs 0, 2 up to 7 and 9", `{"resourceName":"a","selectors":[{"pfNames":["enp2s2f1#0,2-7,9"]}]}`,
			map[string][]string{"intel.com/a": {"0000:02:02.0", "0000:02:02.2"}}},
		{"README: VFs by address of the PF", `{"resourceName":"a","selectors":[{"rootDevices":["0000:02:00.0#0-1,3,4"]}]}`,
			map[string][]string{"intel.com/a": {"0000:02:02.0", "0000:02:02.1"}}},
		{"README: a PF alone means all its VFs", `{"resourceName":"a","selectors":[{"pfNames":["ens1"]}]}`,
			map[string][]string{"intel.com/a": {"0000:06:00.2", "0000:06:00.3", "0000:06:00.4"}}},
		{"vDPA, both types", `
			{"resourceName":"vdpa_mlx_virtio","selectors":[{"vendors":["15b3"],"devices":["101e"],"drivers":["mlx5_core"],"vdpaType":"virtio"}]},
			{"resourceName":"vdpa_mlx_vhost","selectors":[{"vendors":["15b3"],"devices":["101e"],"drivers":["mlx5_core"],"vdpaType":"vhost"}]}`,
			map[string][]string{"intel.com/vdpa_mlx_virtio": {"0000:06:00.3"}, "intel.com/vdpa_mlx_vhost": {"0000:06:00.2"}}},
		{"RDMA", `
			{"resourceName":"mlnx_rdma","resourcePrefix":"mellanox.com","selectors":[{"vendors":["15b3"],"devices":["1016","1018"],"drivers":["mlx5_core"],"isRdma":true}]},
			{"resourceName":"intel_rdma","selectors":{"vendors":["8086"],"devices":["1889"],"drivers":["iavf"],"isRdma":true}}`,
			map[string][]string{"mellanox.com/mlnx_rdma": {"0000:05:00.1", "0000:05:00.2"}, "intel.com/intel_rdma": nil}},
		{"DPDK", `{"resourceName":"intel_x710vfio","selectors":[{"vendors":["8086"],"devices":["154c"],"drivers":["vfio-pci"]}]}`,
			map[string][]string{"intel.com/intel_x710vfio": {"0000:02:02.1"}}},
		{"DDP profiles", `
			{"resourceName":"x700_gtp","resourcePrefix":"intel.com","selectors":[{"vendors":["8086"],"devices":["154c"],"ddpProfiles":["GTPv1-C/U IPv4/IPv6 payload"]}]},
			{"resourceName":"x700_pppoe","resourcePrefix":"intel.com","selectors":[{"vendors":["8086"],"devices":["154c"],"ddpProfiles":["E710 PPPoE and PPPoL2TPv2"]}]}`,
			map[string][]string{"intel.com/x700_gtp": {"0000:02:02.0"}, "intel.com/x700_pppoe": {"0000:02:02.1"}}},
		{"VFs and SFs", `
			{"resourceName":"cx6dx_vf","resourcePrefix":"nvidia.com","selectors":[{"vendors":["15b3"],"devices":["101e"]}]},
			{"resourceName":"cx6dx_sf","resourcePrefix":"nvidia.com","deviceType":"auxNetDevice","selectors":[{"vendors":["15b3"],"devices":["a2d6"],"auxTypes":["sf"]}]}`,
			map[string][]string{"nvidia.com/cx6dx_vf": {"0000:06:00.2", "0000:06:00.3", "0000:06:00.4"},
				"nvidia.com/cx6dx_sf": {"mlx5_core.sf.4", "mlx5_core.sf.5", "mlx5_core.sf.6", "mlx5_core.sf.7"}}},
		{"a configuration per node", `{"resourceName":"sriovnics","selectors":{"pfNames":["enp2s2f1#0-1","ens1#0-9"],"IsRdma":false,"NeedVhostNet":false},"SelectorObj":null}`,
			map[string][]string{"intel.com/sriovnics": {"0000:02:02.0", "0000:02:02.1", "0000:06:00.2", "0000:06:00.3", "0000:06:00.4"}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := Assign(parsed(t, c.resources), host(), AssignOptions{})
			got := map[string][]string{}
			for _, p := range a.Pools {
				got[p.Resource.FullName()] = ids(p, len(p.Resource.Selectors) > 1)
			}
			testkit.Diff(t, "pools", c.want, got)
		})
	}
}

func parsed(t testing.TB, resources string) Config {
	c, _, err := ParseConfig([]byte(`{"resourceList":[`+resources+`]}`), ParseOptions{})
	testkit.Must(t, err)
	return c
}

func ids(p Pool, numbered bool) []string {
	var all []string
	for _, m := range p.Members {
		id := m.ID
		if numbered {
			id = string(rune('0'+m.Selector)) + ":" + id
		}
		all = append(all, id)
	}
	return all
}

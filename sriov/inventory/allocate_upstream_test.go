package inventory_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/test/testkit"
)

// information is the device's part of _INFO, without "generic".
type information map[string]map[string]string

// For all devices of a pool.
type upstreamGiven struct {
	devices []string
	info    map[string]information // by device
	nodes   []string               // host>container
}

var (
	vhost      = map[string]string{"net-mount": "/dev/vhost-net", "tun-mount": "/dev/net/tun"}
	vhostNodes = []string{"/dev/vhost-net", "/dev/net/tun"}
)

func vfio(group string) map[string]string {
	return map[string]string{"mount": "/dev/vfio/vfio", "dev-mount": "/dev/vfio/" + group}
}

func upstreamRDMA(name, number string) map[string]string {
	d := "/dev/infiniband/"
	return map[string]string{"rdma_dev": name, "uverbs": d + "uverbs" + number, "umad": d + "umad" + number, "issm": d + "issm" + number, "rdma_cm": d + "rdma_cm"}
}

// docs/rdma also has ucm2, which does not exist since Linux 5.1.
func rdmaNodes(numbers ...string) []string {
	nodes := []string{"/dev/infiniband/rdma_cm"}
	for _, n := range numbers {
		nodes = append(nodes, "/dev/infiniband/uverbs"+n, "/dev/infiniband/umad"+n, "/dev/infiniband/issm"+n)
	}
	return nodes
}

// Zoo functions with kernel drivers for the README's first selector.
const intelNet = `"vendors":["8086"],"devices":["154c","10ed","1889"],"drivers":["i40evf","ixgbevf","iavf"]`

// upstreamRows are upstream's examples with the documented results; "Code:" is
// the code's behavior where it differs.
func upstreamRows() []upstreamRow {
	return slices.Concat(readmeRows(), additionalRows(), pageRows())
}

type upstreamRow struct {
	page    string
	machine string
	config  string // resourceList
	want    map[string]upstreamGiven
}

func readmeRows() []upstreamRow {
	return []upstreamRow{
		// The documentation has a superfluous comma after brcm_sriov_bnxt's
		// selectors.
		{"README, Config parameters", "zoo", `
			{"resourceName":"intel_sriov_netdevice","selectors":[{` + intelNet + `}]},
			{"resourceName":"intel_sriov_dpdk","resourcePrefix":"intel.com","selectors":[{"vendors":["8086"],"devices":["154c","10ed","1889"],
			  "drivers":["vfio-pci"],"pfNames":["enp0s0f0","enp2s2f1"],"needVhostNet":true}]},
			{"resourceName":"mlnx_sriov_rdma","resourcePrefix":"mellanox.com","selectors":[{"vendors":["15b3"],"devices":["1018"],"drivers":["mlx5_ib"],"isRdma":true}]},
			{"resourceName":"infiniband_rdma_netdevs","selectors":[{"linkTypes":["infiniband"],"isRdma":true}]},
			{"resourceName":"ct6dx_vdpa_vhost","selectors":[{"vendors":["15b3"],"devices":["101e"],"drivers":["mlx5_core"],"vdpaType":"vhost"}]},
			{"resourceName":"intel_fpga","deviceType":"accelerator","selectors":[{"vendors":["8086"],"devices":["0d90"]}]},
			{"resourceName":"bf2_sf","resourcePrefix":"nvidia.com","deviceType":"auxNetDevice","selectors":[{"vendors":["15b3"],"devices":["a2d6"],"pfNames":["p0#1-5"],"auxTypes":["sf"]}]},
			{"resourceName":"intel_sriov_netdevice_additional_env","selectors":[{` + intelNet + `}],"additionalInfo":{"*":{"token":"3e49019f-412f-4f02-824e-4cd195944205"}}},
			{"resourceName":"brcm_sriov_bnxt","resourcePrefix":"broadcom.com","selectors":[{"vendors":["14e4"],"devices":["1750"],"drivers":["bnxt_en"]}]},
			{"resourceName":"old_selectors_syntax_example","selectors":{` + intelNet + `}}`,
			map[string]upstreamGiven{
				"intel.com/intel_sriov_netdevice": {devices: []string{"0000:02:02.0", "0000:02:02.5", "0000:18:02.0", "0000:18:02.1"}},
				"intel.com/intel_sriov_dpdk": {
					[]string{"0000:02:02.1", "0000:02:02.2"},
					map[string]information{"0000:02:02.1": {"vfio": vfio("1001"), "vhost": vhost}, "0000:02:02.2": {"vfio": vfio("1002"), "vhost": vhost}},
					append([]string{"/dev/vfio/vfio", "/dev/vfio/1001", "/dev/vfio/1002"}, vhostNodes...)},
				// Code: the driver of the PCI function is mlx5_core, never mlx5_ib.
				"mellanox.com/mlnx_sriov_rdma": {},
				"intel.com/infiniband_rdma_netdevs": {
					[]string{"0000:05:00.2", "0000:05:00.3"},
					map[string]information{"0000:05:00.2": {"rdma": upstreamRDMA("mlx5_4", "3")}, "0000:05:00.3": {"rdma": upstreamRDMA("mlx5_5", "4")}},
					rdmaNodes("3", "4")},
				"intel.com/ct6dx_vdpa_vhost": {
					[]string{"0000:06:00.2"}, map[string]information{"0000:06:00.2": {"vdpa": {"mount": "/dev/vhost-vdpa-0"}}}, []string{"/dev/vhost-vdpa-0"}},
				"intel.com/intel_fpga": {
					[]string{"0000:5e:00.0", "0000:5f:00.0"}, map[string]information{"0000:5f:00.0": {"vfio": vfio("50")}}, []string{"/dev/vfio/vfio", "/dev/vfio/50"}},
				"nvidia.com/bf2_sf": {devices: []string{"mlx5_core.sf.3", "mlx5_core.sf.4", "mlx5_core.sf.5", "mlx5_core.sf.6", "mlx5_core.sf.7"}},
				// The first resource already has the devices.
				"intel.com/intel_sriov_netdevice_additional_env": {},
				"broadcom.com/brcm_sriov_bnxt":                   {devices: []string{"0000:09:02.0"}},
				"intel.com/old_selectors_syntax_example":         {},
			}},
		{"README, Device selectors: the narrow one first has no vhost-net", "readme", `{"resourceName":"a","selectors":[{"vendors":["8086"],"devices":["154c"]},{"vendors":["8086"],"needVhostNet":true}]}`,
			map[string]upstreamGiven{"intel.com/a": {
				[]string{"0000:03:02.1", "0000:03:04.3", "0000:3b:02.6", "0000:86:00.0"},
				map[string]information{"0000:3b:02.6": {"vfio": vfio("169")}, "0000:86:00.0": {"vhost": vhost}},
				append([]string{"/dev/vfio/vfio", "/dev/vfio/169"}, vhostNodes...)}}},
		{"README, Device selectors: the wide one first has it for all", "readme", `{"resourceName":"a","selectors":[{"vendors":["8086"],"needVhostNet":true},{"vendors":["8086"],"devices":["154c"]}]}`,
			map[string]upstreamGiven{"intel.com/a": {
				[]string{"0000:03:02.1", "0000:03:04.3", "0000:3b:02.6", "0000:86:00.0"},
				map[string]information{"0000:03:02.1": {"vhost": vhost}, "0000:03:04.3": {"vhost": vhost}, "0000:3b:02.6": {"vfio": vfio("169"), "vhost": vhost}, "0000:86:00.0": {"vhost": vhost}},
				append([]string{"/dev/vfio/vfio", "/dev/vfio/169"}, vhostNodes...)}}},
		{"README, selectors' tables: pciAddresses", "readme", `{"resourceName":"a","selectors":[{"pciAddresses":["0000:03:02.1"]}]}`,
			map[string]upstreamGiven{"intel.com/a": {devices: []string{"0000:03:02.1"}}}},
		// The index refers to a PF with VFs, which is in no pool.
		{"README, selectors' tables: acpiIndexes", "zoo", `{"resourceName":"a","selectors":[{"acpiIndexes":["101"]}]}`, map[string]upstreamGiven{"intel.com/a": {}}},
		{"README, selectors' tables: rootDevices", "zoo", `{"resourceName":"a","selectors":[{"rootDevices":["0000:18:00.0"]}]}`,
			map[string]upstreamGiven{"intel.com/a": {devices: []string{"0000:18:02.0", "0000:18:02.1"}}}},
		// Code: compared as text with the kernel's value, which has the
		// membership bit: 0x8001, not 0x1.
		{"README, selectors' tables: pKeys", "zoo", `{"resourceName":"page","selectors":[{"linkTypes":["infiniband"],"pKeys":["0x1","0xABCD","0x50"]}]},
			{"resourceName":"kernel","selectors":[{"linkTypes":["infiniband"],"pKeys":["0x8001"]}]}`,
			map[string]upstreamGiven{"intel.com/page": {}, "intel.com/kernel": {devices: []string{"0000:05:00.2", "0000:05:00.3"}}}},
		{"README, selectors' tables: linkTypes by the PF's where there is no network device", "zoo", `{"resourceName":"a","selectors":[{"drivers":["vfio-pci"],"linkTypes":["ether"]}]}`,
			map[string]upstreamGiven{"intel.com/a": {[]string{"0000:02:02.1", "0000:02:02.2"},
				map[string]information{"0000:02:02.1": {"vfio": vfio("1001")}, "0000:02:02.2": {"vfio": vfio("1002")}}, []string{"/dev/vfio/vfio", "/dev/vfio/1001", "/dev/vfio/1002"}}}},
		{"README, Assumptions: uio has other device files than vfio", "zoo", `{"resourceName":"a","selectors":[{"drivers":["igb_uio"]}]}`,
			map[string]upstreamGiven{"intel.com/a": {[]string{"0000:02:02.3"}, map[string]information{"0000:02:02.3": {"uio": {"mount": "/dev/uio0"}}}, []string{"/dev/uio0"}}}},
		{"README, Assumptions: VF 0, 2 up to 7 and 9", "many", `{"resourceName":"a","selectors":[{"pfNames":["ens785f0#0,2-7,9"]}]}`,
			map[string]upstreamGiven{"intel.com/a": {devices: []string{"0000:86:02.0", "0000:86:02.2", "0000:86:02.3", "0000:86:02.4", "0000:86:02.5", "0000:86:02.6", "0000:86:02.7", "0000:86:03.1"}}}},
		{"README, Assumptions: VF 0, 1, 3, 4 by address", "many", `{"resourceName":"a","selectors":[{"rootDevices":["0000:86:00.0#0-1,3,4"]}]}`,
			map[string]upstreamGiven{"intel.com/a": {devices: []string{"0000:86:02.0", "0000:86:02.1", "0000:86:02.3", "0000:86:02.4"}}}},
		{"README, Pod device information: two devices", "readme", `{"resourceName":"sriov","selectors":[{"devices":["154c"],"drivers":["iavf"]}]}`,
			map[string]upstreamGiven{"intel.com/sriov": {devices: []string{"0000:03:02.1", "0000:03:04.3"}}}},
		// Code: the keys are mount and dev-mount, not vfio-mount and vfio-dev-mount.
		{"README, Pod device information: vfio", "readme", `{"resourceName":"dpdk_nic_1","selectors":[{"drivers":["vfio-pci"],"needVhostNet":true}]}`,
			map[string]upstreamGiven{"intel.com/dpdk_nic_1": {[]string{"0000:3b:02.6"}, map[string]information{"0000:3b:02.6": {"vfio": vfio("169"), "vhost": vhost}},
				append([]string{"/dev/vfio/vfio", "/dev/vfio/169"}, vhostNodes...)}}},
	}
}

// Code: the provider is extra, not extraInfo.
func additionalRows() []upstreamRow {
	row := func(page, additional string, other, specific map[string]string) upstreamRow {
		return upstreamRow{"README, AdditionalInfo: " + page, "readme",
			`{"resourceName":"a","selectors":[{"pciAddresses":["0000:3b:02.6","0000:86:00.0"]}],"additionalInfo":` + additional + `}`,
			map[string]upstreamGiven{"intel.com/a": {[]string{"0000:3b:02.6", "0000:86:00.0"},
				map[string]information{"0000:3b:02.6": {"extra": other, "vfio": vfio("169")}, "0000:86:00.0": {"extra": specific}}, []string{"/dev/vfio/vfio", "/dev/vfio/169"}}}}
	}
	token := map[string]string{"token": "3e49019f-412f-4f02-824e-4cd195944205"}
	return []upstreamRow{
		row("for all", `{"*":{"token":"3e49019f-412f-4f02-824e-4cd195944205"}}`, token, token),
		row("more for one", `{"*":{"token":"3e49019f-412f-4f02-824e-4cd195944205"},"0000:86:00.0":{"additional-token":"6e7dc135-7a1c-456f-a008-c2cfb37997be"}}`,
			token, map[string]string{"token": "3e49019f-412f-4f02-824e-4cd195944205", "additional-token": "6e7dc135-7a1c-456f-a008-c2cfb37997be"}),
		row("its own over that of all", `{"*":{"token":"original"},"0000:86:00.0":{"token":"specific"}}`,
			map[string]string{"token": "original"}, map[string]string{"token": "specific"}),
	}
}

func pageRows() []upstreamRow {
	cx4 := map[string]information{"0000:04:00.2": {"rdma": upstreamRDMA("mlx5_2", "1")}, "0000:04:00.3": {"rdma": upstreamRDMA("mlx5_3", "2")}}
	cx5 := map[string]information{"0000:05:00.2": {"rdma": upstreamRDMA("mlx5_4", "3")}, "0000:05:00.3": {"rdma": upstreamRDMA("mlx5_5", "4")}}
	x710 := map[string]information{"0000:02:02.1": {"vfio": vfio("1001")}, "0000:02:02.2": {"vfio": vfio("1002")}}
	x710Nodes := []string{"/dev/vfio/vfio", "/dev/vfio/1001", "/dev/vfio/1002"}
	both := func(all ...map[string]information) map[string]information {
		joined := map[string]information{}
		for _, m := range all {
			for id, i := range m {
				joined[id] = i
			}
		}
		return joined
	}
	return []upstreamRow{
		{"docs/dpdk/configMap", "zoo", `{"resourceName":"intel_x710vfio","selectors":[{"vendors":["8086"],"devices":["154c"],"drivers":["vfio-pci"]}]}`,
			map[string]upstreamGiven{"intel.com/intel_x710vfio": {[]string{"0000:02:02.1", "0000:02:02.2"}, x710, x710Nodes}}},
		{"docs/dpdk/configMap-all-nics", "zoo", `{"resourcePrefix":"dpdk.org","resourceName":"nic","selectors":[
			  {"vendors":["15b3"],"devices":["1016"],"drivers":["mlx5_core"],"isRdma":true},{"vendors":["15b3"],"devices":["1018"],"drivers":["mlx5_core"],"isRdma":true},
			  {"vendors":["8086"],"devices":["154c"],"drivers":["vfio-pci"]}]}`,
			map[string]upstreamGiven{"dpdk.org/nic": {[]string{"0000:04:00.2", "0000:04:00.3", "0000:05:00.2", "0000:05:00.3", "0000:02:02.1", "0000:02:02.2"},
				both(cx4, cx5, x710), append(rdmaNodes("1", "2", "3", "4"), x710Nodes...)}}},
		{"docs/dpdk/mlnx-dpdk/configMap", "zoo", `
			{"resourcePrefix":"mellanox.com","resourceName":"mlnx_connectx4","selectors":{"vendors":["15b3"],"devices":["1016"],"drivers":["mlx5_core"],"isRdma":true}},
			{"resourcePrefix":"mellanox.com","resourceName":"mlnx_connectx5","selectors":{"vendors":["15b3"],"devices":["1018"],"drivers":["mlx5_core"],"isRdma":true}}`,
			map[string]upstreamGiven{"mellanox.com/mlnx_connectx4": {[]string{"0000:04:00.2", "0000:04:00.3"}, cx4, rdmaNodes("1", "2")},
				"mellanox.com/mlnx_connectx5": {[]string{"0000:05:00.2", "0000:05:00.3"}, cx5, rdmaNodes("3", "4")}}},
		// The documentation has superfluous commas after pciAddresses and
		// selectors.
		{"docs/dpdk/README-virt and configMap-virt: groups without IOMMU have their usual name inside", "guest", `
			{"resourceName":"intelnics_radio_downlink","selectors":[{"drivers":["vfio-pci"],"pciAddresses":["0000:00:09.0","0000:00:0a.0"]}]},
			{"resourceName":"intelnics_radio_uplink","selectors":[{"drivers":["vfio-pci"],"pciAddresses":["0000:00:07.0","0000:00:08.0"]}]}`,
			map[string]upstreamGiven{
				"intel.com/intelnics_radio_downlink": {[]string{"0000:00:09.0", "0000:00:0a.0"}, map[string]information{"0000:00:09.0": {"vfio": vfio("2")}, "0000:00:0a.0": {"vfio": vfio("3")}},
					[]string{"/dev/vfio/vfio", "/dev/vfio/noiommu-2>/dev/vfio/2", "/dev/vfio/noiommu-3>/dev/vfio/3"}},
				"intel.com/intelnics_radio_uplink": {[]string{"0000:00:07.0", "0000:00:08.0"}, map[string]information{"0000:00:07.0": {"vfio": vfio("0")}, "0000:00:08.0": {"vfio": vfio("1")}},
					[]string{"/dev/vfio/vfio", "/dev/vfio/noiommu-0>/dev/vfio/0", "/dev/vfio/noiommu-1>/dev/vfio/1"}}}},
		// isRdma is a filter too: the E810's second function has no RDMA device.
		{"docs/rdma/configMap", "zoo", `
			{"resourceName":"mlnx_rdma","resourcePrefix":"mellanox.com","selectors":[{"vendors":["15b3"],"devices":["1016","1018"],"drivers":["mlx5_core"],"isRdma":true}]},
			{"resourceName":"intel_rdma","selectors":{"vendors":["8086"],"devices":["1889"],"drivers":["iavf"],"isRdma":true}}`,
			map[string]upstreamGiven{"mellanox.com/mlnx_rdma": {[]string{"0000:04:00.2", "0000:04:00.3", "0000:05:00.2", "0000:05:00.3"}, both(cx4, cx5), rdmaNodes("1", "2", "3", "4")},
				"intel.com/intel_rdma": {[]string{"0000:18:02.0"}, map[string]information{"0000:18:02.0": {"rdma": upstreamRDMA("rocep24s2", "0")}}, rdmaNodes("0")}}},
		// The documentation has a superfluous brace before the first resource.
		{"docs/vdpa/configMap", "zoo", `
			{"resourceName":"vdpa_mlx_virtio","selectors":[{"vendors":["15b3"],"devices":["101e"],"drivers":["mlx5_core"],"vdpaType":"virtio"}]},
			{"resourceName":"vdpa_mlx_vhost","selectors":[{"vendors":["15b3"],"devices":["101e"],"drivers":["mlx5_core"],"vdpaType":"vhost"}]}`,
			map[string]upstreamGiven{"intel.com/vdpa_mlx_virtio": {[]string{"0000:06:00.3"}, map[string]information{"0000:06:00.3": {"vdpa": {}}}, nil},
				"intel.com/vdpa_mlx_vhost": {[]string{"0000:06:00.2"}, map[string]information{"0000:06:00.2": {"vdpa": {"mount": "/dev/vhost-vdpa-0"}}}, []string{"/dev/vhost-vdpa-0"}}}},
		{"docs/subfunctions, BlueField-2", "zoo", `{"resourceName":"bf2_sf","resourcePrefix":"nvidia.com","deviceType":"auxNetDevice",
			"selectors":[{"vendors":["15b3"],"devices":["a2d6"],"pfNames":["p0#1-5"],"auxTypes":["sf"]}]}`,
			map[string]upstreamGiven{"nvidia.com/bf2_sf": {devices: []string{"mlx5_core.sf.3", "mlx5_core.sf.4", "mlx5_core.sf.5", "mlx5_core.sf.6", "mlx5_core.sf.7"}}}},
		// The documentation has a superfluous comma. Code: devices is the
		// parent's device id, and scalable functions are on the PF, which is
		// 101d; 101e is a virtual function's.
		{"docs/subfunctions, ConnectX-6 Dx", "zoo", `
			{"resourceName":"cx6dx_vf","resourcePrefix":"nvidia.com","selectors":[{"vendors":["15b3"],"devices":["101e"]}]},
			{"resourceName":"cx6dx_sf","resourcePrefix":"nvidia.com","deviceType":"auxNetDevice","selectors":[{"vendors":["15b3"],"devices":["101e"],"auxTypes":["sf"]}]},
			{"resourceName":"as_meant","resourcePrefix":"nvidia.com","deviceType":"auxNetDevice","selectors":[{"vendors":["15b3"],"devices":["101d"],"auxTypes":["sf"]}]}`,
			map[string]upstreamGiven{"nvidia.com/cx6dx_vf": {devices: []string{"0000:06:00.2", "0000:06:00.3", "0000:06:00.4"}}, "nvidia.com/cx6dx_sf": {}, "nvidia.com/as_meant": {devices: []string{"mlx5_core.sf.9"}}}},
		{"README, auxiliary devices' table: isRdma and needVhostNet", "zoo", `{"resourceName":"sf","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"],"isRdma":true,"needVhostNet":true}]}`,
			map[string]upstreamGiven{"intel.com/sf": {[]string{"mlx5_core.sf.3"}, map[string]information{"mlx5_core.sf.3": {"rdma": upstreamRDMA("mlx5_6", "5"), "vhost": vhost}}, append(rdmaNodes("5"), vhostNodes...)}}},
		// The documentation has two devices for each resource.
		{"docs/ddp, and its configMaps for e800 and x700", "ddp", `
			{"resourceName":"e800_default","selectors":[{"vendors":["8086"],"devices":["1889"],"ddpProfiles":["ICE OS Default Package"]}]},
			{"resourceName":"e800_comms","selectors":[{"vendors":["8086"],"devices":["1889"],"ddpProfiles":["ICE COMMS Package"]}]},
			{"resourceName":"x700_gtp","selectors":[{"vendors":["8086"],"devices":["154c"],"ddpProfiles":["GTPv1-C/U IPv4/IPv6 payload"]}]},
			{"resourceName":"x700_pppoe","selectors":[{"vendors":["8086"],"devices":["154c"],"ddpProfiles":["E710 PPPoE and PPPoL2TPv2"]}]}`,
			map[string]upstreamGiven{"intel.com/e800_default": {devices: []string{"0000:18:02.0", "0000:18:02.1"}}, "intel.com/e800_comms": {devices: []string{"0000:19:02.0", "0000:19:02.1"}},
				"intel.com/x700_gtp": {devices: []string{"0000:02:02.0", "0000:02:02.1"}}, "intel.com/x700_pppoe": {devices: []string{"0000:03:02.0", "0000:03:02.1"}}}},
		{"docs/config-file, sriov-node-0", "many", `{"resourceName":"sriovnics","selectors":{"pfNames":["ens785f0#0-4","ens785f1#0-9"],"IsRdma":false,"NeedVhostNet":false},"SelectorObj":null}`,
			map[string]upstreamGiven{"intel.com/sriovnics": {devices: []string{"0000:86:02.0", "0000:86:02.1", "0000:86:02.2", "0000:86:02.3", "0000:86:02.4",
				"0000:86:04.0", "0000:86:04.1", "0000:86:04.2", "0000:86:04.3", "0000:86:04.4", "0000:86:04.5", "0000:86:04.6", "0000:86:04.7", "0000:86:05.0", "0000:86:05.1"}}}},
		{"deployments/configMap", "zoo", `
			{"resourceName":"intel_sriov_netdevice","selectors":{` + intelNet + `}},
			{"resourceName":"intel_sriov_dpdk","selectors":{"vendors":["8086"],"devices":["154c","10ed","1889"],"drivers":["vfio-pci"],"pfNames":["enp0s0f0","enp2s2f1"]}},
			{"resourceName":"mlnx_sriov_rdma","selectors":{"vendors":["15b3"],"devices":["1018"],"drivers":["mlx5_ib"],"isRdma":true}},
			{"resourceName":"brcm_sriov_bnxt","selectors":{"vendors":["14e4"],"devices":["1750"],"drivers":["bnxt_en"]}}`,
			map[string]upstreamGiven{"intel.com/intel_sriov_netdevice": {devices: []string{"0000:02:02.0", "0000:02:02.5", "0000:18:02.0", "0000:18:02.1"}},
				"intel.com/intel_sriov_dpdk": {[]string{"0000:02:02.1", "0000:02:02.2"}, x710, x710Nodes}, "intel.com/mlnx_sriov_rdma": {}, "intel.com/brcm_sriov_bnxt": {devices: []string{"0000:09:02.0"}}}},
	}
}

func TestUpstreamExamples(t *testing.T) {
	machines := map[string]machine{"zoo": zoo(t), "readme": readme(t), "guest": guest(t), "ddp": ddp(t), "many": many(t)}
	snapshots := map[string]*inventory.Snapshot{}
	for name, m := range machines {
		snapshots[name] = m.discover()
	}
	for _, row := range upstreamRows() {
		t.Run(row.page, func(t *testing.T) {
			m := machines[row.machine]
			c, _, err := inventory.ParseConfig([]byte(`{"resourceList":[`+row.config+`]}`), inventory.ParseOptions{})
			testkit.Must(t, err)
			settings := inventory.AllocateSettings{Exists: inventory.DeviceNodes{Sysfs: m.Sysfs, Dev: m.Dev}.Exists}
			pools := inventory.Assign(c, snapshots[row.machine], inventory.AssignOptions{}).Pools
			if len(pools) != len(row.want) {
				t.Errorf("%d pools, want %d", len(pools), len(row.want))
			}
			for _, p := range pools {
				want, ok := row.want[p.Resource.FullName()]
				if !ok {
					t.Errorf("a pool %s, want none", p.Resource.FullName())
				}
				checkGiven(t, p, want, settings)
			}
		})
	}
}

func checkGiven(t *testing.T, p inventory.Pool, want upstreamGiven, s inventory.AllocateSettings) {
	t.Helper()
	name := p.Resource.FullName()
	answer, err := inventory.Allocate(p.Resource, p.Members, s)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	// The README's rule: the full name with "." and "/" replaced.
	variable := "PCIDEVICE_" + strings.ToUpper(strings.NewReplacer(".", "_", "/", "_").Replace(name))
	var got upstreamGiven
	if text := answer.Envs[variable]; text != "" {
		got.devices = strings.Split(text, ",")
	}
	if err := json.Unmarshal([]byte(answer.Envs[variable+"_INFO"]), &got.info); err != nil || len(answer.Envs) != 2 {
		t.Errorf("%s: environment %v, %v, want %s and the same with _INFO", name, answer.Envs, err, variable)
	}
	for _, d := range answer.Devices {
		node := d.HostPath
		if d.ContainerPath != d.HostPath {
			node += ">" + d.ContainerPath
		}
		if d.Permissions != "rw" {
			t.Errorf("%s: permissions %q of %s, want rw", name, d.Permissions, node)
		}
		got.nodes = append(got.nodes, node)
	}
	wanted := upstreamGiven{want.devices, map[string]information{}, slices.Sorted(slices.Values(want.nodes))}
	for _, id := range want.devices {
		wanted.info[id] = information{"generic": {"deviceID": id}}
		for provider, values := range want.info[id] {
			wanted.info[id][provider] = values
		}
	}
	slices.Sort(got.nodes)
	if diff := cmp.Diff(wanted, got, cmp.AllowUnexported(upstreamGiven{})); diff != "" {
		t.Errorf("%s gives (-want +got):\n%s", name, diff)
	}
	if len(answer.Mounts)+len(answer.Annotations) > 0 {
		t.Errorf("%s gives mounts %v and annotations %v, want none", name, answer.Mounts, answer.Annotations)
	}
}

// Examples that upstream's parser rejects too, since they are invalid JSON.
func TestUpstreamExamplesWithInvalidJSON(t *testing.T) {
	for page, text := range map[string]string{
		"README, Config parameters":        `{"resourceList":[{"resourceName":"brcm_sriov_bnxt","selectors":[{"vendors":["14e4"]}],}]}`,
		"docs/dpdk/configMap-virt":         `{"resourceList":[{"resourceName":"intelnics_radio_uplink","selectors":[{"drivers":["vfio-pci"],"pciAddresses":["0000:00:07.0","0000:00:08.0"],}],}]}`,
		"docs/subfunctions, ConnectX-6 Dx": `{"resourceList":[{"resourceName":"cx6dx_vf","resourcePrefix":"nvidia.com","selectors":[{"vendors":["15b3"],"devices":["101e"],}]}]}`,
		"docs/vdpa/configMap":              `{"resourceList":[{{"resourceName":"vdpa_mlx_virtio","selectors":[{"vdpaType":"virtio"}]}]}`,
	} {
		if _, _, err := inventory.ParseConfig([]byte(text), inventory.ParseOptions{}); err == nil {
			t.Errorf("%s: the text was accepted, want an error as upstream has it", page)
		}
	}
}

func TestUpstreamTopology(t *testing.T) {
	m := zoo(t)
	c, _, err := inventory.ParseConfig([]byte(`{"resourceList":[{"resourceName":"published","selectors":[{"pfNames":["ens801f0#0"]}]},
		{"resourceName":"excluded","excludeTopology":true,"selectors":[{"pfNames":["ens801f0#1"]}]}]}`), inventory.ParseOptions{})
	testkit.Must(t, err)
	for i, p := range inventory.Assign(c, m.discover(), inventory.AssignOptions{}).Pools {
		if len(p.Members) != 1 {
			t.Fatalf("%s has %d members, want one", p.Resource.Name, len(p.Members))
		}
		nodes := inventory.Topology(p.Resource, p.Members[0]).GetNodes()
		if published := i == 0; published != (len(nodes) == 1) || published && nodes[0].ID != 1 {
			t.Errorf("%s: NUMA nodes %v, want node 1 unless topology is excluded", p.Resource.Name, nodes)
		}
	}
}

func TestUpstreamDeviceInfo(t *testing.T) {
	m := zoo(t)
	c, _, err := inventory.ParseConfig([]byte(`{"resourceList":[
		{"resourceName":"rdma","selectors":[{"pfNames":["ib0#0"],"isRdma":true}]},{"resourceName":"vhost","selectors":[{"vdpaType":"vhost"}]},
		{"resourceName":"sf","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"]}]},{"resourceName":"fpga","deviceType":"accelerator","selectors":[{}]}]}`), inventory.ParseOptions{})
	testkit.Must(t, err)
	got := map[string]string{}
	for _, p := range inventory.Assign(c, m.discover(), inventory.AssignOptions{}).Pools {
		for _, member := range p.Members {
			if file, content, ok := inventory.DeviceInfo(p.Resource, member); ok {
				got[file] = string(content)
			}
		}
	}
	want := map[string]string{
		"intel.com-rdma-0000:05:00.2-device.json":  `{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:05:00.2","rdma-device":"mlx5_4"}}`,
		"intel.com-vhost-0000:06:00.2-device.json": `{"type":"vdpa","version":"1.1.0","vdpa":{"parent-device":"vdpa0","driver":"vhost","path":"/dev/vhost-vdpa-0","pci-address":"0000:06:00.2"}}`,
	}
	testkit.Diff(t, "device information", want, got)
}

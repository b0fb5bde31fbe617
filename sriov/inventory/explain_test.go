package inventory

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

func explained(t *testing.T, resources string, s *Snapshot, id string) Explanation {
	for _, e := range Explain(parsed(t, resources), s, AssignOptions{}) {
		if e.ID == id {
			return e
		}
	}
	t.Fatalf("no explanation of %s", id)
	return Explanation{}
}

// In upstream's order. vf is 0000:02:02.0, sf is mlx5_core.sf.5 of host.
func TestExplainRefusals(t *testing.T) {
	const vf, sf = "0000:02:02.0", "mlx5_core.sf.5"
	net := func(fields string) string { return `{"resourceName":"a","selectors":[{` + fields + `}]}` }
	aux := func(fields string) string {
		return `{"resourceName":"a","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"],` + fields + `}]}`
	}
	for _, c := range []struct {
		name, resources, id, filter, wanted, found string
	}{
		{"vendor before all", net(`"isRdma":true,"drivers":["x"],"devices":["ffff"],"vendors":["15b3","14e4"]`), vf, "vendors", "15b3 14e4", "8086"},
		{"device before driver", net(`"drivers":["x"],"devices":["1889"]`), vf, "devices", "1889", "154c"},
		{"driver before address", net(`"pciAddresses":["0000:02:02.1"],"drivers":["vfio-pci"]`), vf, "drivers", "vfio-pci", "iavf"},
		{"address before ACPI index", net(`"acpiIndexes":["1"],"pciAddresses":["0000:02:02.1"]`), vf, "pciAddresses", "0000:02:02.1", vf},
		{"ACPI index before PF", net(`"pfNames":["x"],"acpiIndexes":["1"]`), vf, "acpiIndexes", "1", ""},
		{"PF before root", net(`"rootDevices":["0000:09:00.0"],"pfNames":["enp2s2f1#1-3"]`), vf, "pfNames", "enp2s2f1#1-3", "enp2s2f1#0"},
		{"root before link", net(`"linkTypes":["infiniband"],"rootDevices":["0000:09:00.0"]`), vf, "rootDevices", "0000:09:00.0", "0000:02:00.0#0"},
		{"link before profile", net(`"ddpProfiles":["x"],"linkTypes":["infiniband"]`), vf, "linkTypes", "infiniband", "ether"},
		{"profile before key", net(`"pKeys":["0x8001"],"ddpProfiles":["x"]`), vf, "ddpProfiles", "x", "GTPv1-C/U IPv4/IPv6 payload"},
		{"key before RDMA", net(`"isRdma":true,"pKeys":["0x8001"]`), vf, "pKeys", "0x8001", ""},
		{"RDMA", net(`"isRdma":true`), vf, "isRdma", "true", "false"},
		{"vDPA", net(`"vdpaType":"vhost"`), "0000:06:00.3", "vdpaType", "vhost", "virtio"},
		{"device type", `{"resourceName":"a","deviceType":"accelerator","selectors":[{}]}`, vf, "deviceType", "accelerator", "netDevice"},
		{"auxiliary: parent's vendor", aux(`"vendors":["8086"],"pfNames":["x"]`), sf, "vendors", "8086", "15b3"},
		{"auxiliary: PF before root", aux(`"pfNames":["p0#2-9"],"rootDevices":["0000:09:00.0"]`), sf, "pfNames", "p0#2-9", "p0#1"},
		{"auxiliary: root before link", aux(`"rootDevices":["0000:03:00.0#0"],"linkTypes":["infiniband"]`), sf, "rootDevices", "0000:03:00.0#0", "0000:03:00.0#1"},
		{"auxiliary: the PF's link before RDMA", aux(`"linkTypes":["infiniband"],"isRdma":true`), sf, "linkTypes", "infiniband", "ether"},
		{"auxiliary: RDMA", aux(`"isRdma":true`), sf, "isRdma", "true", "false"},
		{"a physical function by its name", net(`"pfNames":["p0"]`), "0000:03:00.0", "pfNames", "p0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := explained(t, c.resources, host(), c.id)
			want := []Verdict{{Resource: "intel.com/a", Outcome: Refused, Filter: c.filter, Wanted: strings.Fields(c.wanted), Found: c.found}}
			if diff := cmp.Diff(want, e.Verdicts); diff != "" || e.Resource != "" {
				t.Errorf("taken by %q, verdicts (-want +got):\n%s", e.Resource, diff)
			}
		})
	}
}

func TestExplainTaken(t *testing.T) {
	e := explained(t, `{"resourceName":"a","selectors":[{"vendors":["15b3"]},{"vendors":["8086"]}]},{"resourceName":"b","resourcePrefix":"x.org","selectors":[{}]}`, host(), "0000:02:02.0")
	want := []Verdict{
		{Resource: "intel.com/a", Outcome: Refused, Filter: "vendors", Wanted: []string{"15b3"}, Found: "8086"},
		{Resource: "intel.com/a", Selector: 1, Outcome: Taken},
		{Resource: "x.org/b", Index: 1, Outcome: Late},
	}
	if diff := cmp.Diff(want, e.Verdicts); diff != "" || e.Resource != "intel.com/a" {
		t.Errorf("taken by %q, verdicts (-want +got):\n%s", e.Resource, diff)
	}
}

func TestLeftOut(t *testing.T) {
	s := host()
	for i := range s.Functions {
		if s.Functions[i].IsPF() || s.Functions[i].DefaultRoute {
			s.Functions[i].Driver = ""
		}
	}
	s.Auxiliary[0].Parent.Driver = ""
	s.Auxiliary[1].Parent.PFNames = nil
	s.Auxiliary[2].Index = -1
	s.Functions[len(s.Functions)-1].Driver = ""
	got := map[string]string{}
	for _, l := range Assign(parsed(t, `{"resourceName":"a","selectors":[{}]}`), s, AssignOptions{}).LeftOut {
		got[l.ID] = l.Why
	}
	want := map[string]string{
		"0000:01:00.0":   "one of its network devices carries the default route",
		"0000:02:00.0":   "it is a physical function with virtual ones",
		"0000:02:02.3":   "it has no driver",
		"0000:05:00.0":   "it is a physical function with virtual ones",
		"0000:5e:00.0":   "it has no driver",
		"mlx5_core.sf.4": "its parent 0000:03:00.0 has no driver",
		"mlx5_core.sf.5": "its parent 0000:03:00.0 has no network device",
		"mlx5_core.sf.6": "it has no SF number: only scalable functions have one",
	}
	testkit.Diff(t, "left out", want, got)
}

func TestAcceleratorWithVirtualFunctions(t *testing.T) {
	s := host()
	s.Functions[len(s.Functions)-1].VFs = 4
	a := Assign(parsed(t, `{"resourceName":"a","deviceType":"accelerator","selectors":[{}]}`), s, AssignOptions{})
	testkit.Diff(t, "pool", []string{"0000:5e:00.0"}, ids(a.Pools[0], false))
}

func TestAddress(t *testing.T) {
	a := Assign(parsed(t, `{"resourceName":"a","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"],"pfNames":["p0#6"]}]}`), host(), AssignOptions{})
	if m := a.Pools[0].Members; len(m) != 1 || m[0].Address() != "0000:03:00.0" || m[0].ID != "mlx5_core.sf.7" {
		t.Errorf("%+v", m)
	}
}

func TestPoolWarnings(t *testing.T) {
	for _, c := range []struct {
		name, resources string
		change          func(*Snapshot)
		want            []string
	}{
		{"no warnings", `{"resourceName":"a","selectors":[{"pfNames":["ENS1#0"],"rootDevices":["0000:06:00.0"]},{"pfNames":["enp2s2f1#0"]}]}`, nil, nil},
		{"empty", `{"resourceName":"a","selectors":[{"vendors":["1234"]}]}`, nil, []string{"empty a: no device is in it"}},
		{"contested", `{"resourceName":"a","selectors":[{"drivers":["vfio-pci"]}]},{"resourceName":"b","selectors":[{"devices":["154c"]},{"vendors":["8086"]}]}`, nil,
			[]string{"contested b: 0000:02:02.1 that it selects went to intel.com/a, which comes before it"}},
		{"many contested", `{"resourceName":"a","selectors":[{}]},{"resourceName":"b","selectors":[{"vendors":["15b3"]}]}`, nil,
			[]string{"empty b: no device is in it",
				"contested b: 0000:03:00.0, 0000:05:00.1, 0000:05:00.2, 0000:06:00.2 and 2 more that it selects went to intel.com/a, which comes before it"}},
		{"two selectors of one resource", `{"resourceName":"a","selectors":[{"drivers":["vfio-pci"]},{"devices":["154c"]}]}`, nil, nil},
		{"no such PF", `{"resourceName":"a","selectors":[{"pfNames":["ens1","enp9s0#0-3"]},{"rootDevices":["0000:99:00.0"]}]}`, nil,
			[]string{`unknown-pf a: pfNames "enp9s0#0-3" fits no function of this machine`, `unknown-pf a: rootDevices "0000:99:00.0" fits no function of this machine`}},
		{"a PF without VFs", `{"resourceName":"a","selectors":[{"pfNames":["p0","ens1"]}]}`, nil,
			[]string{`unknown-pf a: pfNames "p0" has no VFs now; the function itself is never taken by its name`}},
		{"auxiliary devices of a PF without VFs", `{"resourceName":"a","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"],"pfNames":["p0"]}]}`, nil, nil},
		{"another name", `{"resourceName":"a","selectors":[{"pfNames":["enp6s0","ens1"]}]}`, func(s *Snapshot) {
			for i := range s.Functions {
				if s.Functions[i].PF == "0000:06:00.0" {
					s.Functions[i].PFNames = []string{"ens1", "enp6s0"}
				}
			}
		}, []string{`other-name a: pfNames "enp6s0" is another name of ens1; only that name counts`}},
		{"default route on a scalable function", `{"resourceName":"a","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"]}]}`, func(s *Snapshot) {
			s.Auxiliary[2].DefaultRoute = true
		}, []string{"host-route a: mlx5_core.sf.6 carries a default route: allocating it to a pod disconnects this machine"}},
		{"shared", `{"resourceName":"a","selectors":[{"pciAddresses":["0000:03:00.0"]}]},
			{"resourceName":"b","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"],"pfNames":["p0#0-1"]}]}`, nil,
			[]string{"shared b: mlx5_core.sf.4, mlx5_core.sf.5 are on 0000:03:00.0, which is itself a device of intel.com/a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := host()
			if c.change != nil {
				c.change(s)
			}
			var got []string
			for _, w := range Assign(parsed(t, c.resources), s, AssignOptions{}).Warnings {
				got = append(got, fmt.Sprintf("%s %s: %s", w.Kind, strings.TrimPrefix(w.Resource, "intel.com/"), w.Text))
			}
			testkit.Diff(t, "warnings", c.want, got)
		})
	}
}

package nvme

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	kernel "github.com/cleatproject/cleat/internal/linux/nvme"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

func attachedVolume(nqn string, paths ...netip.AddrPort) record {
	l := access.NVMe{Transport: "tcp", NQN: nqn, Paths: paths}
	return record{NQN: nqn, HostNQN: self, Locator: access.Encode(l), Device: node.Device{Path: "/dev/nvme0n1"}}
}

func TestCountPaths(t *testing.T) {
	const blue = "nqn.2024-01.example:blue"
	both := attachedVolume(red, first, second)
	begun := both
	begun.Device = node.Device{}
	at := func(nqn, host string, address netip.AddrPort, state string) kernel.Controller {
		return kernel.Controller{NQN: nqn, HostNQN: host, Address: address, State: state}
	}
	live, connecting := at(red, self, first, "live"), at(red, self, second, "connecting")
	for name, c := range map[string]struct {
		records     []record
		controllers []kernel.Controller
		single      bool // without multipath
		want        map[string]int
	}{
		"nothing":            {nil, []kernel.Controller{live}, false, map[string]int{"live": 0, "missing": 0}},
		"not attached yet":   {[]record{begun}, []kernel.Controller{live}, false, map[string]int{"live": 0, "missing": 0}},
		"live, connecting":   {[]record{both}, []kernel.Controller{live, connecting}, false, map[string]int{"live": 1, "connecting": 1, "missing": 0}},
		"missing":            {[]record{both}, []kernel.Controller{live}, false, map[string]int{"live": 1, "missing": 1}},
		"all missing":        {[]record{both}, nil, false, map[string]int{"live": 0, "missing": 2}},
		"shared paths":       {[]record{both, both}, []kernel.Controller{live, connecting}, false, map[string]int{"live": 1, "connecting": 1, "missing": 0}},
		"two subsystems":     {[]record{both, attachedVolume(blue, first)}, []kernel.Controller{live}, false, map[string]int{"live": 1, "missing": 2}},
		"of another host":    {[]record{both}, []kernel.Controller{live, at(red, "nqn.2024-01.example:other", second, "live")}, false, map[string]int{"live": 1, "missing": 1}},
		"no multipath":       {[]record{both}, []kernel.Controller{live}, true, map[string]int{"live": 1, "missing": 0}},
		"no multipath, none": {[]record{both}, nil, true, map[string]int{"live": 0, "missing": 2}},
	} {
		got := testkit.Value(countPaths(c.records, c.controllers, !c.single))(t)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestCollector(t *testing.T) {
	dir := t.TempDir()
	a := testkit.Value(New(Config{Dir: dir, HostNQN: self, Kernel: &kernel.Kernel{Sys: dir, Dev: dir}}))(t)
	v := attachedVolume(red, first)
	v.Boot, v.name = a.records.boot, "v"+suffix
	testkit.Must(t, a.records.put(v))
	registry := prometheus.NewPedanticRegistry()
	testkit.Must(t, registry.Register(a.Collector()))
	families := testkit.Value(registry.Gather())(t)
	got := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		got[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
	}
	if want := map[string]float64{"live": 0, "missing": 1}; families[0].GetName() != "cleat_nvme_paths" || !cmp.Equal(want, got) {
		t.Errorf("%s %v, want %v", families[0].GetName(), got, want)
	}
}

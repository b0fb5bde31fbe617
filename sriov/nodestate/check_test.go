package nodestate

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestCheck(t *testing.T) {
	address := "0000:3b:00.0"
	one := func(i Interface) Spec {
		if i.PCIAddress == "" {
			i.PCIAddress = address
		}
		return Spec{Interfaces: []Interface{i}}
	}
	grouped := func(g VFGroup) Spec {
		if g.VFRange == "" {
			g.VFRange = "0-1"
		}
		return one(Interface{NumVFs: 4, ESwitchMode: Switchdev, VFGroups: []VFGroup{g}})
	}
	const i, g = "spec.interfaces[0]", "spec.interfaces[0].vfGroups[0]"
	for name, c := range map[string]struct {
		spec Spec
		want []string
	}{
		"nothing":                {Spec{}, nil},
		"minimal":                {one(Interface{}), nil},
		"a long PCI domain":      {one(Interface{PCIAddress: "10000:e1:1f.7"}), nil},
		"IB":                     {one(Interface{LinkType: "IB", ESwitchMode: Legacy, MTU: 65520, Name: "ibp59s0"}), nil},
		"adjacent groups":        {one(Interface{NumVFs: 4, VFGroups: []VFGroup{{VFRange: "2-3"}, {VFRange: "0-1", DeviceType: "vfio-pci", Trust: On}}}), nil},
		"vDPA":                   {grouped(VFGroup{VDPAType: VHost, IsRDMA: true}), nil},
		"no address":             {Spec{Interfaces: []Interface{{}}}, []string{i + `.pciAddress: "" is not a PCI address; want one such as "0000:3b:00.0"`}},
		"capitals":               {one(Interface{PCIAddress: "0000:3B:00.0"}), []string{i + `.pciAddress: "0000:3B:00.0" is not a PCI address; did you mean "0000:3b:00.0"?`}},
		"no domain":              {one(Interface{PCIAddress: "3b:00.0"}), []string{i + `.pciAddress: "3b:00.0" is not a PCI address; did you mean "0000:3b:00.0"?`}},
		"a path":                 {one(Interface{PCIAddress: "../0000:3b:00.0"}), []string{i + ".pciAddress: "}},
		"an address and a line":  {one(Interface{PCIAddress: "0000:3b:00.0\n"}), []string{i + ".pciAddress: "}},
		"function 8":             {one(Interface{PCIAddress: "0000:3b:00.8"}), []string{i + ".pciAddress: "}},
		"an address twice":       {Spec{Interfaces: []Interface{{PCIAddress: address}, {PCIAddress: address}}}, []string{`spec.interfaces[1].pciAddress: "0000:3b:00.0" is already used by interfaces[0]`}},
		"negative number of VFs": {one(Interface{NumVFs: -1}), []string{i + ".numVfs: invalid number of virtual functions -1, want 0 to 65535"}},
		"too many":               {one(Interface{NumVFs: 65536}), []string{i + ".numVfs: invalid number of virtual functions 65536"}},
		"MTU":                    {one(Interface{MTU: 67}), []string{i + ".mtu: 67 is not a valid MTU, want 68 to 65535, or 0 for any"}},
		"negative MTU":           {grouped(VFGroup{MTU: -1}), []string{g + ".mtu: -1 is not a valid MTU"}},
		"large MTU":              {grouped(VFGroup{MTU: 65536}), []string{g + ".mtu: 65536 is not a valid MTU"}},
		"link type":              {one(Interface{LinkType: "ether"}), []string{i + `.linkType: "ether" is not known; did you mean "eth"? It is one of eth, ib`}},
		"mode":                   {one(Interface{ESwitchMode: "bridge"}), []string{i + `.eSwitchMode: "bridge" is not known; want legacy or switchdev`}},
		"IB and switchdev":       {one(Interface{LinkType: "IB", ESwitchMode: Switchdev}), []string{i + `.eSwitchMode: "switchdev" is for Ethernet only`}},
		"a name with a slash":    {one(Interface{Name: "a/b"}), []string{i + `.name: "a/b" is not a valid network device name`}},
		"a name of dots":         {one(Interface{Name: ".."}), []string{i + ".name: "}},
		"a name with a line":     {one(Interface{Name: "a\nb"}), []string{i + ".name: "}},
		"a long name":            {one(Interface{Name: strings.Repeat("a", 128)}), []string{i + ".name: "}},
		"no range":               {one(Interface{NumVFs: 4, VFGroups: []VFGroup{{}}}), []string{g + `.vfRange: it is missing: the group has no function; for all write "0-3"`}},
		"a bad range":            {grouped(VFGroup{VFRange: "2"}), []string{g + `.vfRange: "2" is not a range of functions; for one function write "2-2"`}},
		"beyond":                 {grouped(VFGroup{VFRange: "0-4"}), []string{g + `.vfRange: "0-4" does not fit: numVfs is 4, so the last function is 3`}},
		"numVfs missing":         {one(Interface{VFGroups: []VFGroup{{VFRange: "0-0"}}}), []string{g + `.vfRange: "0-0" does not fit: numVfs is 0`}},
		"overlap of one that is not the first": {one(Interface{NumVFs: 9, VFGroups: []VFGroup{{VFRange: "0-1"}, {VFRange: "2-7"}, {VFRange: "3-4"}, {VFRange: "6-8"}}}), []string{
			`spec.interfaces[0].vfGroups[2].vfRange: "3-4" overlaps "2-7" of vfGroups[1]`, `spec.interfaces[0].vfGroups[3].vfRange: "6-8" overlaps "2-7" of vfGroups[1]`}},
		"overlap": {one(Interface{NumVFs: 8, VFGroups: []VFGroup{{VFRange: "4-5"}, {VFRange: "0-6"}, {VFRange: "1-2"}}}), []string{
			`spec.interfaces[0].vfGroups[2].vfRange: "1-2" overlaps "0-6" of vfGroups[1]`, `spec.interfaces[0].vfGroups[0].vfRange: "4-5" overlaps`}},
		"device type":    {grouped(VFGroup{DeviceType: "netDevice"}), []string{g + `.deviceType: "netDevice" is not known; did you mean "netdevice"?`}},
		"no device type": {grouped(VFGroup{DeviceType: "igb_uio"}), []string{g + `.deviceType: "igb_uio" is not known; want netdevice or vfio-pci`}},
		"RDMA of vfio":   {grouped(VFGroup{DeviceType: VFIO, IsRDMA: true}), []string{g + ".isRdma: "}},
		"vDPA of vfio":   {grouped(VFGroup{DeviceType: VFIO, VDPAType: VHost}), []string{g + `.vdpaType: vDPA needs deviceType "netdevice", not "vfio-pci"`}},
		"vDPA of legacy": {one(Interface{NumVFs: 2, VFGroups: []VFGroup{{VFRange: "0-1", VDPAType: VHost}}}), []string{g + `.vdpaType: vDPA needs eSwitchMode "switchdev", the interface has "legacy"`}},
		"vDPA type":      {grouped(VFGroup{VDPAType: "host"}), []string{g + `.vdpaType: "host" is not known; did you mean "vhost"?`}},
		"trust":          {grouped(VFGroup{Trust: "yes"}), []string{g + `.trust: "yes" is not known`}},
		"spoof check":    {grouped(VFGroup{SpoofCheck: "true"}), []string{g + `.spoofChk: "true" is not known`}},
		"RDMA mode":      {Spec{System: System{RDMAMode: "share"}}, []string{`spec.system.rdmaMode: "share" is not known; did you mean "shared"?`}},
		"all at once": {Spec{Interfaces: []Interface{{PCIAddress: "x", NumVFs: -1}}, System: System{RDMAMode: "?"}}, []string{
			i + ".pciAddress", i + ".numVfs", "spec.system.rdmaMode"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := c.spec.Check()
			var got []string
			if err != nil {
				got = strings.Split(err.Error(), "\n")
				if _, ok := errors.AsType[*strictjson.Problem](err); !ok {
					t.Errorf("%T is no *strictjson.Problem", err)
				}
			}
			for n := range got {
				if n < len(c.want) && strings.HasPrefix(got[n], c.want[n]) {
					got[n] = c.want[n]
				}
			}
			testkit.Diff(t, "result", c.want, got)
		})
	}
}

// A mistake in one interface leaves the others valid.
func TestMistakesByPF(t *testing.T) {
	spec := Spec{Interfaces: []Interface{
		{PCIAddress: "0000:3b:00.0", NumVFs: 2, VFGroups: []VFGroup{{VFRange: "0-1", DeviceType: VFIO, IsRDMA: true}}},
		{PCIAddress: "0000:5e:00.0", NumVFs: 2},
	}}
	if m := spec.Mistakes(); len(m) != 1 || m[0].PF != "0000:3b:00.0" || spec.CheckNode() != nil || spec.Check() == nil {
		t.Errorf("%+v", m)
	}
	spec.Interfaces[1].PCIAddress, spec.Interfaces[1].MTU = "5e:00.0", 1
	if m := spec.Mistakes(); len(m) != 3 || m[1].PF != "" || m[2].PF != "" || spec.CheckNode() == nil {
		t.Errorf("of which PF is not known: %+v", m)
	}
}

func TestParseRange(t *testing.T) {
	for text, want := range map[string]Range{"0-3": {0, 3}, "2-2": {2, 2}, "65534-65534": {65534, 65534}, "00-07": {0, 7}} {
		if r, err := ParseRange(text); err != nil || r != want {
			t.Errorf("%q: %v, %v", text, r, err)
		}
	}
	for text, want := range map[string]string{
		"":          `"" is not a range of functions: want the first and the last such as "0-3"`,
		"5":         `for one function write "5-5"`,
		"-3":        "is not a range",
		"3-":        "is not a range",
		"-":         "is not a range",
		"1-2-3":     "is not a range",
		"a-b":       "is not a range",
		"+1-2":      "is not a range",
		"0x1-2":     "is not a range",
		" 0-1":      "is not a range",
		"0-65535":   "at most 65534",
		"0-1,3-4":   "is a list: want one range",
		"0,1":       "is a list: want one range",
		"3-0":       `did you mean "0-3"?`,
		"0-9999999": "is not a range",
	} {
		if r, err := ParseRange(text); err == nil || !strings.Contains(err.Error(), want) || r != (Range{}) {
			t.Errorf("%q: %v, %v, want %q", text, r, err, want)
		}
	}
}

func TestGroup(t *testing.T) {
	i := Interface{VFGroups: []VFGroup{{VFRange: "x"}, {VFRange: "2-3", ResourceName: "a"}, {VFRange: "0-0", ResourceName: "b"}}}
	for index, want := range []string{"b", "", "a", "a", ""} {
		if g, ok := i.Group(index); g.ResourceName != want || ok != (want != "") {
			t.Errorf("%d: %q, %v, want %q", index, g.ResourceName, ok, want)
		}
	}
}

func TestHash(t *testing.T) {
	spec := func(change func(*Spec)) Spec {
		s := Spec{
			Interfaces: []Interface{
				{PCIAddress: "0000:3b:00.0", NumVFs: 4, LinkType: "eth", VFGroups: []VFGroup{{VFRange: "0-1"}, {VFRange: "2-3", DeviceType: VFIO}}},
				{PCIAddress: "0000:3b:00.1", NumVFs: 2},
			},
			Bridges: Bridges{OVS: []Bridge{{Name: "a", Bridge: map[string]any{"x": 1, "y": 2}}, {Name: "b"}}},
		}
		change(&s)
		return s
	}
	base := spec(func(*Spec) {})
	want := base.Hash()
	if len(want) != 64 || strings.Trim(want, "0123456789abcdef") != "" {
		t.Errorf("%q", want)
	}
	for name, change := range map[string]func(*Spec){
		"nothing":               func(*Spec) {},
		"order of interfaces":   func(s *Spec) { s.Interfaces[0], s.Interfaces[1] = s.Interfaces[1], s.Interfaces[0] },
		"order of groups":       func(s *Spec) { g := s.Interfaces[0].VFGroups; g[0], g[1] = g[1], g[0] },
		"order of bridges":      func(s *Spec) { b := s.Bridges.OVS; b[0], b[1] = b[1], b[0] },
		"defaults written out":  func(s *Spec) { s.Interfaces[0].ESwitchMode, s.Interfaces[0].VFGroups[0].DeviceType = Legacy, NetDevice },
		"link type in capitals": func(s *Spec) { s.Interfaces[0].LinkType = "ETH" },
	} {
		if s := spec(change); s.Hash() != want {
			t.Errorf("%s counts", name)
		}
	}
	seen := map[string]string{want: "nothing"}
	for name, change := range map[string]func(*Spec){
		"number":      func(s *Spec) { s.Interfaces[0].NumVFs = 5 },
		"address":     func(s *Spec) { s.Interfaces[0].PCIAddress = "0000:3b:00.2" },
		"MTU":         func(s *Spec) { s.Interfaces[0].MTU = 9000 },
		"name":        func(s *Spec) { s.Interfaces[0].Name = "a" },
		"link":        func(s *Spec) { s.Interfaces[0].LinkType = "ib" },
		"mode":        func(s *Spec) { s.Interfaces[0].ESwitchMode = Switchdev },
		"external":    func(s *Spec) { s.Interfaces[0].ExternallyManaged = true },
		"range":       func(s *Spec) { s.Interfaces[0].VFGroups[0].VFRange = "0-0" },
		"type":        func(s *Spec) { s.Interfaces[0].VFGroups[0].DeviceType = VFIO },
		"resource":    func(s *Spec) { s.Interfaces[0].VFGroups[0].ResourceName = "a" },
		"policy":      func(s *Spec) { s.Interfaces[0].VFGroups[0].PolicyName = "a" },
		"VF MTU":      func(s *Spec) { s.Interfaces[0].VFGroups[0].MTU = 9000 },
		"RDMA":        func(s *Spec) { s.Interfaces[0].VFGroups[0].IsRDMA = true },
		"vDPA":        func(s *Spec) { s.Interfaces[0].VFGroups[0].VDPAType = VHost },
		"trust":       func(s *Spec) { s.Interfaces[0].VFGroups[0].Trust = On },
		"trust off":   func(s *Spec) { s.Interfaces[0].VFGroups[0].Trust = Off },
		"spoof":       func(s *Spec) { s.Interfaces[0].VFGroups[0].SpoofCheck = On },
		"RDMA mode":   func(s *Spec) { s.System.RDMAMode = Shared },
		"bridge":      func(s *Spec) { s.Bridges.OVS[0].Bridge["x"] = 2 },
		"fewer":       func(s *Spec) { s.Interfaces = s.Interfaces[:1] },
		"all removed": func(s *Spec) { *s = Spec{} },
		"not JSON":    func(s *Spec) { s.Bridges.OVS[0].Bridge["x"] = func() {} },
		"uplink":      func(s *Spec) { s.Bridges.OVS[0].Uplinks = []Uplink{{PCIAddress: "a"}} },
	} {
		h := spec(change).Hash()
		if other, twice := seen[h]; twice {
			t.Errorf("%s has the hash of %s", name, other)
		}
		seen[h] = name
	}
	testkit.Diff(t, "Hash changed the spec", fmt.Sprint(base), fmt.Sprint(spec(func(*Spec) {})))
}

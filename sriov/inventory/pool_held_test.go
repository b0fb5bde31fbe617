package inventory

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

func found(t *testing.T, s *Snapshot, id string) *Device {
	t.Helper()
	for _, f := range s.Functions {
		if f.Address == id {
			return &Device{ID: id, Function: &f}
		}
	}
	for _, a := range s.Auxiliary {
		if a.Name == id {
			return &Device{ID: id, Function: &a.Parent, Auxiliary: &a}
		}
	}
	t.Fatalf("%s does not exist", id)
	return nil
}

func change(s *Snapshot, id string, how func(*Function)) {
	for i := range s.Functions {
		if s.Functions[i].Address == id {
			how(&s.Functions[i])
		}
	}
	for i := range s.Auxiliary {
		if s.Auxiliary[i].Parent.Address == id {
			how(&s.Auxiliary[i].Parent)
		}
	}
}

func changeSF(s *Snapshot, name string, how func(*Auxiliary)) {
	for i := range s.Auxiliary {
		if s.Auxiliary[i].Name == name {
			how(&s.Auxiliary[i])
		}
	}
}

func remove(s *Snapshot, id string) {
	s.Functions = slices.DeleteFunc(s.Functions, func(f Function) bool { return f.Address == id })
	s.Auxiliary = slices.DeleteFunc(s.Auxiliary, func(a Auxiliary) bool { return a.Name == id })
}

// places returns where a device is, with the reason if unhealthy or left out.
func places(a Assignment, id string) []string {
	var all []string
	for _, p := range a.Pools {
		for _, m := range p.Members {
			if m.ID == id {
				text := p.Resource.Name + " " + string(rune('0'+m.Selector))
				if m.Held {
					text += " held"
				}
				if m.Wrong != "" {
					text += ": " + m.Wrong
				}
				all = append(all, text)
			}
		}
	}
	for _, d := range a.Free {
		if d.ID == id {
			all = append(all, "free")
		}
	}
	for _, l := range a.LeftOut {
		if l.ID == id {
			all = append(all, "left out: "+l.Why)
		}
	}
	return all
}

// It was as in host when it was allocated from intel.com/r.
func TestHeld(t *testing.T) {
	const vf, ib, accelerator, sf = "0000:02:02.0", "0000:05:00.1", "0000:5e:00.0", "mlx5_core.sf.5"
	ether := `{"resourceName":"r","selectors":[{"drivers":["none"]},{"linkTypes":["ether"],"drivers":["iavf"],"pfNames":["enp2s2f1"]}]}`
	rdma := `{"resourceName":"r","selectors":[{"linkTypes":["infiniband"],"isRdma":true}]}`
	accelerators := `{"resourceName":"r","deviceType":"accelerator","selectors":[{}]}`
	scalable := `{"resourceName":"r","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"]}]}`
	all := `{"resourceName":"all","selectors":[{}]}`
	none := func(*Snapshot) {}
	in := func(id string, how func(*Function)) func(*Snapshot) {
		return func(s *Snapshot) { change(s, id, how) }
	}
	for _, c := range []struct {
		name, resources, id string
		now                 func(*Snapshot)
		known, unknown      string
	}{
		{"unchanged", ether, vf, none, "r 1 held", "r 1 held"},
		{"its network device is in the pod", rdma, ib, in(ib, func(f *Function) { f.Netdevs, f.RDMA = nil, nil }), "r 0 held", "r 0 held"},
		{"an earlier resource would take it now", all + "," + ether, vf, none, "r 1 held", "r 1 held"},
		{"no filter would take it now", `{"resourceName":"r","selectors":[{"vendors":["ffff"]},{"vendors":["fffe"]}]},` + all, vf, none, "r 0 held", "r 0 held"},
		{"its resource is not configured", all, vf, none,
			"left out: a pod has it from intel.com/r, which is not in the configuration", "left out: a pod has it from intel.com/r, which is not in the configuration"},
		{"its resource is of another type", accelerators + "," + all, vf, none,
			"left out: a pod has it from intel.com/r, which is of another device type than netDevice", "left out: a pod has it from intel.com/r, which is of another device type than netDevice"},
		{"the pod bound another driver", ether, vf, in(vf, func(f *Function) { f.Driver, f.Netdevs = "vfio-pci", nil }),
			"r 1 held: it has the driver vfio-pci, it was allocated to a pod with iavf", "r 0 held"},
		{"the pod unbound it", ether, vf, in(vf, func(f *Function) { f.Driver, f.Netdevs = "", nil }),
			"r 1 held: it has no driver, it was allocated to a pod with iavf", "r 0 held: it has no driver"},
		{"another card has its address", ether, vf, in(vf, func(f *Function) { f.Vendor = "15b3" }),
			"r 1 held: it is a 15b3:154c, a pod got a 8086:154c", "r 1 held"},
		{"another card without a driver", ether, vf, in(vf, func(f *Function) { f.Device, f.Driver = "1018", "" }),
			"r 1 held: it is a 8086:1018, a pod got a 8086:154c; it has no driver", "r 0 held: it has no driver"},
		{"another kind has its address", accelerators, accelerator, in(accelerator, func(f *Function) { f.Kind = NetworkClass }),
			"left out: a pod has it from intel.com/r, which is of another device type than netDevice", "left out: a pod has it from intel.com/r, which is of another device type than netDevice"},
		{"it is another kind of function", accelerators, vf, in(vf, func(f *Function) { f.Kind = AcceleratorClass }),
			"r 0 held: it is not the kind of device that was allocated to a pod", "r 0 held"},
		{"it carries a default route", ether, vf, in(vf, func(f *Function) { f.DefaultRoute = true }),
			"r 1 held: one of its network devices carries the default route", "r 1 held: one of its network devices carries the default route"},
		{"it is gone", ether, vf, func(s *Snapshot) { remove(s, vf) }, "r 1 held: it is gone", "r 0 held: it is gone"},
		{"it and its resource were removed", all, vf, func(s *Snapshot) { remove(s, vf) },
			"left out: it is gone; a pod has it from intel.com/r, which is not in the configuration", ""},
		{"an accelerator", accelerators, accelerator, none, "r 0 held", "r 0 held"},
		{"an accelerator is gone", accelerators, accelerator, func(s *Snapshot) { remove(s, accelerator) }, "r 0 held: it is gone", "r 0 held: it is gone"},
		{"a scalable function", scalable, sf, none, "r 0 held", "r 0 held"},
		{"a scalable function is gone", scalable, sf, func(s *Snapshot) { remove(s, sf) }, "r 0 held: it is gone", "r 0 held: it is gone"},
		{"a scalable function has another driver", scalable, sf, func(s *Snapshot) { changeSF(s, sf, func(a *Auxiliary) { a.Driver = "vdpa" }) },
			"r 0 held: it has the driver vdpa, it was allocated to a pod with mlx5_core.sf", "r 0 held"},
		{"a scalable function's parent has another driver", scalable, sf, in("0000:03:00.0", func(f *Function) { f.Driver = "vfio-pci" }),
			"r 0 held: its parent 0000:03:00.0 has the driver vfio-pci, it was allocated to a pod with mlx5_core", "r 0 held"},
		{"a scalable function's parent has no driver", scalable, sf, in("0000:03:00.0", func(f *Function) { f.Driver = "" }),
			"r 0 held: its parent 0000:03:00.0 has no driver, it was allocated to a pod with mlx5_core", "r 0 held: its parent 0000:03:00.0 has no driver"},
		{"a scalable function's name is another's", scalable, sf, func(s *Snapshot) { changeSF(s, sf, func(a *Auxiliary) { a.Index = 9 }) },
			"r 0 held: it is number 9 of 0000:03:00.0, a pod got number 1 of 0000:03:00.0", "r 0 held"},
		{"a scalable function's name is one of another parent", scalable, sf, func(s *Snapshot) {
			changeSF(s, sf, func(a *Auxiliary) { a.Parent.Address = "0000:04:00.0" })
		}, "r 0 held: it is number 1 of 0000:04:00.0, a pod got number 1 of 0000:03:00.0", "r 0 held"},
		{"a scalable function's name is a function's", ether, sf, func(s *Snapshot) {
			remove(s, sf)
			s.Functions = append(s.Functions, Function{Address: sf, Kind: NetworkClass, Vendor: "15b3", Device: "a2d6", Driver: "x", VF: NoIndex})
		}, "r 0 held: it is not the kind of device that was allocated to a pod", "r 0 held"},
	} {
		last := found(t, host(), c.id)
		for _, h := range []HeldDevice{{"intel.com/r", c.id, last}, {"intel.com/r", c.id, nil}} {
			s, want, name := host(), c.known, c.name+", known"
			if h.Last == nil {
				want, name = c.unknown, c.name+", unknown"
			}
			t.Run(name, func(t *testing.T) {
				c.now(s)
				o := AssignOptions{Held: []HeldDevice{h}}
				if got := strings.Join(places(Assign(parsed(t, c.resources), s, o), c.id), ", "); got != want {
					t.Errorf("%s is %q, want %q", c.id, got, want)
				}
				checkExplain(t, parsed(t, c.resources), s, o)
			})
		}
	}
}

// Properties that moved to the pod are the recorded ones.
func TestHeldDeviceProperties(t *testing.T) {
	const vf, sf = "0000:05:00.1", "mlx5_core.sf.5"
	s := host()
	change(s, vf, func(f *Function) {
		f.RDMACapable, f.PKey, f.DDPProfile, f.IOMMUGroup = true, "0x8001", "gtp", "7"
	})
	changeSF(s, sf, func(a *Auxiliary) {
		a.Netdev, a.RDMA = []Netdev{{Name: "sf5", Link: "ether"}}, []RDMA{{Name: "mlx5_9"}}
	})
	was, wasSF := found(t, s, vf), found(t, s, sf)
	config := parsed(t, `{"resourceName":"v","selectors":[{"linkTypes":["infiniband"],"isRdma":true,"pKeys":["0x8001"],"ddpProfiles":["gtp"],"pfNames":["new"]},{}]},
		{"resourceName":"s","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"],"isRdma":true}]}`)
	members := func(s *Snapshot) (Member, Member) {
		a := Assign(config, s, AssignOptions{Held: []HeldDevice{{"intel.com/v", vf, was}, {"intel.com/s", sf, wasSF}}})
		v, x := Member{}, Member{}
		for _, m := range a.Pools[0].Members {
			if m.ID == vf {
				v = m
			}
		}
		for _, m := range a.Pools[1].Members {
			if m.ID == sf {
				x = m
			}
		}
		return v, x
	}
	change(s, vf, func(f *Function) {
		f.Netdevs, f.RDMA, f.RDMACapable, f.PKey, f.DDPProfile = nil, nil, false, "", ""
		f.IOMMUGroup, f.PFNames, f.VF, f.NUMA, f.Representor, f.VDPA = "8", []string{"new"}, 5, 3, "rep", &VDPA{Name: "v"}
	})
	changeSF(s, sf, func(a *Auxiliary) { a.Netdev, a.RDMA, a.Parent.NUMA = nil, nil, 3 })
	v, x := members(s)
	want := *found(t, s, vf).Function
	want.Netdevs, want.RDMA, want.RDMACapable, want.PKey, want.DDPProfile = was.Function.Netdevs, was.Function.RDMA, true, "0x8001", "gtp"
	if diff := cmp.Diff(&want, v.Function); diff != "" || v.Selector != 0 || v.Wrong != "" {
		t.Errorf("selector %d, wrong: %q, the function (-want +got):\n%s", v.Selector, v.Wrong, diff)
	}
	wantSF := *found(t, s, sf).Auxiliary
	wantSF.Netdev, wantSF.RDMA = wasSF.Auxiliary.Netdev, wasSF.Auxiliary.RDMA
	if diff := cmp.Diff(&wantSF, x.Auxiliary); diff != "" || x.Selector != 0 || x.Wrong != "" || x.Function != &x.Auxiliary.Parent {
		t.Errorf("selector %d, wrong: %q, the scalable function (-want +got):\n%s", x.Selector, x.Wrong, diff)
	}

	change(s, vf, func(f *Function) {
		f.Netdevs, f.RDMA, f.PKey = []Netdev{{Name: "renamed"}}, []RDMA{{Name: "mlx5_77"}}, "0xffff"
		f.DDPProfile = "loaded"
	})
	if v, _ = members(s); v.Function.Netdevs[0].Name != "renamed" || v.Function.RDMA[0].Name != "mlx5_77" || v.Function.PKey != "0xffff" || v.Function.DDPProfile != "loaded" {
		t.Errorf("current properties are ignored: %+v", v.Function)
	}

	// No part of it is in the pod.
	change(s, vf, func(f *Function) { f.Driver, f.Netdevs, f.RDMA = "vfio-pci", nil, nil })
	if v, _ = members(s); v.Function.Netdevs != nil || v.Function.RDMA != nil {
		t.Errorf("%s keeps properties of the previous driver: %+v", vf, v.Function)
	}
}

func TestHeldFromSeveralResources(t *testing.T) {
	const vf, gone = "0000:02:02.0", "0000:02:09.0"
	resources := `{"resourceName":"b","selectors":[{}]},{"resourceName":"a","selectors":[{}]},{"resourceName":"c","selectors":[{}]}`
	held := func(ids ...string) (all []HeldDevice) {
		for _, text := range ids {
			resource, id, _ := strings.Cut(text, " ")
			all = append(all, HeldDevice{Resource: "intel.com/" + resource, ID: id})
		}
		return all
	}
	for _, c := range []struct {
		held []HeldDevice
		id   string
		want []string
	}{
		{held("a "+vf, "a "+vf), vf, []string{"a 0 held"}},
		{held("a "+vf, "b "+vf), vf, []string{"b 0 held: pods have it from intel.com/b and intel.com/a at once", "a 0 held: pods have it from intel.com/b and intel.com/a at once"}},
		{held("a "+vf, "x "+vf), vf, []string{"a 0 held: pods have it from intel.com/a and intel.com/x at once"}},
		{held("y "+vf, "x "+vf), vf, []string{"left out: a pod has it from intel.com/x, which is not in the configuration; a pod has it from intel.com/y, which is not in the configuration"}},
		{held("a "+gone, "c "+gone), gone, []string{"a 0 held: it is gone; pods have it from intel.com/a and intel.com/c at once", "c 0 held: it is gone; pods have it from intel.com/a and intel.com/c at once"}},
	} {
		for range 2 {
			o := AssignOptions{Held: c.held}
			if diff := cmp.Diff(c.want, places(Assign(parsed(t, resources), host(), o), c.id)); diff != "" {
				t.Errorf("%v (-want +got):\n%s", c.held, diff)
			}
			checkExplain(t, parsed(t, resources), host(), o)
			slices.Reverse(c.held)
		}
	}
}

// The first resource counts, and always the same of several reports of one
// resource.
func TestConflictingHeldReports(t *testing.T) {
	const vf = "0000:02:02.3"
	config := parsed(t, `{"resourceName":"b","selectors":[{}]},{"resourceName":"a","selectors":[{}]}`)
	var held []HeldDevice
	for i, resource := range []string{"intel.com/b", "intel.com/b", "intel.com/a", "intel.com/x"} {
		last := found(t, host(), vf)
		last.Function.Netdevs = []Netdev{{Name: string(rune('0' + i))}}
		held = append(held, HeldDevice{resource, vf, last})
	}
	held = append(held, HeldDevice{"intel.com/b", vf, nil})
	for range len(held) {
		held = append(held[1:], held[0])
		a := Assign(config, host(), AssignOptions{Held: held})
		i := slices.IndexFunc(a.Pools[0].Members, func(m Member) bool { return m.ID == vf })
		if got := a.Pools[0].Members[i].Function.Netdevs; len(got) != 1 || got[0].Name != "0" {
			t.Errorf("got %v of another report", got)
		}
	}
}

// Devices of other plugins are ignored.
func TestHeldFromOtherPlugins(t *testing.T) {
	config := parsed(t, `{"resourceName":"a","selectors":[{}]},{"resourceName":"s","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"]}]}`)
	before := Assign(config, host(), AssignOptions{})
	var held []HeldDevice
	for _, id := range []string{"", "GPU-1", "../../etc/passwd", "0000:09:00.0", "a.b.0", strings.Repeat("9", 100_000)} {
		held = append(held, HeldDevice{Resource: "nvidia.com/gpu", ID: id})
	}
	if diff := cmp.Diff(before, Assign(config, host(), AssignOptions{Held: held})); diff != "" {
		t.Errorf("devices of other plugins change the assignment (-without +with):\n%s", diff)
	}
	for id, want := range map[string]string{
		"0000:09:00.0":                      "a 0 held: it is gone",
		"10000:09:00.0":                     "a 0 held: it is gone",
		"":                                  `left out: it is gone, and "" is not a valid id of a device of type netDevice`,
		"../../etc/passwd":                  `left out: it is gone, and "../../etc/passwd" is not a valid id of a device of type netDevice`,
		"0000:09/00.0":                      `left out: it is gone, and "0000:09/00.0" is not a valid id of a device of type netDevice`,
		"a:b:c." + strings.Repeat("9", 100): `left out: it is gone, and "a:b:c.` + strings.Repeat("9", 74) + `" is not a valid id of a device of type netDevice`,
	} {
		o := AssignOptions{Held: []HeldDevice{{Resource: "intel.com/a", ID: id}}}
		if got := strings.Join(places(Assign(config, host(), o), id), ", "); got != want {
			t.Errorf("%.80q is %q, want %q", id, got, want)
		}
		checkExplain(t, config, host(), o)
	}
	for id, want := range map[string]string{"mlx5_core.sf.77": "s 0 held: it is gone", "..": `left out: it is gone, and ".." is not a valid id of a device of type auxNetDevice`,
		"a.b/c.d": `left out: it is gone, and "a.b/c.d" is not a valid id of a device of type auxNetDevice`, "a.b": `left out: it is gone, and "a.b" is not a valid id of a device of type auxNetDevice`} {
		a := Assign(config, host(), AssignOptions{Held: []HeldDevice{{Resource: "intel.com/s", ID: id}}})
		if got := strings.Join(places(a, id), ", "); got != want {
			t.Errorf("%q is %q, want %q", id, got, want)
		}
		for _, m := range a.Pools[1].Members {
			if m.ID == id && (m.Auxiliary == nil || m.Auxiliary.Name != id || m.Function == nil || m.Function.NUMA != NoNode) {
				t.Errorf("%q is not an auxiliary device without a parent: %+v", id, m.Device)
			}
		}
	}
}

func TestMissingDeviceDoesNotDefinePF(t *testing.T) {
	s := host()
	last := found(t, s, "0000:02:02.0")
	s.Functions = slices.DeleteFunc(s.Functions, func(f Function) bool { return f.PF == "0000:02:00.0" })
	a := Assign(parsed(t, `{"resourceName":"a","selectors":[{"pfNames":["enp2s2f1"]}]}`), s, AssignOptions{Held: []HeldDevice{{"intel.com/a", "0000:02:02.0", last}}})
	want := []PoolWarning{{UnknownPF, "intel.com/a", `pfNames "enp2s2f1" fits no function of this machine`}}
	testkit.Diff(t, "warnings", want, a.Warnings)
}

func TestLinkHealth(t *testing.T) {
	up := func(s *Snapshot) {
		for i := range s.Functions {
			for j := range s.Functions[i].Netdevs {
				s.Functions[i].Netdevs[j].Up = true
			}
		}
	}
	link := func(pf, name, encapsulation string, up bool) func(*Snapshot) {
		return func(s *Snapshot) {
			change(s, pf, func(f *Function) { f.Netdevs = []Netdev{{Name: name, Link: encapsulation, Up: up}} })
		}
	}
	config := parsed(t, `{"resourceName":"n","selectors":[{}]},{"resourceName":"x","deviceType":"accelerator","selectors":[{}]},
		{"resourceName":"s","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"]}]}`)
	for _, c := range []struct {
		name, id string
		now      func(*Snapshot)
		want     string
	}{
		{"all are up", "0000:02:02.0", func(*Snapshot) {}, "n 0"},
		{"the PF's is down", "0000:02:02.0", link("0000:02:00.0", "enp2s2f1", "ether", false), "n 0: the link of enp2s2f1 is down"},
		{"the PF's is down, the driver is for user space", "0000:02:02.1", link("0000:02:00.0", "enp2s2f1", "ether", false), "n 0: the link of enp2s2f1 is down"},
		{"its own is down", "0000:02:02.0", link("0000:02:02.0", "v", "ether", false), "n 0"},
		{"a function that is no VF, its own is down", "0000:03:00.0", link("0000:03:00.0", "p0", "ether", false), "n 0: the link of p0 is down"},
		{"a scalable function, its PF's is down", "mlx5_core.sf.5", link("0000:03:00.0", "p0", "ether", false), "s 0: the link of p0 is down"},
		{"the link type of the PF's is unknown", "0000:02:02.0", link("0000:02:00.0", "enp2s2f1", "", false), "n 0"},
		{"the PF has none", "0000:02:02.0", func(s *Snapshot) {
			change(s, "0000:02:00.0", func(f *Function) { f.Netdevs = nil })
		}, "n 0"},
		{"the PF is missing", "0000:02:02.0", func(s *Snapshot) { remove(s, "0000:02:00.0") }, "n 0"},
		{"an accelerator", "0000:5e:00.0", link("0000:5e:00.0", "e", "ether", false), "x 0"},
	} {
		s := host()
		up(s)
		c.now(s)
		for o, want := range map[bool]string{true: c.want, false: strings.Split(c.want, ":")[0]} {
			options := AssignOptions{LinkHealth: o}
			if got := strings.Join(places(Assign(config, s, options), c.id), ", "); got != want {
				t.Errorf("%s, LinkHealth %t: %s is %q, want %q", c.name, o, c.id, got, want)
			}
			checkExplain(t, config, s, options)
			options.Held = []HeldDevice{{"intel.com/" + want[:1], c.id, found(t, host(), c.id)}}
			want = want[:3] + " held" + want[3:]
			if got := strings.Join(places(Assign(config, s, options), c.id), ", "); got != want {
				t.Errorf("%s, LinkHealth %t, held: %s is %q, want %q", c.name, o, c.id, got, want)
			}
		}
	}
}

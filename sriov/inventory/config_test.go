package inventory

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/test/testkit"
)

func testResource(rest string) string {
	return `{"resourceList":[{"resourceName":"pool"` + rest + `}]}`
}

func testSelector(fields string) string { return testResource(`,"selectors":[{` + fields + `}]`) }

func TestParseEverything(t *testing.T) {
	text := `{
  "resourceList": [
    {
      "resourceName": "dpdk", "resourcePrefix": "example.com", "deviceType": "netDevice", "excludeTopology": true,
      "selectors": [{
        "vendors": ["8086"], "devices": ["154c", "1889"], "drivers": ["vfio-pci"], "pciAddresses": ["0000:03:02.0"],
        "acpiIndexes": ["101"], "pfNames": ["ens1f0#0-3,5", "ens1f1"], "rootDevices": ["0000:3B:00.1#0-3"],
        "linkTypes": ["ether"], "ddpProfiles": ["GTPv1-C/U IPv4/IPv6 payload"], "pKeys": ["0x8001"],
        "IsRdma": true, "NEEDVHOSTNET": true
      }, {"vdpaType": "vhost"}],
      "additionalInfo": {"*": {"token": "all", "zone": "a"}, "0000:3b:02.1": {"token": "own"}}
    },
    {"resourceName": "fpga", "deviceType": "accelerator", "selectors": {"vendors": ["8086"], "devices": ["0d90"]}},
    {"resourceName": "sf", "deviceType": "auxNetDevice", "selectors": [{"auxTypes": ["sf"], "pfNames": ["p0#1-5"], "isRdma": true}]}
  ]
}`
	got, warnings, err := ParseConfig([]byte(text), ParseOptions{Prefix: "default.org", Strict: true})
	if err != nil || len(warnings) > 0 {
		t.Fatalf("error %v, warnings %v", err, warnings)
	}
	want := Config{Resources: []Resource{
		{Index: 0, Prefix: "example.com", Name: "dpdk", Type: NetDevice, ExcludeTopology: true,
			Selectors: []Selector{{
				Vendors: []string{"8086"}, Devices: []string{"154c", "1889"}, Drivers: []string{"vfio-pci"},
				PCIAddresses: []string{"0000:03:02.0"}, ACPIIndexes: []string{"101"},
				PFNames:     []PFItem{{Text: "ens1f0#0-3,5", Name: "ens1f0", Spans: []IndexRange{{0, 3}, {5, 5}}}, {Text: "ens1f1", Name: "ens1f1", All: true}},
				RootDevices: []PFItem{{Text: "0000:3B:00.1#0-3", Name: "0000:3B:00.1", Spans: []IndexRange{{0, 3}}}},
				LinkTypes:   []string{"ether"}, DDPProfiles: []string{"GTPv1-C/U IPv4/IPv6 payload"}, PKeys: []string{"0x8001"},
				RDMA: true, VhostNet: true,
			}, {VDPAType: "vhost"}},
			AdditionalInfo: map[string]map[string]string{"*": {"token": "all", "zone": "a"}, "0000:3b:02.1": {"token": "own"}}},
		{Index: 1, Prefix: "default.org", Name: "fpga", Type: Accelerator, Selectors: []Selector{{Vendors: []string{"8086"}, Devices: []string{"0d90"}}}},
		{Index: 2, Prefix: "default.org", Name: "sf", Type: AuxNetDevice, Selectors: []Selector{{
			AuxTypes: []string{"sf"}, PFNames: []PFItem{{Text: "p0#1-5", Name: "p0", Spans: []IndexRange{{1, 5}}}}, RDMA: true}}},
	}}
	testkit.Diff(t, "config", want, got)
	for address, want := range map[string]map[string]string{
		"0000:3b:02.1": {"token": "own", "zone": "a"}, "0000:3b:02.2": {"token": "all", "zone": "a"},
	} {
		if diff := cmp.Diff(want, got.Resources[0].Info(address)); diff != "" {
			t.Errorf("info of %s (-want +got):\n%s", address, diff)
		}
	}
	if got.Resources[1].Info("0000:3b:02.1") != nil {
		t.Error("a resource without additionalInfo gives some")
	}
	if name := got.Resources[1].FullName(); name != "default.org/fpga" {
		t.Errorf("full name %q", name)
	}
}

// Upstream's documentation and the operator write these.
func TestParseWithoutWarning(t *testing.T) {
	for name, text := range map[string]string{
		"as the operator writes it": testResource(`,"selectors":{"vendors":["8086"],"pfNames":["ens785f0#0-4"],"IsRdma":false,"NeedVhostNet":false},"SelectorObj":null`),
		"the field's present name":  testResource(`,"selectors":{"vendors":["8086"]},"SelectorObjs":null`),
		"keys in capitals":          `{"RESOURCELIST":[{"RESOURCENAME":"pool","SELECTORS":[{"VENDORS":["8086"]}]}]}`,
		"nulls":                     testResource(`,"resourcePrefix":null,"deviceType":null,"excludeTopology":null,"additionalInfo":null,"selectors":[{"vendors":["8086"],"drivers":null,"isRdma":null,"vdpaType":null}]`),
		"empty words":               testResource(`,"resourcePrefix":"","deviceType":"","selectors":[{"vendors":["8086"],"vdpaType":""}]`),
		"a long PCI domain":         testSelector(`"pciAddresses":["10000:01:00.0"]`),
	} {
		t.Run(name, func(t *testing.T) {
			c, warnings, err := ParseConfig([]byte(text), ParseOptions{Strict: true})
			if err != nil || len(warnings) > 0 {
				t.Fatalf("error %v, warnings %v", err, warnings)
			}
			if len(c.Resources) != 1 || c.Resources[0].FullName() != "intel.com/pool" || c.Resources[0].Type != NetDevice {
				t.Errorf("%+v", c)
			}
		})
	}
}

// Accepted with a warning that suggests the correction; an error in strict
// mode.
func TestConfigWarnings(t *testing.T) {
	for _, c := range []struct {
		name, text string
		kind       strictjson.ProblemKind
		path, says string
	}{
		{"misspelt list", `{"resouceList":[]}`, strictjson.UnknownKey, "resouceList", `did you mean "resourceList"?`},
		{"misspelt selector", testSelector(`"vendors":["8086"],"pfName":["eth0"]`), strictjson.UnknownKey, "resourceList[0].selectors[0].pfName", `did you mean "pfNames"?`},
		{"letter case and a slip", testSelector(`"vendors":["8086"],"ISRDM":true`), strictjson.UnknownKey, "resourceList[0].selectors[0].ISRDM", `did you mean "isRdma"?`},
		{"single selector", testResource(`,"selectors":{"vendors":["8086"],"vendor":["8086"]}`), strictjson.UnknownKey, "resourceList[0].selectors.vendor", `did you mean "vendors"?`},
		{"resource's key", testResource(`,"selectors":{"vendors":["8086"]},"exludeTopology":true`), strictjson.UnknownKey, "resourceList[0].exludeTopology", `did you mean "excludeTopology"?`},
		{"nothing near", testSelector(`"vendors":["8086"],"colour":["red"]`), strictjson.UnknownKey, "resourceList[0].selectors[0].colour", `Known keys: vendors, devices`},
		{"a level too high", testResource(`,"selectors":{"vendors":["8086"]},"isRdma":true`), IgnoredKey, "resourceList[0].isRdma", "a key of a selector of netDevice and of a selector of auxNetDevice"},
		{"a level too low", testSelector(`"vendors":["8086"],"excludeTopology":true`), IgnoredKey, "resourceList[0].selectors[0].excludeTopology", "a key of a resource"},
		{"another type's key", testResource(`,"deviceType":"accelerator","selectors":[{"vendors":["8086"],"acpiIndexes":["1"]}]`), IgnoredKey, "resourceList[0].selectors[0].acpiIndexes", "a key of a selector of netDevice"},
		{"aux types of a PCI function", testSelector(`"vendors":["8086"],"auxTypes":["sf"]`), IgnoredKey, "resourceList[0].selectors[0].auxTypes", "a key of a selector of auxNetDevice"},
		{"internal field", testResource(`,"selectors":{"vendors":["8086"]},"SelectorObjs":[{}]`), strictjson.UnknownKey, "resourceList[0].SelectorObjs", "ignored"},
		{"twice in two letter cases", testSelector(`"vendors":["8086"],"Vendors":["15b3"]`), strictjson.DuplicateKey, "resourceList[0].selectors[0].Vendors", "only the last counts"},
		{"twice in the information", testResource(`,"selectors":{"vendors":["8086"]},"additionalInfo":{"*":{"a":"1","a":"2"}}`), strictjson.DuplicateKey, `resourceList[0].additionalInfo["*"]["a"]`, "only the last counts"},
		{"information for an invalid address", testResource(`,"selectors":{"vendors":["8086"]},"additionalInfo":{"3b:02.1":{}}`), NoEffect, `resourceList[0].additionalInfo["3b:02.1"]`, "0000:3b:02.1"},
		{"information of an auxiliary device", testResource(`,"deviceType":"auxNetDevice","selectors":{"auxTypes":["sf"]},"additionalInfo":{"mlx5_core.sf.4":null}`), NoEffect, `resourceList[0].additionalInfo["mlx5_core.sf.4"]`, "parent"},
		{"range", testSelector(`"pfNames":["eth0#0-3,x,5"]`), BadRange, "resourceList[0].selectors[0].pfNames[0]", `"x" is neither`},
		{"two ranges", testSelector(`"rootDevices":["0000:3b:00.1#0#1"]`), BadRange, "resourceList[0].selectors[0].rootDevices[0]", "more than one #"},
		{"range backwards", testSelector(`"pfNames":["eth0#7-3"]`), NoEffect, "resourceList[0].selectors[0].pfNames[0]", "did you mean 3-7?"},
		{"PF twice", testSelector(`"pfNames":["eth0#0-3","ETH0#5"]`), NoEffect, "resourceList[0].selectors[0].pfNames[1]", `which is "eth0#0-3"`},
		{"no PF", testSelector(`"pfNames":["#5"]`), NoEffect, "resourceList[0].selectors[0].pfNames[0]", "names no PF"},
		{"root that is a name", testSelector(`"rootDevices":["eth0"]`), NoEffect, "resourceList[0].selectors[0].rootDevices[0]", "the address of a PF"},
		{"vendor with 0x", testSelector(`"vendors":["0x8086"]`), NoEffect, "resourceList[0].selectors[0].vendors[0]", `did you mean "8086"?`},
		{"device in capitals", testSelector(`"devices":["154c","154C"]`), NoEffect, "resourceList[0].selectors[0].devices[1]", `did you mean "154c"?`},
		{"vendor by name", testSelector(`"vendors":["intel"]`), NoEffect, "resourceList[0].selectors[0].vendors[0]", "four hexadecimal digits"},
		{"null for a vendor", testSelector(`"vendors":[null]`), NoEffect, "resourceList[0].selectors[0].vendors[0]", "matches no device"},
		{"address without domain", testSelector(`"pciAddresses":["3B:02.1"]`), NoEffect, "resourceList[0].selectors[0].pciAddresses[0]", `did you mean "0000:3b:02.1"?`},
		{"short partition key", testSelector(`"pKeys":["0xABC"]`), NoEffect, "resourceList[0].selectors[0].pKeys[0]", `did you mean "0x0abc"?`},
		{"vDPA type", testSelector(`"vdpaType":"virtoi"`), NoEffect, "resourceList[0].selectors[0].vdpaType", `did you mean "virtio"?`},
		{"empty driver", testSelector(`"drivers":[""]`), NoEffect, "resourceList[0].selectors[0].drivers[0]", "matches no device"},
		{"string for a list", testSelector(`"vendors":"8086"`), DroppedResource, "resourceList[0].selectors[0].vendors", "a string, want a list of strings"},
		{"number in a list", testSelector(`"vendors":["8086",15]`), DroppedResource, "resourceList[0].selectors[0].vendors[1]", "a number, want a string"},
		{"string for a boolean", testSelector(`"isRdma":"true"`), DroppedResource, "resourceList[0].selectors[0].isRdma", "a string, want true or false"},
		{"list for a word", testSelector(`"vdpaType":["vhost"]`), DroppedResource, "resourceList[0].selectors[0].vdpaType", "a list, want a string"},
		{"string for a selector", testResource(`,"selectors":["8086"]`), DroppedResource, "resourceList[0].selectors[0]", "a string, want an object"},
		{"no selector in the list", testResource(`,"selectors":[]`), DroppedResource, "resourceList[0].selectors", "empty"},
		{"no selectors", testResource(``), Unfiltered, "resourceList[0].selectors", "all devices of type netDevice match"},
		{"null selectors", testResource(`,"selectors":null`), Unfiltered, "resourceList[0].selectors", "all devices of type netDevice match"},

		{"empty selector", testSelector(``), CatchAll, "resourceList[0].selectors[0]", "every device of type netDevice"},
		{"only what is no filter", testSelector(`"needVhostNet":true`), CatchAll, "resourceList[0].selectors[0]", "every device"},
		{"two link types", testSelector(`"linkTypes":["ether","infiniband"]`), Surprising, "resourceList[0].selectors[0].linkTypes", "several link types"},
		{"strange link type", testSelector(`"linkTypes":["ethernet"]`), Surprising, "resourceList[0].selectors[0].linkTypes[0]", "neither ether nor"},
		{"driver of RDMA", testSelector(`"drivers":["mlx5_ib"]`), Surprising, "resourceList[0].selectors[0].drivers[0]", `the driver of its function is "mlx5_core"`},
		{"type as driver", testSelector(`"drivers":["mlx5_core","netdevice"]`), Surprising, "resourceList[0].selectors[0].drivers[1]", "no driver has this name"},
		{"without ACPI index", testSelector(`"acpiIndexes":[""]`), Surprising, "resourceList[0].selectors[0].acpiIndexes[0]", "without an ACPI index"},
		{"hyphen", `{"resourceList":[{"resourceName":"a-b","selectors":[{"vendors":["8086"]}]}]}`, Surprising, "resourceList[0].resourceName", "PCIDEVICE_INTEL_COM_A-B"},
		{"one variable", `{"resourceList":[{"resourceName":"a","selectors":[{"vendors":["8086"]}]},{"resourceName":"A","selectors":[{"vendors":["8086"]}]}]}`, Surprising, "resourceList[1].resourceName", "PCIDEVICE_INTEL_COM_A"},
		{"no list", `{}`, NothingToDo, "resourceList", "no resource"},
		{"empty list", `{"resourceList":[]}`, NothingToDo, "resourceList", "no resource"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, warnings, err := ParseConfig([]byte(c.text), ParseOptions{})
			testkit.Must(t, err)
			w, ok := find(warnings, c.kind, c.path)
			if !ok || !strings.Contains(w.Text, c.says) {
				t.Fatalf("want %s at %s with %q, got %+v", c.kind, c.path, c.says, warnings)
			}
			if w.Kind == strictjson.UnknownKey || w.Kind == IgnoredKey || w.Kind == strictjson.DuplicateKey {
				if !strings.HasSuffix(strings.Trim(c.path, `"]`), w.Key) || w.Key == "" || !strings.Contains(w.Text, fmt.Sprintf("%q", w.Key)) {
					t.Errorf("the warning does not name its key: %+v", w)
				}
			}
			if near := w.Nearest; near != "" && !strings.Contains(w.Text, near) {
				t.Errorf("the text does not name %q: %s", near, w.Text)
			}
			_, strictWarnings, err := ParseConfig([]byte(c.text), ParseOptions{Strict: true})
			if !isMistake(c.kind) {
				if _, still := find(strictWarnings, c.kind, c.path); !still {
					t.Errorf("strictly: want the same warning, got %+v, error %v", strictWarnings, err)
				}
				return
			}
			if e, ok := errors.AsType[*strictjson.Problem](err); !ok || e.Text == "" || !strings.Contains(err.Error(), c.path+": ") || !strings.Contains(err.Error(), c.says) {
				t.Errorf("strictly: want an error at %s with %q, got %v", c.path, c.says, err)
			}
		})
	}
}

func find(all []strictjson.Problem, k strictjson.ProblemKind, path string) (strictjson.Problem, bool) {
	for _, w := range all {
		if w.Kind == k && w.Path == path {
			return w, true
		}
	}
	return strictjson.Problem{}, false
}

func TestParsePFItem(t *testing.T) {
	for text, c := range map[string]struct {
		name string
		has  []int
		bad  bool
	}{
		"eth0":                        {"eth0", []int{-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, false},
		"":                            {"", []int{-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, false},
		"eth0#3":                      {"eth0", []int{3}, false},
		"netpf0#0,2-7,9":              {"netpf0", []int{0, 2, 3, 4, 5, 6, 7, 9}, false},
		"0000:86:00.0#0-1,3":          {"0000:86:00.0", []int{0, 1, 3}, false},
		"eth0#5-5":                    {"eth0", []int{5}, false},
		"eth0#7-3":                    {"eth0", nil, false},
		"eth0#+3,007":                 {"eth0", []int{3, 7}, false},
		"eth0#":                       {"eth0", nil, true},
		"eth0#0,":                     {"eth0", []int{0}, true},
		"eth0#0-3,x,5":                {"eth0", []int{0, 1, 2, 3}, true},
		"eth0#-1":                     {"eth0", nil, true},
		"eth0#1-":                     {"eth0", nil, true},
		"eth0#1-2-3":                  {"eth0", nil, true},
		"eth0#1--3":                   {"eth0", nil, true},
		"eth0#1 - 3":                  {"eth0", nil, true},
		"eth0#1#2":                    {"eth0", nil, true},
		"eth0##":                      {"eth0", nil, true},
		"#4":                          {"", []int{4}, false},
		"eth0#0-99999999999999999999": {"eth0", nil, true},
	} {
		i, err := ParsePFItem(text)
		var has []int
		for index := -1; index <= 12; index++ {
			if i.Has(index) {
				has = append(has, index)
			}
		}
		if i.Name != c.name || i.Text != text || !slices.Equal(has, c.has) || (err != nil) != c.bad {
			t.Errorf("%q: name %q, functions %v, error %v; want %q, %v, error: %v", text, i.Name, has, err, c.name, c.has, c.bad)
		}
		if err != nil && (!strings.Contains(err.Error(), c.name+"#0-3,5") || !strings.Contains(err.Error(), text)) {
			t.Errorf("%q: the error does not say what is wrong and what would be right: %v", text, err)
		}
	}
}

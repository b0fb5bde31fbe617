package plan

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestStepStrings(t *testing.T) {
	vf := vfAddress(3)
	for want, s := range map[string]Step{
		"remove the virtual functions of 0000:3b:00.0":                                                   SetNumVFs{pf0, 0},
		"create 8 virtual functions on 0000:3b:00.0":                                                     SetNumVFs{pf0, 8},
		"switch the embedded switch of 0000:3b:00.0 to mode switchdev":                                   SetESwitch{pf0, nodestate.Switchdev},
		"set the MTU of 0000:3b:00.0 to 9000":                                                            SetMTU{pf0, 9000},
		"turn on hw-tc-offload of 0000:3b:00.0":                                                          SetTCOffload{pf0},
		"set the flow steering mode of 0000:3b:00.0 to smfs":                                             SetFlowSteering{pf0, SMFS},
		"create the Open vSwitch bridge br0 with 0000:3b:00.0":                                           CreateBridge{pf0, "br0", "{}"},
		"delete the Open vSwitch bridge br0 of 0000:3b:00.0":                                             DeleteBridge{pf0, "br0"},
		"bring up 0000:3b:00.0":                                                                          SetUp{pf0},
		"set the administrative MAC address of 0000:3b:02.3 (VF 3 of 0000:3b:00.0) to 02:00:00:00:00:01": SetMAC{Entry{pf0, 3, vf}, "02:00:00:00:00:01"},
		"set the GUIDs of 0000:3b:02.3 (VF 3 of 0000:3b:00.0) to 02:00:00:00:00:00:00:01":                SetGUID{Entry{pf0, 3, vf}, "02:00:00:00:00:00:00:01"},
		"turn trust on for 0000:3b:02.3 (VF 3 of 0000:3b:00.0)":                                          SetTrust{Entry{pf0, 3, vf}, true},
		"turn spoof checking off for 0000:3b:02.3 (VF 3 of 0000:3b:00.0)":                                SetSpoofCheck{Entry{pf0, 3, vf}, false},
		"set the VLAN of 0000:3b:02.3 (VF 3 of 0000:3b:00.0) to 77":                                      SetVLAN{Entry{pf0, 3, vf}, 77, 0, false},
		"remove the VLAN of 0000:3b:02.3 (VF 3 of 0000:3b:00.0)":                                         SetVLAN{Entry: Entry{pf0, 3, vf}},
		"set the rates of 0000:3b:02.3 (VF 3 of 0000:3b:00.0) to 10 and 100 Mbit/s":                      SetRates{Entry{pf0, 3, vf}, 10, 100},
		"set the link state of 0000:3b:02.3 (VF 3 of 0000:3b:00.0) to down":                              SetLinkState{Entry{pf0, 3, vf}, LinkDown},
		"bind 0000:3b:02.3 to its default driver":                                                        Bind{vf, ""},
		"bind 0000:3b:02.3 to vfio-pci":                                                                  Bind{vf, "vfio-pci"},
		"unbind 0000:3b:02.3 from its driver":                                                            Unbind{vf},
		"create a vDPA device (vhost) on 0000:3b:02.3":                                                   SetVDPA{vf, "vhost"},
		"remove the vDPA device of 0000:3b:02.3":                                                         SetVDPA{vf, ""},
	} {
		if s.String() != want {
			t.Errorf("%#v says %q, want %q", s, s, want)
		}
		if f := s.Function(); f != pf0 && f != vf {
			t.Errorf("%v is of %q", s, f)
		}
	}
}

func TestStatus(t *testing.T) {
	pf := ready(1)
	pf.VFs[0].VLAN, pf.VFs[0].VDPA, pf.VFs[0].NodeGUID = 7, "vhost", "02:11:22:33:44:55:66:77"
	ib := PF{Address: pf1, Netdev: "ib0", Names: []string{"ib0"}, Link: InfiniBand, ESwitch: nodestate.Switchdev}
	gone := PF{Address: "0000:3b:00.2"}
	spec := nodestate.Spec{Interfaces: []nodestate.Interface{{PCIAddress: pf0}, {PCIAddress: pf1, ExternallyManaged: true}}}
	want := `{"interfaces":[` +
		`{"name":"ens1f0","mac":"0c:42:a1:00:00:01","driver":"iavfpf","pciAddress":"0000:3b:00.0","vendor":"8086","deviceID":"1592","mtu":1500,"numVfs":1,` +
		`"linkType":"ETH","linkAdminState":"up","eSwitchMode":"legacy","totalvfs":64,` +
		`"Vfs":[{"name":"ens1f0v0","mac":"0c:42:a1:00:01:00","driver":"iavf","pciAddress":"0000:3b:02.0","vendor":"8086","deviceID":"1889","Vlan":7,"mtu":1500,"vfID":0,"vdpaType":"vhost","guid":"0211:2233:4455:6677"}],` +
		`"altNames":["enp59s0f0"]},` +
		`{"name":"ib0","pciAddress":"0000:3b:00.1","linkType":"IB","linkAdminState":"down","eSwitchMode":"switchdev","externallyManaged":true},` +
		`{"pciAddress":"0000:3b:00.2","eSwitchMode":"legacy"}],` +
		`"system":{"rdmaMode":"shared"}}`
	got := testkit.Value(json.Marshal(Status(spec, State{PFs: []PF{pf, ib, gone}, RDMAMode: "shared"})))(t)
	testkit.Diff(t, "result", want, string(got))
	if got := sysfsGUID(""); got != "" {
		t.Errorf("no GUID is %q", got)
	}
}

// The file also overrides GUIDs that functions have.
func TestStaticGUIDs(t *testing.T) {
	pf := ready(2)
	infiniband(&pf)
	pf.VFs[1].NodeGUID, pf.VFs[1].PortGUID = "02:00:00:00:00:00:00:09", "02:00:00:00:00:00:00:09"
	for name, c := range map[string]struct{ text, first, second string }{
		"a list":     {`[{"pciAddress":"0000:3b:00.0","guids":["00:01:02:03:04:05:06:07","00:01:02:03:04:05:06:17"]}]`, "00:01:02:03:04:05:06:07", "00:01:02:03:04:05:06:17"},
		"a range":    {`[{"pciAddress":"0000:3b:00.0","rangeStart":"00:01:02:03:04:05:06:ff","rangeEnd":"00:01:02:03:04:05:07:01"}]`, "00:01:02:03:04:05:06:ff", "00:01:02:03:04:05:07:00"},
		"by address": {`[{"pfGuid":"` + strings.ToUpper(pf.MAC) + `","guids":["00:01:02:03:04:05:06:07","00:01:02:03:04:05:06:17"]}]`, "00:01:02:03:04:05:06:07", "00:01:02:03:04:05:06:17"},
	} {
		pools, err := ParseGUIDs([]byte(c.text))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		p := Compute(one(2, vfio("0-1")), State{PFs: []PF{pf}}, Options{GUIDs: pools})
		want := []Step{
			SetGUID{Entry{pf0, 0, vfAddress(0)}, c.first}, Bind{vfAddress(0), "vfio-pci"},
			SetGUID{Entry{pf0, 1, vfAddress(1)}, c.second}, Bind{vfAddress(1), "vfio-pci"},
		}
		if diff := cmp.Diff(want, p.Steps); diff != "" {
			t.Errorf("%s: steps (-want +got):\n%s", name, diff)
		}
	}
}

func TestTooFewStaticGUIDs(t *testing.T) {
	pf := ready(2)
	infiniband(&pf)
	p := Compute(one(2, group("0-1")), State{PFs: []PF{pf}}, Options{GUIDs: []GUIDPool{{PF: pf0, List: []string{"00:01:02:03:04:05:06:07"}}}})
	if len(p.Steps) != 0 || len(p.Problems) != 1 || !strings.Contains(p.Problems[0].Text, "has 1 GUIDs for this function, but numVfs is 2") {
		t.Errorf("%+v, want a problem alone", p)
	}
}

func TestParseGUIDsRefuses(t *testing.T) {
	for text, says := range map[string]string{
		`{}`:   "GUID file",
		`[{}]`: "set exactly one of pciAddress and pfGuid",
		`[{"pciAddress":"0000:3b:00.0","pfGuid":"x","guids":["00:01:02:03:04:05:06:07"]}]`:                            "set exactly one of pciAddress and pfGuid",
		`[{"pciAddress":"0000:3b:00.0"}]`:                                                                             "set either guids, or rangeStart and rangeEnd",
		`[{"pciAddress":"0000:3b:00.0","rangeStart":"00:01:02:03:04:05:06:07"}]`:                                      "set either guids, or rangeStart and rangeEnd",
		`[{"pciAddress":"0000:3b:00.0","guids":["00:01:02:03:04:05"]}]`:                                               `"00:01:02:03:04:05" is not a GUID`,
		`[{"pciAddress":"0000:3b:00.0","rangeStart":"00:01:02:03:04:05:06:07","rangeEnd":"00:01:02:03:04:05:06:06"}]`: "is lower than rangeStart",
		`[{"pciAddress":"0000:3b:00.0","rangeStart":"00:00:00:00:00:00:00:00","rangeEnd":"ff:ff:ff:ff:ff:ff:ff:ff"}]`: "",
	} {
		pools, err := ParseGUIDs([]byte(text))
		if says == "" {
			if err != nil || pools[0].count() < 1<<20 {
				t.Errorf("%s: %v, %v", text, pools, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

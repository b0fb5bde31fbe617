package plan

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/sriov/nodestate"
)

func TestStatus(t *testing.T) {
	pf := ready(1)
	pf.VFs[0].VLAN, pf.VFs[0].VDPA, pf.VFs[0].NodeGUID = 7, "vhost", "02:11:22:33:44:55:66:77"
	ib := PF{Address: pf1, Netdev: "ib0", Names: []string{"ib0"}, Link: InfiniBand, ESwitch: Switchdev}
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
	got, err := json.Marshal(Status(spec, State{PFs: []PF{pf, ib, gone}, RDMAMode: "shared"}))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("-want +got\n%s", diff)
	}
	if got := sysfsGUID(""); got != "" {
		t.Errorf("no GUID is %q", got)
	}
}

package nodestate

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/internal/strictjson"
	"github.com/cleatproject/cleat/test/testkit"
)

const full = `
apiVersion: sriovnetwork.openshift.io/v1
kind: SriovNetworkNodeState
metadata:
  name: worker-0
  namespace: sriov-network-operator
  uid: 7c2b9f0e-2ab0-4d4e-b7d5-0f3a1b6a9f11
  generation: 6
  resourceVersion: "123456"
  creationTimestamp: "2026-08-01T10:00:00Z"
  annotations:
    sriovnetwork.openshift.io/current-state: Idle
  ownerReferences: [{apiVersion: v1, kind: Node, name: worker-0}]
spec:
  bridges:
    ovs:
    - name: br-0000_30_00.0
      bridge: {datapathType: netdev}
      uplinks:
      - pciAddress: 0000:30:00.0
        name: ens2f0
        interface: {mtuRequest: 9000}
  interfaces:
  - pciAddress: 0000:30:00.0
    name: ens2f0
    numVfs: 8
    mtu: 9000
    linkType: ETH
    eSwitchMode: switchdev
    vfGroups:
    - {resourceName: fast, deviceType: netdevice, vfRange: 0-3, policyName: p1, mtu: 9000, isRdma: true, vdpaType: virtio}
    - {resourceName: dpdk, deviceType: vfio-pci, vfRange: 4-7, policyName: p2, trust: on, spoofChk: "off"}
  - pciAddress: 0000:3b:00.1
    numVfs: 2
    externallyManaged: true
  system:
    rdmaMode: shared
status:
  syncStatus: Succeeded
  lastSyncError: none
  system: {rdmaMode: exclusive}
  bridges: {}
  interfaces:
  - name: ens2f0
    mac: 0c:42:a1:00:00:01
    driver: mlx5_core
    pciAddress: 0000:30:00.0
    vendor: "15b3"
    deviceID: 101d
    netFilter: openstack/NetworkID:1
    mtu: 9000
    numVfs: 8
    linkSpeed: 100000 Mb/s
    linkType: ETH
    linkAdminState: up
    eSwitchMode: switchdev
    externallyManaged: true
    totalvfs: 16
    altNames: [enp48s0f0np0]
    Vfs:
    - {name: ens2f0v0, mac: "0c:42:a1:00:00:02", assigned: a, driver: mlx5_core, pciAddress: "0000:30:00.2", vendor: 15b3, deviceID: 101e, Vlan: 7, mtu: 1500, vfID: 0, vdpaType: vhost, representorName: ens2f0_0, guid: "0c42:a1ff:fe00:0002"}
`

func TestParseAllFields(t *testing.T) {
	n, warnings, err := Parse([]byte(full))
	if err != nil || len(warnings) > 0 {
		t.Fatalf("warnings %v, error %v", warnings, err)
	}
	uplink := Uplink{PCIAddress: "0000:30:00.0", Name: "ens2f0", Interface: map[string]any{"mtuRequest": json.Number("9000")}}
	want := NodeState{
		Name: "worker-0", Namespace: "sriov-network-operator", UID: "7c2b9f0e-2ab0-4d4e-b7d5-0f3a1b6a9f11", Generation: 6, ResourceVersion: "123456",
		Annotations: map[string]string{"sriovnetwork.openshift.io/current-state": "Idle"},
		Spec: Spec{
			Bridges: Bridges{OVS: []Bridge{{Name: "br-0000_30_00.0", Bridge: map[string]any{"datapathType": "netdev"}, Uplinks: []Uplink{uplink}}}},
			System:  System{RDMAMode: Shared},
			Interfaces: []Interface{
				{PCIAddress: "0000:30:00.0", Name: "ens2f0", NumVFs: 8, MTU: 9000, LinkType: "ETH", ESwitchMode: Switchdev, VFGroups: []VFGroup{
					{ResourceName: "fast", DeviceType: NetDevice, VFRange: "0-3", PolicyName: "p1", MTU: 9000, IsRDMA: true, VDPAType: VirtIO},
					{ResourceName: "dpdk", DeviceType: VFIO, VFRange: "4-7", PolicyName: "p2", Trust: On, SpoofCheck: Off},
				}},
				{PCIAddress: "0000:3b:00.1", NumVFs: 2, ExternallyManaged: true},
			},
		},
		Status: Status{SyncStatus: Succeeded, LastSyncError: "none", System: System{RDMAMode: Exclusive}, Interfaces: []FoundInterface{{
			Name: "ens2f0", MAC: "0c:42:a1:00:00:01", Driver: "mlx5_core", PCIAddress: "0000:30:00.0", Vendor: "15b3", DeviceID: "101d",
			NetFilter: "openstack/NetworkID:1", MTU: 9000, NumVFs: 8, LinkSpeed: "100000 Mb/s", LinkType: FoundEthernet, LinkAdminState: LinkUp,
			ESwitchMode: Switchdev, ExternallyManaged: true, TotalVFs: 16, AltNames: []string{"enp48s0f0np0"},
			VFs: []FoundVF{{Name: "ens2f0v0", MAC: "0c:42:a1:00:00:02", Assigned: "a", Driver: "mlx5_core", PCIAddress: "0000:30:00.2", Vendor: "15b3",
				DeviceID: "101e", VLAN: 7, MTU: 1500, Index: 0, VDPAType: VHost, RepresentorName: "ens2f0_0", GUID: "0c42:a1ff:fe00:0002"}},
		}}},
	}
	testkit.Diff(t, "result", want, n)
	if err := n.Spec.Check(); err != nil {
		t.Errorf("Check: %v", err)
	}
}

func TestJSONRoundTrip(t *testing.T) {
	n, _, err := Parse([]byte(full))
	testkit.Must(t, err)
	text := testkit.Value(json.Marshal(map[string]any{"spec": n.Spec, "status": n.Status}))(t)
	again, warnings, err := Parse(text)
	if err != nil || len(warnings) > 0 {
		t.Fatalf("warnings %v, error %v", warnings, err)
	}
	testkit.Diff(t, "result", NodeState{Generation: 1, Spec: n.Spec, Status: n.Status}, again)
	for _, key := range []string{`"Vfs"`, `"Vlan"`, `"vfID"`, `"totalvfs"`, `"eSwitchMode"`, `"vfGroups"`, `"numVfs"`, `"isRdma"`, `"pciAddress"`} {
		if !strings.Contains(string(text), key) {
			t.Errorf("no key %s", key)
		}
	}
	if text, _ := json.Marshal(Spec{}); string(text) != "{}" {
		t.Errorf("an empty spec is %s", text)
	}
}

func TestFromObjectOfTheAPIServer(t *testing.T) {
	n, warnings, err := FromObject(map[string]any{
		"metadata": map[string]any{"generation": int64(9), "deletionTimestamp": "2026-08-01T10:00:00Z"},
		"spec":     map[string]any{"interfaces": []any{map[string]any{"pciAddress": "0000:3b:00.0", "numVfs": int64(3), "mtu": float64(1500)}}},
		"status":   nil,
	})
	want := NodeState{Generation: 9, Deleting: true, Spec: Spec{Interfaces: []Interface{{PCIAddress: "0000:3b:00.0", NumVFs: 3, MTU: 1500}}}}
	if diff := cmp.Diff(want, n); err != nil || len(warnings) > 0 || diff != "" {
		t.Errorf("warnings %v, error %v, -want +got\n%s", warnings, err, diff)
	}
	if n, _, err := FromObject(map[string]any{"metadata": map[string]any{"generation": 1.5}}); err == nil {
		t.Errorf("a fraction was accepted: %+v", n)
	}
	if n, _, err := FromObject(map[string]any{}); err != nil || n.Generation != 1 {
		t.Errorf("an empty object: %+v, %v", n, err)
	}
}

func TestParseWarnings(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want strictjson.Problem
	}{
		"slip": {`spec: {interfaces: [{pciAddress: "0000:3b:00.0", numVf: 3}]}`,
			strictjson.Problem{Kind: strictjson.UnknownKey, Path: "spec.interfaces[0].numVf", Key: "numVf", Nearest: "numVfs", Text: `did you mean "numVfs"?`}},
		"key with another letter case": {`spec: {interfaces: [{vfGroups: [{DeviceTyp: netdevice}]}]}`,
			strictjson.Problem{Kind: strictjson.UnknownKey, Path: "spec.interfaces[0].vfGroups[0].DeviceTyp", Key: "DeviceTyp", Nearest: "deviceType", Text: `did you mean "deviceType"?`}},
		"a newer operator": {`spec: {futureThing: {a: 1}}`,
			strictjson.Problem{Kind: strictjson.UnknownKey, Path: "spec.futureThing", Key: "futureThing", Text: "it is ignored. Known keys: interfaces, bridges, system"}},
		"strange key":            {`{spec: {}, "a b": 1}`, strictjson.Problem{Kind: strictjson.UnknownKey, Path: `["a b"]`, Key: "a b", Text: "it is ignored"}},
		"other case in a status": {`{spec: {}, status: {interfaces: [{vfs: []}]}}`, strictjson.Problem{Kind: strictjson.UnknownKey, Path: "status.interfaces[0].vfs", Key: "vfs", Nearest: "Vfs", Text: "did you mean"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, warnings, err := Parse([]byte(test.text))
			if err != nil || len(warnings) != 1 {
				t.Fatalf("warnings %v, error %v", warnings, err)
			}
			got := warnings[0]
			if !strings.Contains(got.Text, test.want.Text) || !strings.HasPrefix(got.String(), got.Path+": ") {
				t.Errorf("says %q", got)
			}
			got.Text = test.want.Text
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestParseRejects(t *testing.T) {
	for name, test := range map[string]struct{ text, want string }{
		"nothing":                 {" \n", "the text is empty, want a SriovNetworkNodeState"},
		"a comment":               {"# later\n", "the text is null, want an object"},
		"a list":                  {"[]", "the text is a list, want an object"},
		"no spec":                 {"kind: SriovNetworkNodeState", `spec: it is missing; for no interfaces write "spec: {}"`},
		"a spec of null":          {"spec:", "spec: it is missing"},
		"no YAML":                 {"spec: [", "neither YAML nor JSON"},
		"a key twice":             {"spec: {}\nspec: {}\n", "neither YAML nor JSON"},
		"a nested key twice":      {"spec: {interfaces: [{numVfs: 1, numVfs: 2}]}", `key "numVfs" already set`},
		"two documents":           {"spec: {}\n---\nspec: {}\n", "line 2 begins a second document"},
		"two, after a header":     {"# a\n--- # b\nspec: {}\n\n--- {}\n", "line 5 begins a second document"},
		"two, by a line":          {"--- {spec: {}}\n---\n", "line 2 begins a second document"},
		"two, by dots":            {"spec: {}\n...\n# a\nspec: {}\n", "line 4 begins a second document"},
		"two, by carriage return": {"spec: {}\r---\rspec: {}\r", "line 2 begins a second document"},
		"two, by a separator":     {"spec: {}\u2028---\u2028spec: {}", "line 2 begins a second document"},
		"UTF-16":                  {"s\x00p\x00e\x00c\x00:\x00{\x00}\x00", "not UTF-8"},
		"Latin 1":                 {"spec: {} # \xe4", "not UTF-8"},
		"too large":               {strings.Repeat(" ", MaxSize+1), "want at most 3145728"},
		"another kind":            {"{kind: SriovNetworkNodeStateList, spec: {}}", `kind: it is "SriovNetworkNodeStateList", want "SriovNetworkNodeState"`},
		"another version":         {"{apiVersion: v2, spec: {}}", `apiVersion: it is "v2", want "sriovnetwork.openshift.io/v1"`},
		"letter case":             {"spec: {interfaces: [{numVFs: 1}]}", `spec.interfaces[0].numVFs: there is no key "numVFs", want "numVfs"`},
		"a list as spec":          {"spec: []", "spec: it is a list, want an object"},
		"an object as list":       {"spec: {interfaces: {}}", "spec.interfaces: it is an object, want a list"},
		"null in a list":          {"spec: {interfaces: [null]}", "spec.interfaces[0]: it is null, want an object"},
		"text as number":          {`spec: {interfaces: [{numVfs: "1"}]}`, "spec.interfaces[0].numVfs: it is a string, want a whole number"},
		"a fraction":              {`spec: {interfaces: [{numVfs: 1.5}]}`, "1.5 is not a whole number of 32 bits"},
		"much":                    {`spec: {interfaces: [{mtu: 4294967296}]}`, "4294967296 is not a whole number of 32 bits"},
		"large number":            {`spec: {interfaces: [{mtu: 99999999999999999999}]}`, "is not a whole number of 32 bits"},
		"number as text":          {`spec: {interfaces: [{name: 5}]}`, "spec.interfaces[0].name: it is a number, want a string; put it in quotes"},
		"text as truth":           {`spec: {interfaces: [{externallyManaged: "yes"}]}`, "it is a string, want true or false"},
		"trust as number":         {`spec: {interfaces: [{vfGroups: [{trust: 1}]}]}`, `trust: it is a number, want "on" or "off"`},
		"generation as text":      {`{metadata: {generation: "5"}, spec: {}}`, "metadata.generation: it is a string, want a whole number"},
		"generation below 0":      {`{metadata: {generation: -1}, spec: {}}`, "metadata.generation: it is -1, want 0 or more"},
		"a key near metadata":     {`{spec: {}, Metadata: {}}`, `Metadata: there is no key "Metadata", want "metadata"`},
		"metadata as list":        {`{metadata: [], spec: {}}`, "metadata: it is a list, want an object"},
		"annotations of numbers":  {`{metadata: {annotations: {a/b: 1}}, spec: {}}`, `metadata.annotations["a/b"]: it is a number`},
		"annotations as text":     {`{metadata: {annotations: a}, spec: {}}`, "metadata.annotations: it is a string"},
		"a bridge of text":        {`spec: {bridges: {ovs: [{bridge: a}]}}`, "spec.bridges.ovs[0].bridge: it is a string, want an object"},
		"status as text":          {`{spec: {}, status: {interfaces: [{Vfs: [{vfID: a}]}]}}`, "status.interfaces[0].Vfs[0].vfID: it is a string"},
	} {
		t.Run(name, func(t *testing.T) {
			n, _, err := Parse([]byte(test.text))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error %v, want %q", err, test.want)
			}
			if _, ok := errors.AsType[*strictjson.Problem](err); !ok {
				t.Errorf("%T is no *strictjson.Problem", err)
			}
			testkit.Diff(t, "not empty", NodeState{}, n)
		})
	}
}

func TestParseReportsAllErrors(t *testing.T) {
	_, warnings, err := Parse([]byte(`{kind: 1, spec: {interfaces: [{numVfs: a, mtu: true, x: 1}, 5]}}`))
	want := strings.Join([]string{
		"kind: it is a number, want a string; put it in quotes",
		"spec.interfaces[0].numVfs: it is a string, want a whole number",
		"spec.interfaces[0].mtu: it is a boolean, want a whole number",
		"spec.interfaces[1]: it is a number, want an object",
	}, "\n")
	if err == nil || err.Error() != want || len(warnings) != 1 {
		t.Errorf("warnings %v, error\n%v, want\n%s", warnings, err, want)
	}
}

func TestParseAccepts(t *testing.T) {
	for name, text := range map[string]string{
		"JSON":              `{"spec":{"interfaces":[{"pciAddress":"0000:30:00.0"}]}}`,
		"base 60 otherwise": "spec: {interfaces: [{pciAddress: 0000:30:00.0}]}",
		"a header":          "%YAML 1.1\n# a\n---\nspec: {interfaces: [{pciAddress: '0000:30:00.0'}]}\n...\n# end\n",
		"a byte order mark": "\ufeffspec: {interfaces: [{pciAddress: '0000:30:00.0'}]}",
		"no metadata":       "{metadata: null, spec: {interfaces: [{pciAddress: '0000:30:00.0', mtu: null, vfGroups: null}]}}",
		"generation 0":      "{metadata: {generation: 0}, spec: {interfaces: [{pciAddress: '0000:30:00.0'}]}}",
		"dashes in a text":  "metadata: {annotations: {a: '---'}}\nspec: {interfaces: [{pciAddress: '0000:30:00.0'}]}",
	} {
		t.Run(name, func(t *testing.T) {
			n, warnings, err := Parse([]byte(text))
			n.Annotations = nil
			want := NodeState{Generation: 1, Spec: Spec{Interfaces: []Interface{{PCIAddress: "0000:30:00.0"}}}}
			if diff := cmp.Diff(want, n); err != nil || len(warnings) > 0 || diff != "" {
				t.Errorf("warnings %v, error %v\n%s", warnings, err, diff)
			}
		})
	}
}

// Parse terminates and is deterministic; a node state survives a JSON round
// trip; errors have a path.
func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "{}", "[]", "spec:", "spec: {}", full, "spec: {}\n---\n", "a: &a [*a]", "spec: {interfaces: [{numVfs: 1e3, mtu: 0x10, name: ~}]}",
		"spec: {interfaces: [{vfGroups: [{vfRange: 0-3, trust: on}], numVFs: 3}]}", `{"spec":{"interfaces":[{"pciAddress":"0000:3b:00.0","numVfs":4}]}}`,
		"<<: {spec: {}}", "? [a]\n: b\nspec: {}", "metadata: {generation: 18446744073709551615}\nspec: {}", "spec: {bridges: {ovs: [{bridge: {a: .nan}}]}}",
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		n, warnings, err := Parse(text)
		for _, w := range warnings {
			if w.Path == "" || w.Text == "" || !strings.Contains(w.Text, "there is no key") {
				t.Errorf("warning %+v", w)
			}
		}
		again, _, errAgain := Parse(text)
		if diff := cmp.Diff(n, again); diff != "" || (err == nil) != (errAgain == nil) {
			t.Errorf("results differ: %v, %v\n%s", err, errAgain, diff)
		}
		if err != nil {
			if e, ok := errors.AsType[*strictjson.Problem](err); !ok || e.Text == "" {
				t.Errorf("error %#v", err)
			}
			return
		}
		if n.Generation < 1 {
			t.Errorf("generation %d", n.Generation)
		}
		written := testkit.Value(json.Marshal(map[string]any{"spec": n.Spec, "status": n.Status}))(t)
		back, warnings, err := Parse(written)
		if err != nil || len(warnings) > 0 {
			t.Fatalf("%s: warnings %v, error %v", written, warnings, err)
		}
		if back.Spec.Hash() != n.Spec.Hash() || n.Spec.Hash() != again.Spec.Hash() {
			t.Errorf("another hash after %s", written)
		}
		_ = n.Spec.Check()
	})
}

func FuzzParseRange(f *testing.F) {
	for _, text := range []string{"0-3", "", "-", "3-0", "0-1,3", "65534-65534", "1-2-3", "+1-2"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		r, err := ParseRange(text)
		if err != nil {
			if r != (Range{}) {
				t.Errorf("%q: %v with %v", text, r, err)
			}
			return
		}
		if r.First < 0 || r.First > r.Last || r.Last > maxIndex || strings.Trim(text, "0123456789-") != "" || strings.Count(text, "-") != 1 {
			t.Errorf("%q: %v", text, r)
		}
		if again, err := ParseRange(r.String()); err != nil || again != r {
			t.Errorf("%q: %v, then %v, %v", text, r, again, err)
		}
		if !r.Has(r.First) || !r.Has(r.Last) || r.Has(r.Last+1) || r.Has(r.First-1) || !r.Overlaps(r) {
			t.Errorf("%v does not have its ends", r)
		}
	})
}

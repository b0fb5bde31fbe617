package gate

import (
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strconv"

	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/test/testkit"
)

// desiredState is the desired node state: the first functions are network devices, the
// others use vfio-pci.
type desiredState struct {
	uid        string
	generation int64
	network    int // functions with igbvf
	vfio       int
	mtu        int // of functions with igbvf
	external   bool
	nothing    bool // the card is not in the spec
	sync       string
}

func (w desiredState) number() int { return w.network + w.vfio }

// setDesired writes the node state.
func (r *rig) setDesired(w desiredState) {
	r.Helper()
	r.previous, r.desired = r.desired, w
	spec := nodestate.Spec{}
	if !w.nothing {
		i := nodestate.Interface{PCIAddress: r.pf, NumVFs: w.number(), MTU: 2000, Name: r.netdev, LinkType: "eth", ExternallyManaged: w.external}
		if w.external {
			i.MTU = 0 // the external manager sets it
		}
		if w.network > 0 {
			i.VFGroups = append(i.VFGroups, nodestate.VFGroup{ResourceName: "net", DeviceType: nodestate.NetDevice, VFRange: between(0, w.network),
				PolicyName: "net", MTU: w.mtu, Trust: nodestate.On, SpoofCheck: nodestate.Off})
		}
		if w.vfio > 0 {
			i.VFGroups = append(i.VFGroups, nodestate.VFGroup{ResourceName: "dpdk", DeviceType: nodestate.VFIO, VFRange: between(w.network, w.number()), PolicyName: "dpdk"})
		}
		spec.Interfaces = []nodestate.Interface{i}
	}
	state := map[string]any{
		"apiVersion": nodestate.APIVersion, "kind": nodestate.Kind, "spec": spec,
		"metadata": map[string]any{"name": "guest-1", "uid": w.uid, "generation": w.generation},
	}
	if w.sync != "" {
		state["status"] = map[string]any{"syncStatus": w.sync}
	}
	text := testkit.Value(json.Marshal(state))(r)
	r.put(nodeState, string(text))
}

func between(first, end int) string { return fmt.Sprintf("%d-%d", first, end-1) }

// differs describes how functions, or only some of them, differ from the desired
// state, or returns "".
func (r *rig) differs(f Functions, some ...string) string {
	return r.differsFrom(r.desired, f, some...)
}

func (r *rig) differsFrom(w desiredState, f Functions, some ...string) string {
	if w.nothing {
		return ""
	}
	if f.Number != w.number() || len(f.Virtual) != f.Number {
		return fmt.Sprintf("got %d functions, want %d", f.Number, w.number())
	}
	for _, address := range some {
		if !slices.ContainsFunc(f.Virtual, func(v Virtual) bool { return v.Address == address }) {
			return address + " does not exist"
		}
	}
	for i, v := range f.Virtual {
		want := "igbvf"
		if i >= w.network {
			want = "vfio-pci"
		}
		switch {
		case len(some) > 0 && !slices.Contains(some, v.Address):
		case v.Driver != want || v.Override != "(null)":
			return fmt.Sprintf("VF %d: got driver %q and driver_override %s, want %s and none", i, v.Driver, v.Override, want)
		case want == "igbvf" && slices.Contains(r.inPod, v.Address):
		case want == "igbvf" && (v.Netdev == "" || v.MTU != w.mtu):
			return fmt.Sprintf("VF %d: got network device %q with MTU %d, want MTU %d", i, v.Netdev, v.MTU, w.mtu)
		}
	}
	return ""
}

// virtual returns the address of a virtual function.
func (r *rig) virtual(index int) string {
	r.Helper()
	return path.Base(r.Run("readlink", path.Join(devices, r.pf, "virtfn"+strconv.Itoa(index))))
}

// script creates functions like an external script: with autoprobed drivers, or
// with neither driver nor MAC.
func (r *rig) script(number int, probed bool) {
	r.Helper()
	value := "0"
	if probed {
		value = "1"
	}
	dir := path.Join(devices, r.pf)
	r.Write(dir+"/sriov_drivers_autoprobe", value)
	if r.Read(dir+"/sriov_numvfs") != "0" {
		r.Write(dir+"/sriov_numvfs", "0")
	}
	if number > 0 {
		r.Write(dir+"/sriov_numvfs", strconv.Itoa(number))
	}
	r.Write(dir+"/sriov_drivers_autoprobe", "1")
}

package nodestate

import (
	"maps"
	"slices"
)

// metadata reads what is needed of an object's metadata. The API server has
// many more keys there.
func (r *reader) metadata(v any, path string, n *NodeState) {
	object, ok := v.(map[string]any)
	if !ok {
		r.fail(path, "it is %s, want an object", kindOf(v))
		return
	}
	deletion := ""
	for _, f := range []field{
		{"name", r.text(&n.Name)},
		{"namespace", r.text(&n.Namespace)},
		{"uid", r.text(&n.UID)},
		{"resourceVersion", r.text(&n.ResourceVersion)},
		{"generation", func(v any, path string) { r.generation(v, path, &n.Generation) }},
		{"deletionTimestamp", r.text(&deletion)},
		{"annotations", func(v any, path string) { n.Annotations = r.texts(v, path) }},
	} {
		if v := object[f.key]; v != nil {
			f.read(v, join(path, f.key))
		}
	}
	n.Deleting = deletion != ""
}

// generation reads a generation; 0 is none.
func (r *reader) generation(v any, path string, to *int64) {
	n, whole, ok := scalar(v)
	if !ok || !whole || n < 0 {
		r.fail(path, "it is %s (%v), want a whole number, 0 or more", kindOf(v), v)
		return
	}
	*to = max(n, 1)
}

func (r *reader) texts(v any, path string) map[string]string {
	object, ok := v.(map[string]any)
	if !ok {
		r.fail(path, "it is %s, want an object of strings", kindOf(v))
		return nil
	}
	all := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		text := ""
		r.text(&text)(object[key], join(path, key))
		all[key] = text
	}
	return all
}

func (r *reader) spec(v any, path string, s *Spec) {
	r.object(v, path,
		field{"interfaces", func(v any, path string) {
			r.list(v, path, func(v any, path string) {
				s.Interfaces = append(s.Interfaces, r.wanted(v, path))
			})
		}},
		field{"bridges", func(v any, path string) { r.bridges(v, path, &s.Bridges) }},
		field{"system", func(v any, path string) { r.system(v, path, &s.System) }},
	)
}

func (r *reader) wanted(v any, path string) Interface {
	var i Interface
	r.object(v, path,
		field{"pciAddress", r.text(&i.PCIAddress)},
		field{"numVfs", r.number(&i.NumVFs)},
		field{"mtu", r.number(&i.MTU)},
		field{"name", r.text(&i.Name)},
		field{"linkType", r.text(&i.LinkType)},
		field{"eSwitchMode", r.text(&i.ESwitchMode)},
		field{"vfGroups", func(v any, path string) {
			r.list(v, path, func(v any, path string) {
				i.VFGroups = append(i.VFGroups, r.group(v, path))
			})
		}},
		field{"externallyManaged", r.truth(&i.ExternallyManaged)},
	)
	return i
}

func (r *reader) group(v any, path string) VFGroup {
	var g VFGroup
	r.object(v, path,
		field{"resourceName", r.text(&g.ResourceName)},
		field{"deviceType", r.text(&g.DeviceType)},
		field{"vfRange", r.text(&g.VFRange)},
		field{"policyName", r.text(&g.PolicyName)},
		field{"mtu", r.number(&g.MTU)},
		field{"isRdma", r.truth(&g.IsRDMA)},
		field{"vdpaType", r.text(&g.VDPAType)},
		field{"trust", r.onOff(&g.Trust)},
		field{"spoofChk", r.onOff(&g.SpoofCheck)},
	)
	return g
}

func (r *reader) bridges(v any, path string, b *Bridges) {
	r.object(v, path, field{"ovs", func(v any, path string) {
		r.list(v, path, func(v any, path string) {
			var bridge Bridge
			r.object(v, path,
				field{"name", r.text(&bridge.Name)},
				field{"bridge", r.free(&bridge.Bridge)},
				field{"uplinks", func(v any, path string) {
					r.list(v, path, func(v any, path string) {
						bridge.Uplinks = append(bridge.Uplinks, r.uplink(v, path))
					})
				}},
			)
			b.OVS = append(b.OVS, bridge)
		})
	}})
}

func (r *reader) uplink(v any, path string) Uplink {
	var u Uplink
	r.object(v, path,
		field{"pciAddress", r.text(&u.PCIAddress)},
		field{"name", r.text(&u.Name)},
		field{"interface", r.free(&u.Interface)},
	)
	return u
}

func (r *reader) system(v any, path string, s *System) {
	r.object(v, path, field{"rdmaMode", r.text(&s.RDMAMode)})
}

func (r *reader) status(v any, path string, s *Status) {
	r.object(v, path,
		field{"interfaces", func(v any, path string) {
			r.list(v, path, func(v any, path string) {
				s.Interfaces = append(s.Interfaces, r.found(v, path))
			})
		}},
		field{"bridges", func(v any, path string) { r.bridges(v, path, &s.Bridges) }},
		field{"system", func(v any, path string) { r.system(v, path, &s.System) }},
		field{"syncStatus", r.text(&s.SyncStatus)},
		field{"lastSyncError", r.text(&s.LastSyncError)},
	)
}

func (r *reader) found(v any, path string) FoundInterface {
	var f FoundInterface
	r.object(v, path,
		field{"name", r.text(&f.Name)},
		field{"mac", r.text(&f.MAC)},
		field{"driver", r.text(&f.Driver)},
		field{"pciAddress", r.text(&f.PCIAddress)},
		field{"vendor", r.text(&f.Vendor)},
		field{"deviceID", r.text(&f.DeviceID)},
		field{"netFilter", r.text(&f.NetFilter)},
		field{"mtu", r.number(&f.MTU)},
		field{"numVfs", r.number(&f.NumVFs)},
		field{"linkSpeed", r.text(&f.LinkSpeed)},
		field{"linkType", r.text(&f.LinkType)},
		field{"linkAdminState", r.text(&f.LinkAdminState)},
		field{"eSwitchMode", r.text(&f.ESwitchMode)},
		field{"externallyManaged", r.truth(&f.ExternallyManaged)},
		field{"totalvfs", r.number(&f.TotalVFs)},
		field{"Vfs", func(v any, path string) {
			r.list(v, path, func(v any, path string) { f.VFs = append(f.VFs, r.foundVF(v, path)) })
		}},
		field{"altNames", func(v any, path string) {
			r.list(v, path, func(v any, path string) {
				name := ""
				r.text(&name)(v, path)
				f.AltNames = append(f.AltNames, name)
			})
		}},
	)
	return f
}

func (r *reader) foundVF(v any, path string) FoundVF {
	var f FoundVF
	r.object(v, path,
		field{"name", r.text(&f.Name)},
		field{"mac", r.text(&f.MAC)},
		field{"assigned", r.text(&f.Assigned)},
		field{"driver", r.text(&f.Driver)},
		field{"pciAddress", r.text(&f.PCIAddress)},
		field{"vendor", r.text(&f.Vendor)},
		field{"deviceID", r.text(&f.DeviceID)},
		field{"Vlan", r.number(&f.VLAN)},
		field{"mtu", r.number(&f.MTU)},
		field{"vfID", r.number(&f.Index)},
		field{"vdpaType", r.text(&f.VDPAType)},
		field{"representorName", r.text(&f.RepresentorName)},
		field{"guid", r.text(&f.GUID)},
	)
	return f
}

package plan

import (
	"cmp"
	"net/netip"
	"slices"
)

// record returns the recorded facts with those of this observation. Volumes and
// clients that vanished from the API server stay: the lost node can still use
// them. After a reboot of the node, which brake permits only before the intent,
// the record begins again.
func (o Observation) record() *Record {
	next := Record{Volumes: volumeUnion(nil, o.Volumes), Clients: clientUnion(nil, o.Clients), At: o.now()}
	if o.Node != nil {
		next.NodeUID = o.Node.UID
		next.Machines = o.machines()
	}
	old := o.Remediation.Status.Record
	if old == nil || o.Node != nil && o.Node.Machine.isRebooted(old.Machines[0]) {
		return next.sealed()
	}
	if o.Node == nil {
		next.NodeUID = old.NodeUID
	}
	next.Machines = machineUnion(old.Machines, o.machines())
	next.Volumes = volumeUnion(old.Volumes, o.Volumes)
	next.Clients = clientUnion(old.Clients, o.Clients)
	same := next
	same.At = old.At
	if same.sealed().Digest == old.Digest {
		return old
	}
	return next.sealed()
}

// machineUnion keeps another machine of the same name out: Next treats it as one
// that has not returned.
func machineUnion(old, observed []Machine) []Machine {
	all := slices.Clone(old)
	for _, m := range observed {
		switch i := slices.IndexFunc(all, func(known Machine) bool { return known.Name == m.Name }); {
		case i < 0:
			all = append(all, m)
		case !all[i].isKnown() || m.isRebooted(all[i]): // rebooted: a DPU, before the intent
			all[i] = m
		}
	}
	return all
}

// volumeUnion joins volumes that differ only in the objects that name them.
func volumeUnion(old, observed []Volume) []Volume {
	key := func(v Volume) string {
		v.SeenIn = nil
		return v.Name + " " + digest(v)
	}
	all := map[string]Volume{}
	for _, v := range slices.Concat(old, observed) {
		v.SeenIn = union(all[key(v)].SeenIn, v.SeenIn, cmp.Compare[string])
		all[key(v)] = v
	}
	return sortedValues(all)
}

func clientUnion(old, observed []Client) []Client {
	all := map[string]Client{}
	for _, c := range slices.Concat(old, observed) {
		key := c.Machine + "\n" + c.Backend + "\n" + string(c.Source)
		c.Addresses = union(all[key].Addresses, c.Addresses, netip.Addr.Compare)
		c.Rejected = union(all[key].Rejected, c.Rejected, cmp.Compare[string])
		all[key] = c
	}
	return sortedValues(all)
}

// intent adds what the record needs to the targets that can be fenced already.
func (o Observation) intent() *Intent {
	s := o.Remediation.Status
	fenced := map[string][]netip.Addr{}
	if s.Intent != nil {
		for _, t := range s.Intent.Targets {
			fenced[t.Backend] = t.Addresses
		}
	}
	for _, b := range o.neededBackends() {
		fenced[b] = nil
	}
	addresses := s.Record.addresses()
	next := Intent{Record: s.Record.Digest, At: o.now()}
	for backend, before := range fenced {
		next.Targets = append(next.Targets, Target{Backend: backend, Addresses: union(before, addresses, netip.Addr.Compare)})
	}
	slices.SortFunc(next.Targets, func(a, b Target) int { return cmp.Compare(a.Backend, b.Backend) })
	return next.sealed()
}

// addresses are those of all clients: each is the lost node or one of its DPUs,
// whatever backend it was recorded at.
func (r Record) addresses() (all []netip.Addr) {
	for _, c := range r.Clients {
		all = union(all, c.Addresses, netip.Addr.Compare)
	}
	return all
}

func union[T any](a, b []T, compare func(T, T) int) []T {
	all := slices.Concat(a, b)
	slices.SortFunc(all, compare)
	return slices.CompactFunc(all, func(x, y T) bool { return compare(x, y) == 0 })
}

func contains(all, some []netip.Addr) bool {
	for _, a := range some {
		if !slices.Contains(all, a) {
			return false
		}
	}
	return true
}

func sortedValues[T any](all map[string]T) (values []T) {
	keys := make([]string, 0, len(all))
	for k := range all {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		values = append(values, all[k])
	}
	return values
}

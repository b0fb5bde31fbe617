package inventory

// Device can be in a pool; it points into the snapshot. A held device points to
// a copy with what moved into the pod's namespace.
type Device struct {
	ID        string     // 0000:3b:02.1, mlx5_core.sf.4
	Function  *Function  // of an auxiliary device: its parent
	Auxiliary *Auxiliary // nil for a function
}

// Address is the PCI address, the key of additionalInfo.
func (d Device) Address() string { return d.Function.Address }

// Clone copies the function and the auxiliary device. Slices are shared.
func (d Device) Clone() Device {
	if d.Auxiliary != nil {
		a := *d.Auxiliary
		a.Parent = *d.Function
		return Device{ID: d.ID, Function: &a.Parent, Auxiliary: &a}
	}
	f := *d.Function
	return Device{ID: d.ID, Function: &f}
}

// Member is a device in a pool.
type Member struct {
	Device
	Selector int // in Resource.Selectors
	Held     bool
	Wrong    string // why it is unhealthy
}

// Pool is a resource with its devices.
type Pool struct {
	Resource Resource
	Members  []Member // by selector, then id
}

// Assignment is the result of Assign.
type Assignment struct {
	Pools    []Pool   // in the order of resources; upstream does not serve empty ones
	Free     []Device // by type and id
	LeftOut  []LeftOut
	Warnings []PoolWarning
}

// LeftOut is a device excluded from all pools.
type LeftOut struct {
	Device
	Why string
}

// AssignOptions are inputs that upstream does not have.
type AssignOptions struct {
	Held       []HeldDevice
	LinkHealth bool // unhealthy if the PF's link is down
}

// HeldDevice is a device that a pod holds.
type HeldDevice struct {
	Resource string // full name
	ID       string
	Last     *Device // when it was allocated; nil: not known
}

// Assign assigns each device to the first selector that it passes. The time is
// proportional to devices times selectors.
func Assign(c Config, s *Snapshot, o AssignOptions) Assignment {
	a := Assignment{Pools: make([]Pool, len(c.Resources))}
	for i, r := range c.Resources {
		a.Pools[i].Resource = r
	}
	sels, all := prepareCandidates(c, s, o)
	members := make([][]Member, len(sels))
	lost := contest{}
	for i := range all {
		d := &all[i]
		if d.leftOut != "" {
			a.LeftOut = append(a.LeftOut, LeftOut{Device: d.Device, Why: d.leftOut})
			continue
		}
		for _, j := range d.kept {
			members[j] = append(members[j], Member{Device: d.Device, Selector: sels[j].index, Held: true, Wrong: d.wrong})
		}
		if len(d.kept) > 0 {
			continue
		}
		winner := -1
		for j := range sels {
			sel := &sels[j]
			if sel.kind != d.kind || sel.refusal(d) != nil {
				continue
			}
			if winner < 0 {
				winner = j
				members[j] = append(members[j], Member{Device: d.Device, Selector: sel.index, Wrong: sel.unhealthy(d)})
			} else if sels[winner].resource != sel.resource {
				lost.add(sels[winner].resource, sel.resource, d.ID)
			}
		}
		if winner < 0 {
			a.Free = append(a.Free, d.Device)
		}
	}
	for j, m := range members {
		p := &a.Pools[sels[j].resource]
		p.Members = append(p.Members, m...)
	}
	a.Warnings = poolWarnings(c, &a, all, lost)
	return a
}

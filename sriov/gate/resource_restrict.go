package gate

import "slices"

// restriction withdraws single devices while the resource is open.
type restriction struct {
	restricted   uint64 // number of the last Restrict
	closed       Closed
	acknowledged uint64 // number of the Restrict whose devices are withdrawn
	asking       bool   // PodResources
}

// isOffered reports whether the kubelet gets a device as healthy.
func (r *Resource) isOffered(id string) bool {
	d, exists := r.snapshot[id]
	return exists && d.Healthy && r.closed.Reason(d) == ""
}

// closedDevices returns the existing devices that the restriction withdraws.
func (r *Resource) closedDevices() []string {
	var ids []string
	for id, d := range r.snapshot {
		if r.closed.Reason(d) != "" {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

func (e Restrict) applyTo(r *Resource) {
	withdrawn := r.acknowledged
	if withdrawn == r.restricted && e.Closed.within(r.closed) {
		withdrawn = e.Seq // a part of what is withdrawn
	}
	r.restriction = restriction{restricted: e.Seq, closed: e.Closed, acknowledged: withdrawn}
	delete(r.timers, TimerRestrict)
	r.withdrawCalls()
}

// withdrawCalls refuses the in-flight calls for closed devices, even if those are
// offered again before they end.
func (r *Resource) withdrawCalls() {
	ids := r.closedDevices()
	for id, c := range r.calls {
		c.withdrawn = c.withdrawn || slices.ContainsFunc(c.devices, func(d string) bool { return slices.Contains(ids, d) })
		r.calls[id] = c
	}
}

// continueRestriction completes when no call for a closed device is in flight,
// the kubelet has a list without one, and PodResources lists none as allocatable.
func (r *Resource) continueRestriction() {
	if r.acknowledged == r.restricted || r.phase == Withdrawing {
		return
	}
	ids := r.closedDevices()
	has := func(id string) bool { return slices.Contains(ids, id) }
	if r.phase == Offered && r.step != unregistered && len(ids) > 0 {
		for _, c := range r.calls {
			if slices.ContainsFunc(c.devices, has) {
				return
			}
		}
		if r.stream != 0 && (!r.delivered || slices.ContainsFunc(r.issued, func(d Device) bool { return d.Healthy && has(d.ID) })) {
			return
		}
		if _, later := r.timers[TimerRestrict]; !later && !r.asking {
			r.asking = true
			r.do(Confirm{Restriction: r.restricted, Devices: ids})
		}
		return
	}
	r.acknowledged = r.restricted
}

func (r *Resource) restrictionConfirmed(e Confirmed) {
	if !r.asking || e.Restriction != r.restricted {
		return
	}
	r.asking = false
	if e.Known && e.Offered > 0 {
		r.set(TimerRestrict, r.now.Add(ConfirmInterval))
		return
	}
	r.acknowledged = r.restricted
}

package model

import (
	"fmt"
	"slices"

	"github.com/cleatproject/cleat/takeover/plan"
)

// act performs one write or action of controller i, and returns what is wrong
// about it.
func (m *model) act(w *world, i int, bit uint8) (what func() string, violation string) {
	l := &w.leaders[i]
	st, r := m.steps[l.step], l.remediation
	if bit == writeStatus {
		if !l.objectFresh && !m.broken.unconditionalStatus {
			return func() string { return "conflict of a status" }, ""
		}
		violation = m.wrongStatus(w, l, st.status)
		o := w.objects[r]
		o.status = st.status
		fresh := l.objectFresh
		w.changeObject(r, o)
		l.objectFresh = fresh // the actions of a mutant that acts first
		return func() string { return "writes " + parts(m.statuses[st.status]) }, violation
	}
	action := st.actions[slices.Index([]uint8{1, 2, 4, 8}, bit)]
	what = func() string { return fmt.Sprintf("%T %+v", action, action) }
	o, n := w.objects[r], w.node
	switch a := action.(type) {
	case plan.AddFinalizer, plan.RemoveFinalizer:
		if l.objectFresh {
			_, o.finalizer = a.(plan.AddFinalizer)
			w.changeObject(r, o)
		}
		return what, ""
	case plan.Fence:
		return what, m.fence(w, i, a)
	case plan.Unfence:
		if m.statuses[o.status].Release == nil {
			violation = "a fence is lifted without a release"
		}
		b, owner := slices.Index(backends, a.Backend), m.owner(r)
		if owner == administrator && w.held[b][administrator] != 0 && w.adminFenced {
			violation = "an administrator's fence is lifted"
		}
		w.held[b][owner] &^= bitsOf(a)
		return what, violation
	case plan.DeletePods:
		w.pods = false
		return what, ""
	}
	// The others write the Node object.
	if !l.nodeFresh && !m.broken.unconditionalNode || !n.exists {
		return what, ""
	}
	switch a := action.(type) {
	case plan.ClaimNode:
		n.claim(a.Claim)
		if !n.unschedulable {
			n.unschedulable, n.cordonOf = true, r+1
		}
	case plan.TaintNode:
		violation = m.wrongTaint(w, l)
		if n.taint == 0 {
			n.taint = r + 1
		}
		w.moved |= volumesOf(m.statuses[o.status].Record) &^ v3
	case plan.LeaveNode:
		if a.RemoveTaint {
			if n.taint != r+1 {
				violation = "a taint of another owner is removed"
			}
			n.taint = 0
		}
		n.claim(a.Claim)
		if a.Uncordon {
			if n.cordonOf == administrator+1 {
				violation = "an administrator's cordon is removed"
			}
			n.unschedulable, n.cordonOf = false, 0
		}
	}
	w.changeNode(n)
	return what, violation
}

func (n *nodeObject) claim(c plan.Claim) {
	n.claimBy = uint8(slices.Index(uids, c.Remediation)) + 1
	n.claimTerm, n.claimCordoned, n.claimLeft = uint8(c.Term), c.Cordoned, c.Left
}

func (m *model) owner(r uint8) uint8 {
	if m.broken.sharedOwner {
		return administrator
	}
	return r
}

func (m *model) fence(w *world, i int, a plan.Fence) (violation string) {
	l := w.leaders[i]
	b := slices.Index(backends, a.Backend)
	w.held[b][m.owner(l.remediation)] |= bitsOf(plan.Unfence(a))
	w.late = w.late || i == 0 && w.elected
	switch {
	case w.held[b][0]&addressB|w.held[b][1]&addressB|w.held[b][administrator]&addressB != 0:
		return "an address of a healthy node is fenced"
	case m.statuses[w.objects[l.remediation].status].Intent == nil:
		return "a fence without an intent"
	}
	return ""
}

func bitsOf(a plan.Unfence) (bits uint8) {
	for i, address := range addresses {
		if slices.Contains(a.Addresses, address) {
			bits |= 1 << i
		}
	}
	return bits
}

func volumesOf(r *plan.Record) (bits uint8) {
	if r == nil {
		return 0
	}
	for _, v := range r.Volumes {
		bits |= 1 << (v.Name[1] - '1')
	}
	return bits
}

// wrongStatus: what a status states has to be true when it is written.
func (m *model) wrongStatus(w *world, l *leader, id uint16) string {
	before, after := m.statuses[w.objects[l.remediation].status], m.statuses[id]
	if c := after.Certificate; c != nil && (before.Certificate == nil || before.Certificate.Digest != c.Digest) {
		if before.Intent == nil || c.Intent != before.Intent.Digest || len(c.Proofs) != len(before.Intent.Targets) {
			return "a certificate without the intent that was written before it"
		}
		for _, t := range before.Intent.Targets {
			if l.held&(1<<slices.Index(backends, t.Backend)) == 0 {
				return "a certificate, and " + t.Backend + " did not hold when it was read after the intent"
			}
		}
	}
	if before.Intent != nil {
		for _, t := range before.Intent.Targets {
			if after.Intent == nil || !slices.ContainsFunc(after.Intent.Targets, func(u plan.Target) bool { return u.Backend == t.Backend }) {
				return "a fence that can exist is forgotten"
			}
		}
	}
	if before.Record != nil && volumesOf(before.Record)&^volumesOf(after.Record) != 0 && (after.Record == nil || before.Record.Machines[0] == after.Record.Machines[0]) {
		return "a recorded volume is forgotten"
	}
	if after.Release != nil && before.Release == nil && !w.off {
		if before.Record.Machines[0].BootID == fmt.Sprint("boot-", w.boot) {
			return "a release while the recorded boot runs"
		}
	}
	return ""
}

// wrongTaint: the taint lets other nodes use what the node had.
func (m *model) wrongTaint(w *world, l *leader) string {
	o := w.objects[l.remediation]
	s := m.statuses[o.status]
	switch {
	case o.ended:
		return "a taint of a remediation that has ended"
	case s.Release != nil && w.off: // an administrator has confirmed it meanwhile
		return ""
	case s.Certificate == nil || s.Certificate.Intent != s.Intent.Digest || s.Certificate.Record != s.Record.Digest || s.Intent.Record != s.Record.Digest:
		return "a taint without a certificate of what is recorded"
	case l.volumes&^volumesOf(s.Record) != 0:
		return "a taint, and a volume was not recorded"
	case l.volumes&v3 != 0:
		return "a taint, and a volume has no fence"
	}
	for b, v := range []uint8{v1, v2} {
		if volumesOf(s.Record)&v != 0 && l.held&(1<<b) == 0 {
			return "a taint, and " + backends[b] + " did not hold when it was read last"
		}
	}
	return ""
}

// wrong: what holds in every world.
func (m *model) wrong(w *world) string {
	for b, v := range []uint8{v1, v2} {
		if w.mounted&w.moved&v != 0 && !w.isHeld(b) && !w.lifted[b] {
			return fmt.Sprintf("v%d: two nodes can write", b+1)
		}
	}
	for r, o := range w.objects {
		owner := uint8(r + 1)
		if !o.ended {
			continue
		}
		if w.node.taint == owner || w.node.claimBy == owner && !w.node.claimLeft || w.node.cordonOf == owner && (w.node.claimBy == 0 || w.node.claimLeft) {
			return "an ended remediation has left taint, claim or cordon"
		}
		if !w.late && w.held[0][r]|w.held[1][r] != 0 {
			return "an ended remediation has left a fence"
		}
	}
	return ""
}

// stuck lets one new controller work alone in a world where nothing else
// happens, and returns what it fails to reach.
func (m *model) stuck(w world) string {
	const term, most = 3, 60
	w.elected = true
	for range most {
		before := w
		for r := range w.objects {
			if !w.objects[r].exists {
				continue
			}
			w.leaders[1] = m.decided(&w, m.begin(&w, uint8(r)), term, 0)
			for w.leaders[1].left != 0 {
				bit := w.leaders[1].left & -w.leaders[1].left
				if what, violation := m.act(&w, 1, bit); violation != "" {
					return what() + ": " + violation
				}
				w.leaders[1].left &^= bit
			}
			w.leaders[1] = leader{}
		}
		if w == before {
			return m.unfinished(&w)
		}
	}
	return "the controller never comes to rest"
}

// unfinished is what a controller at rest should have done for the first
// remediation.
func (m *model) unfinished(w *world) string {
	o := w.objects[0]
	s := m.statuses[o.status]
	n := w.node
	if !o.exists || w.late {
		return ""
	}
	rebooted := s.Intent != nil && n.exists && n.machine == 1 && fmt.Sprint("boot-", n.boot) != s.Record.Machines[0].BootID
	confirmed := s.Intent != nil && o.off != 0 && m.statuses[o.off-1].Record.Digest == s.Record.Digest
	switch {
	case s.Release != nil || rebooted || confirmed:
		if w.held[0][0]|w.held[1][0] != 0 || n.taint == 1 || n.claimBy == 1 && !n.claimLeft || o.finalizer {
			return "a node that has returned is not released"
		}
	case o.deleting && s.Intent == nil:
		return "a deleted remediation that fenced nothing is kept"
	case o.deleting || o.timedOut || !n.exists || n.ready || n.machine != 1 || w.foreign || volumesOf(s.Record)&v3 != 0:
	case m.statuses[w.objects[1].status].Intent != nil && s.Intent == nil:
	case n.taint == 0 || s.Certificate == nil || w.pods:
		return "a lost node is not taken over"
	}
	return ""
}

// parts names the parts of a status.
func parts(s plan.Status) string {
	text := fmt.Sprint("status: term ", s.Term)
	if s.Record != nil {
		text += fmt.Sprintf(" record of %d volumes", len(s.Record.Volumes))
	}
	if s.Intent != nil {
		text += fmt.Sprintf(", intent of %d targets", len(s.Intent.Targets))
	}
	if s.Certificate != nil {
		text += ", certificate"
	}
	if s.Release != nil {
		text += ", release"
	}
	return text
}

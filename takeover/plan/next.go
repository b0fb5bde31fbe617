package plan

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Next decides the next step of a takeover. It is a function of the observation
// alone.
func Next(o Observation) Step {
	r, s := o.Remediation, o.Remediation.Status
	switch {
	case !o.Lease.Held || s.Term > o.Lease.Term:
		return Step{Status: s}
	case s.Term < o.Lease.Term:
		s.Term = o.Lease.Term
		return Step{Status: s}
	case r.Paused:
		return o.pause(s, ReasonPaused, "the remediation has the pause annotation: nothing is done until it is removed")
	case s.Release != nil:
		return o.release()
	case s.Intent == nil && r.Deleting: // no fence can exist
		return o.leave()
	}
	if machines, ok := o.returned(); s.Intent != nil && ok {
		s.Release = &Release{Record: s.Record.Digest, Machines: machines, At: o.now()}
		return o.proceed(s, ReasonReleasing, "each recorded machine was rebooted or is off")
	}
	if reason, message := o.brake(); reason != "" {
		return o.pause(s, reason, message)
	}
	return o.takeOver()
}

// takeOver is the way from the finalizer to the deleted pods. Each line demands
// what the lines below rely on.
func (o Observation) takeOver() Step {
	s := o.Remediation.Status
	switch {
	case !o.Remediation.Finalizer:
		return o.proceed(s, ReasonRecording, "", AddFinalizer{})
	case o.isTainted() && s.Certificate != nil:
		return o.evict(s)
	case o.Node != nil && !o.isClaimed():
		return o.proceed(s, ReasonRecording, "", o.claim())
	}
	if record := o.record(); s.Record == nil || record.Digest != s.Record.Digest {
		s.Record, s.Certificate = record, nil
		return o.proceed(s, ReasonRecording, "")
	}
	if reason, message := o.obstacle(); reason != "" {
		return o.block(s, reason, message)
	}
	if s.Intent == nil || s.Intent.Record != s.Record.Digest {
		s.Intent, s.Certificate = o.intent(), nil
		return o.proceed(s, ReasonFencing, "")
	}
	proofs, fences, missing, blocked := o.proofs()
	if len(fences) > 0 {
		s.Certificate = nil
		if len(blocked) > 0 {
			return o.block(s, ReasonOtherFence, strings.Join(blocked, "; "), fences...)
		}
		return o.proceed(s, ReasonFencing, strings.Join(missing, "; "), fences...)
	}
	if s.Certificate == nil {
		s.Certificate = Certificate{Record: s.Record.Digest, Intent: s.Intent.Digest, Proofs: proofs, At: o.now()}.sealed()
		return o.proceed(s, ReasonFenced, "")
	}
	// All of the above was observed again after the certificate was written.
	switch {
	case o.Node == nil:
		return o.pause(s, ReasonNodeMissing, "the Node object was deleted; the fences stay until an administrator confirms that the machine is off")
	case o.Node.OutOfService == nil:
		return o.proceed(s, ReasonFenced, "", TaintNode{TaintValue(o.Remediation.UID)})
	}
	return o.evict(s)
}

// evict deletes the pods of a node that has the taint.
func (o Observation) evict(s Status) Step {
	var pods []Pod
	for _, p := range o.Pods {
		if !p.ToleratesOutOfService {
			pods = append(pods, p)
		}
	}
	if len(pods) > 0 {
		return o.proceed(s, ReasonEvicting, "", DeletePods{pods})
	}
	return o.finish(s, ReasonTakenOver, "the node is fenced and its pods are deleted; the fences stay until each recorded machine was rebooted or is off")
}

// release lifts the fences; when it is proved that none is left, it removes taint,
// cordon and finalizer.
func (o Observation) release() Step {
	s := o.Remediation.Status
	var lifted []string
	var unfence []Action
	var missing, blocked []string
	for _, t := range s.Intent.Targets {
		read, found := o.readBack(t.Backend)
		isLifted := read.Lifted || len(read.Recorded) == 0 && slices.Contains(s.Release.Lifted, t.Backend)
		if isLifted {
			lifted = append(lifted, t.Backend)
		}
		switch {
		case !found:
			missing = append(missing, t.Backend+": not configured any more, so that its fence cannot be lifted")
		case read.Err != "":
			missing = append(missing, t.Backend+": "+read.Err)
			unfence = append(unfence, Unfence(t))
		case isLifted && len(read.Recorded) > 0:
			unfence = append(unfence, Forget(t))
		case isLifted:
		case read.UnfenceBlocked != "":
			blocked = append(blocked, t.Backend+": "+read.UnfenceBlocked)
			unfence = append(unfence, Unfence(t))
		default:
			if read.Missing != "" {
				missing = append(missing, t.Backend+": "+read.Missing)
			}
			unfence = append(unfence, Unfence(t))
		}
	}
	if !slices.Equal(lifted, s.Release.Lifted) {
		release := *s.Release
		release.Lifted, s.Release = lifted, &release
	}
	switch leave, needed := o.leaveNode(); {
	case len(blocked) > 0:
		return o.block(s, ReasonOtherFence, strings.Join(append(blocked, missing...), "; "), unfence...)
	case len(unfence)+len(missing) > 0:
		return o.proceed(s, ReasonReleasing, strings.Join(missing, "; "), unfence...)
	case needed:
		return o.proceed(s, ReasonReleasing, "", leave)
	}
	step := o.finish(s, ReasonReleased, "each recorded machine was rebooted or is off, and no fence of this remediation is left")
	if o.Remediation.Finalizer {
		step.Actions = []Action{RemoveFinalizer{}}
	}
	return step
}

// leave ends a remediation that has fenced nothing.
func (o Observation) leave() Step {
	s := o.Remediation.Status
	if leave, needed := o.leaveNode(); needed {
		return Step{Status: s, Actions: []Action{leave}}
	}
	if o.Remediation.Finalizer {
		return Step{Status: s, Actions: []Action{RemoveFinalizer{}}}
	}
	return Step{Status: s}
}

// isClaimed is true if this leader has written to the Node object: what an
// earlier leader still sends fails there on its resourceVersion.
func (o Observation) isClaimed() bool {
	c := o.Node.Claim
	return c.Remediation == o.Remediation.UID && c.Term == o.Lease.Term && !c.Left && o.Node.Unschedulable
}

// claim keeps the cordon of an administrator as theirs.
func (o Observation) claim() ClaimNode {
	ours := o.Node.Claim.Cordoned || !o.Node.Unschedulable
	return ClaimNode{Claim{Remediation: o.Remediation.UID, Term: o.Lease.Term, Cordoned: ours}}
}

// leaveNode is needed until this leader has written that the remediation left
// the node, unless another remediation has claimed it.
func (o Observation) leaveNode() (leave LeaveNode, needed bool) {
	if o.Node == nil {
		return LeaveNode{}, false
	}
	c := o.Node.Claim
	leave.Claim = Claim{Remediation: o.Remediation.UID, Term: o.Lease.Term, Left: true}
	if c.Remediation == o.Remediation.UID {
		leave.Uncordon = c.Cordoned
	} else if c.Remediation != "" && !c.Left {
		leave.Claim = c
	}
	leave.RemoveTaint = o.isTainted()
	return leave, leave.RemoveTaint || leave.Claim != c
}

// TaintValue is the value of the taint that a remediation sets. Taints with
// other values are not removed.
func TaintValue(uid string) string { return "cleat-" + uid }

func (o Observation) isTainted() bool {
	return o.Node != nil && o.Node.OutOfService != nil && *o.Node.OutOfService == TaintValue(o.Remediation.UID)
}

// proofs compares the read-backs with the intent: proofs of all targets, or the
// fences to ask for again, with what is missing, and what an administrator has to do.
func (o Observation) proofs() (proofs []Proof, fences []Action, missing, blocked []string) {
	intent := o.Remediation.Status.Intent
	for _, t := range intent.Targets {
		read, found := o.readBack(t.Backend)
		if found && read.Err == "" && read.Intent == intent.Digest && contains(read.Held, t.Addresses) {
			proofs = append(proofs, Proof{Backend: t.Backend, Addresses: t.Addresses, Evidence: read.Evidence, At: read.At})
			continue
		}
		fences = append(fences, Fence(t))
		for _, text := range []string{read.Err, read.Missing} {
			if text != "" {
				missing = append(missing, t.Backend+": "+text)
			}
		}
		if read.FenceBlocked != "" {
			blocked = append(blocked, t.Backend+": "+read.FenceBlocked)
		}
	}
	return proofs, fences, missing, blocked
}

func (o Observation) readBack(backend string) (ReadBack, bool) {
	for _, r := range o.ReadBacks {
		if r.Backend == backend {
			return r, true
		}
	}
	return ReadBack{}, false
}

func (o Observation) backend(name string) Backend {
	for _, b := range o.Config.Backends {
		if b.Name == name {
			return b
		}
	}
	return Backend{}
}

// now is a time that JSON keeps, and not before that of the observation.
func (o Observation) now() time.Time {
	return o.Now.UTC().Add(time.Millisecond - 1).Truncate(time.Millisecond)
}

// returned says why each recorded machine cannot write any more; ok is false if
// that is not known of one.
func (o Observation) returned() (machines []Returned, ok bool) {
	record := o.Remediation.Status.Record
	if record == nil {
		return nil, false
	}
	for _, was := range record.Machines {
		now := o.machine(was.Name)
		switch {
		case o.isConfirmed(was.Name):
			machines = append(machines, Returned{Name: was.Name})
		case now.isRebooted(was):
			machines = append(machines, Returned{Name: was.Name, BootID: now.BootID})
		default:
			return nil, false
		}
	}
	return machines, true
}

// isConfirmed: an administrator was shown this very record and says that the machine is
// off.
func (o Observation) isConfirmed(machine string) bool {
	off := o.Remediation.Off
	if off == nil || off.Record != o.Remediation.Status.Record.Digest {
		return false
	}
	for _, name := range off.Machines {
		if name == machine {
			return true
		}
	}
	return false
}

func (o Observation) machine(name string) Machine {
	for _, m := range o.machines() {
		if m.Name == name {
			return m
		}
	}
	return Machine{}
}

// machines are the node first, then its DPUs.
func (o Observation) machines() []Machine {
	if o.Node == nil {
		return o.DPUs
	}
	return append([]Machine{o.Node.Machine}, o.DPUs...)
}

func (m Machine) isKnown() bool { return m.MachineID != "" && m.SystemUUID != "" && m.BootID != "" }

func (m Machine) isSame(other Machine) bool {
	return m.MachineID != "" && m.SystemUUID != "" && m.MachineID == other.MachineID && m.SystemUUID == other.SystemUUID
}

// isRebooted is true for the same machine with another boot.
func (m Machine) isRebooted(was Machine) bool {
	return m.isSame(was) && m.isKnown() && was.isKnown() && m.BootID != was.BootID
}

// rebooted returns a recorded machine that was rebooted.
func (o Observation) rebooted() string {
	if o.Remediation.Status.Record != nil {
		for _, was := range o.Remediation.Status.Record.Machines {
			if o.machine(was.Name).isRebooted(was) {
				return was.Name
			}
		}
	}
	return ""
}

// brake returns why nothing is done for now, and no reason otherwise.
func (o Observation) brake() (reason, message string) {
	r, s := o.Remediation, o.Remediation.Status
	other := o.precedingOther()
	switch {
	case r.Deleting:
		return ReasonAwaitingReturn, "the fences stay until each recorded machine was rebooted, or an administrator confirms that it is off"
	case r.TimedOut:
		return ReasonTimedOut, "NodeHealthCheck has ended this remediation: a fence that exists stays, and no taint is set"
	case s.Intent != nil && o.rebooted() != "": // what its new boot does is not recorded
		return ReasonAwaitingReturn, o.rebooted() + " was rebooted: the fences stay until the other recorded machines were too, or an administrator confirms that they are off"
	case other != "":
		return ReasonOtherRemediation, fmt.Sprintf("remediation %s works for node %s", other, r.Node)
	case o.Node == nil && s.Record == nil:
		return ReasonNodeMissing, fmt.Sprintf("node %s does not exist, so that its machine is not known", r.Node)
	case o.Node == nil:
		return "", ""
	case s.Record != nil && s.Record.Machines[0].isKnown() && !o.Node.Machine.isSame(s.Record.Machines[0]):
		return ReasonNodeReplaced, fmt.Sprintf("node %s is not proved to be the recorded machine: another one has its name, or another Node has the same ids. Confirm that the recorded machine is off", r.Node)
	case o.Node.Ready:
		return ReasonNodeReady, "the node is Ready: nothing is done; a fence that exists stays until the machine is rebooted"
	case o.Node.Excluded && s.Intent == nil:
		return ReasonNodeExcluded, "the node is excluded from remediation"
	case s.Intent == nil && o.inProgress() >= o.Config.MaxConcurrent:
		return ReasonTooMany, fmt.Sprintf("%d takeovers are in progress, the configured maximum", o.Config.MaxConcurrent)
	}
	return "", ""
}

// precedingOther returns the name of the remediation of this node that works
// instead of this one: one that has fenced, else the oldest.
func (o Observation) precedingOther() string {
	r := o.Remediation
	for _, other := range o.Others {
		if other.Node != r.Node || other.Status.Release != nil {
			continue
		}
		fenced, otherFenced := r.Status.Intent != nil, other.Status.Intent != nil
		older := other.Created.Before(r.Created) || other.Created.Equal(r.Created) && other.UID < r.UID
		if otherFenced && !fenced || otherFenced == fenced && older {
			return other.Name
		}
	}
	return ""
}

// inProgress counts the other takeovers that are.
func (o Observation) inProgress() (n int) {
	for _, other := range o.Others {
		if other.Status.IsInProgress() {
			n++
		}
	}
	return n
}

package model

import (
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/takeover/plan"
)

// mutant is a controller with one rule broken: it observes something else, it
// does something else, or it reads and writes in another way.
type mutant struct {
	name     string
	violates string // part of what the model must find

	observe             func(*plan.Observation, observationKey)
	decide              func(*plan.Observation, *plan.Step)
	otherOwners         bool // read-backs are of all owners
	staleNode           bool // the Node object can come from an old cache
	actsFirst           bool // actions do not wait for the status
	unconditionalStatus bool // the status is written without a resourceVersion
	unconditionalNode   bool // the Node object too
	sharedOwner         bool // fences have the owner that administrators use
}

func readBacks(change func(o *plan.Observation, r *plan.ReadBack, k observationKey, backend int)) func(*plan.Observation, observationKey) {
	return func(o *plan.Observation, k observationKey) {
		for b := range o.ReadBacks {
			change(o, &o.ReadBacks[b], k, b)
		}
	}
}

var mutants = []mutant{
	{
		name: "the answer of a backend is not read back", violates: "did not hold when it was read after the intent",
		observe: readBacks(func(o *plan.Observation, r *plan.ReadBack, _ observationKey, _ int) {
			r.Held, r.Err = addresses[:1], ""
		}),
	},
	{
		name: "one backend is enough", violates: "without the intent that was written before it",
		decide: func(o *plan.Observation, next *plan.Step) {
			s := o.Remediation.Status
			if s.Intent == nil || s.Certificate != nil || len(next.Actions) != 1 || len(s.Intent.Targets) < 2 {
				return
			}
			if _, fences := next.Actions[0].(plan.Fence); fences {
				s.Certificate = &plan.Certificate{Record: s.Record.Digest, Intent: s.Intent.Digest, Proofs: []plan.Proof{{}}}
				*next = plan.Step{Status: s}
			}
		},
	},
	{
		name: "fences of other owners count", violates: "did not hold when it was read after the intent",
		otherOwners: true,
		observe: readBacks(func(o *plan.Observation, r *plan.ReadBack, k observationKey, b int) {
			if k.read.anyone[b]&addressA != 0 {
				r.Held, r.Err = addresses[:1], ""
			}
		}),
	},
	{
		name: "a read-back is not repeated before the taint", violates: "did not hold when it was read last",
		observe: readBacks(func(o *plan.Observation, r *plan.ReadBack, _ observationKey, _ int) {
			if o.Remediation.Status.Certificate != nil && o.Remediation.Status.Release == nil {
				r.Held, r.Err = addresses[:1], ""
			}
		}),
	},
	{
		name: "volumes are not read again before the taint", violates: "a volume was not recorded",
		observe: func(o *plan.Observation, _ observationKey) {
			if o.Remediation.Status.Record != nil {
				o.Volumes = o.Remediation.Status.Record.Volumes
			}
		},
	},
	{
		name: "a volume without a rule counts as local", violates: "a volume has no fence",
		observe: func(o *plan.Observation, _ observationKey) {
			o.Config.Coverage = append(slices.Clone(o.Config.Coverage), plan.Rule{Driver: "driver-v3", Local: true})
		},
	},
	{
		name: "volumes that vanish are forgotten", violates: "a recorded volume is forgotten",
		observe: func(o *plan.Observation, _ observationKey) {
			if s := &o.Remediation.Status; s.Record != nil && s.Intent == nil {
				record := *s.Record
				record.Volumes = nil
				s.Record = &record
			}
		},
	},
	{
		name: "the taint does not wait for a certificate", violates: "a taint without a certificate",
		decide: func(o *plan.Observation, next *plan.Step) {
			if s := o.Remediation.Status; s.Certificate == nil && next.Status.Certificate != nil && o.Node != nil {
				*next = plan.Step{Status: s, Actions: []plan.Action{plan.TaintNode{Value: plan.TaintValue(o.Remediation.UID)}}}
			}
		},
	},
	{
		name: "addresses of other nodes are not protected", violates: "an address of a healthy node is fenced",
		observe: func(o *plan.Observation, _ observationKey) { o.Protected = nil },
	},
	{
		name: "a node that is Ready counts as rebooted", violates: "a release while the recorded boot runs",
		observe: func(o *plan.Observation, _ observationKey) {
			if o.Node != nil && o.Node.Ready && o.Remediation.Status.Intent != nil {
				o.Node.Machine.BootID += " again"
			}
		},
	},
	{
		name: "another machine of the same name counts", violates: "a release while the recorded boot runs",
		observe: func(o *plan.Observation, _ observationKey) {
			if o.Node != nil && o.Node.Machine.MachineID == "machine-2" {
				o.Node.Machine.MachineID, o.Node.Machine.BootID = "machine-1", "boot-of-2"
			}
		},
	},
	{
		name: "a deleted Node object lifts the fence", violates: "a release while the recorded boot runs",
		decide: func(o *plan.Observation, next *plan.Step) { releaseIf(o, next, o.Node == nil) },
	},
	{
		name: "a deleted remediation lifts the fence", violates: "a release while the recorded boot runs",
		decide: func(o *plan.Observation, next *plan.Step) { releaseIf(o, next, o.Remediation.Deleting) },
	},
	{
		name: "NodeHealthCheck's end lifts the fence", violates: "a release while the recorded boot runs",
		decide: func(o *plan.Observation, next *plan.Step) { releaseIf(o, next, o.Remediation.TimedOut) },
	},
	{
		name: "a deleted remediation is left at once", violates: "an ended remediation has left a fence",
		decide: func(o *plan.Observation, next *plan.Step) {
			if o.Remediation.Deleting && o.Remediation.Finalizer && o.Node == nil {
				*next = plan.Step{Status: o.Remediation.Status, Actions: []plan.Action{plan.RemoveFinalizer{}}}
			}
		},
	},
	{
		name: "fences are lifted before the release is written", violates: "a fence is lifted without a release",
		decide: func(o *plan.Observation, next *plan.Step) {
			if o.Remediation.Status.Release == nil && next.Status.Release != nil {
				for _, t := range next.Status.Intent.Targets {
					next.Actions = append(next.Actions, plan.Unfence(t))
				}
				next.Status = o.Remediation.Status
			}
		},
	},
	{
		name: "the taint is removed, with any owner", violates: "a taint of another owner is removed",
		decide: func(o *plan.Observation, next *plan.Step) {
			for i, a := range next.Actions {
				if leave, ok := a.(plan.LeaveNode); ok {
					leave.RemoveTaint = o.Node.OutOfService != nil
					next.Actions[i] = leave
				}
			}
		},
	},
	{
		name: "the cordon is removed, with any owner", violates: "an administrator's cordon is removed",
		decide: func(o *plan.Observation, next *plan.Step) {
			for i, a := range next.Actions {
				if leave, ok := a.(plan.LeaveNode); ok {
					leave.Uncordon = true
					next.Actions[i] = leave
				}
			}
		},
	},
	{name: "all fences have one owner", violates: "an administrator's fence is lifted", sharedOwner: true},
	{name: "the Node object comes from an old cache", violates: "a release while the recorded boot runs", staleNode: true},
	{name: "actions do not wait for the status", violates: "a fence without an intent", actsFirst: true, decide: func(o *plan.Observation, next *plan.Step) {
		if s := next.Status; o.Remediation.Status.Intent == nil && s.Intent != nil {
			for _, t := range s.Intent.Targets {
				next.Actions = append(next.Actions, plan.Fence(t))
			}
		}
	}},
	{name: "the status is written without a resourceVersion", violates: "a recorded volume is forgotten", unconditionalStatus: true},
	{name: "the Node object is written without a resourceVersion", violates: "a taint without a certificate", unconditionalNode: true},
	{
		name: "a leader does not write its term to the status", violates: "a taint without a certificate",
		observe: func(o *plan.Observation, _ observationKey) {
			o.Remediation.Status.Term = o.Lease.Term
		},
	},
	{
		name: "a leader does not claim the node again", violates: "a taint without a certificate",
		observe: func(o *plan.Observation, _ observationKey) {
			if o.Node != nil && o.Node.Claim.Remediation == o.Remediation.UID {
				o.Node.Claim.Term = o.Lease.Term
			}
		},
	},
}

// releaseIf writes a release without a reason.
func releaseIf(o *plan.Observation, next *plan.Step, is bool) {
	if s := o.Remediation.Status; is && s.Intent != nil && s.Release == nil && next.Status.Release == nil {
		s.Release = &plan.Release{Record: s.Record.Digest, Machines: []plan.Returned{}}
		*next = plan.Step{Status: s}
	}
}

// TestMutants: the model finds each broken rule, so that it can find it in Next
// and in the controller.
func TestMutants(t *testing.T) {
	for _, broken := range mutants {
		t.Run(broken.name, func(t *testing.T) {
			var found explored
			for n := uint8(1); n <= modelEvents() && found.violation == ""; n++ {
				found = newModel(broken).explore(starts(n), false)
			}
			if !strings.Contains(found.violation, broken.violates) || found.violation == "" {
				t.Errorf("in %d worlds the model finds %q, and not %q:\n%s", found.worlds, found.violation, broken.violates, found.way)
			}
		})
	}
}

package plan

import (
	"slices"
)

// Reasons of conditions; docs/takeover.md explains each.
const (
	ReasonPaused           = "Paused"
	ReasonAwaitingReturn   = "AwaitingReturn"
	ReasonTimedOut         = "TimedOut"
	ReasonOtherRemediation = "OtherRemediation"
	ReasonNodeMissing      = "NodeMissing"
	ReasonNodeReplaced     = "NodeReplaced"
	ReasonNodeReady        = "NodeReady"
	ReasonNodeExcluded     = "NodeExcluded"
	ReasonTooMany          = "TooManyTakeovers"
	ReasonRecording        = "Recording"
	ReasonFencing          = "Fencing"
	ReasonFenced           = "Fenced"
	ReasonEvicting         = "Evicting"
	ReasonTakenOver        = "TakenOver"
	ReasonReleasing        = "Releasing"
	ReasonReleased         = "Released"
	ReasonOtherFence       = "OtherFence" // Blocked too

	// Of condition Blocked.
	ReasonSourceUnavailable   = "SourceUnavailable"
	ReasonMachineUnknown      = "MachineUnknown"
	ReasonDriverNotConfigured = "DriverNotConfigured"
	ReasonVolumeUnknown       = "VolumeUnknown"
	ReasonNFSVolume           = "NFSVolume"
	ReasonInlineVolume        = "InlineVolume"
	ReasonHostPathVolume      = "HostPathVolume"
	ReasonNoVolumeAttachment  = "NoVolumeAttachment"
	ReasonNoFenceService      = "NoFenceService"
	ReasonTargetOnNode        = "TargetOnNode"
	ReasonNoClientRecord      = "NoClientRecord"
	ReasonAddressRejected     = "AddressRejected"
	ReasonAddressProtected    = "AddressProtected"
)

// outcome is the status of the conditions Processing, Blocked and Succeeded. An
// empty Succeeded keeps what it was, Unknown at first.
type outcome struct{ processing, blocked, succeeded string }

// proceed is the step of a takeover or release that goes on.
func (o Observation) proceed(s Status, reason, message string, actions ...Action) Step {
	return Step{o.with(s, outcome{"True", "False", ""}, reason, message), actions}
}

// block: an administrator has to do something; actions do what is possible before.
func (o Observation) block(s Status, reason, message string, actions ...Action) Step {
	return Step{o.with(s, outcome{"True", "True", ""}, reason, message), actions}
}

// pause: nothing is done for now.
func (o Observation) pause(s Status, reason, message string) Step {
	out := outcome{"False", "False", ""}
	if reason == ReasonTimedOut && !s.is(Succeeded) {
		out.succeeded = "False"
	}
	return Step{Status: o.with(s, out, reason, message)}
}

// finish: taken over or released.
func (o Observation) finish(s Status, reason, message string) Step {
	return Step{Status: o.with(s, outcome{"False", "False", "True"}, reason, message)}
}

func (o Observation) with(s Status, out outcome, reason, message string) Status {
	s.Conditions = slices.Clone(s.Conditions)
	s.set(o, Condition{Type: Processing, Status: out.processing, Reason: reason, Message: message})
	s.set(o, Condition{Type: Blocked, Status: out.blocked, Reason: reason, Message: message})
	if out.succeeded == "" && s.condition(Succeeded) == nil {
		out.succeeded = "Unknown"
	}
	if out.succeeded != "" {
		s.set(o, Condition{Type: Succeeded, Status: out.succeeded, Reason: reason, Message: message})
	}
	s.set(o, Condition{Type: NodeDeletionExpected, Status: "False", Reason: "NeverDeleted", Message: "the Node object is kept"})
	return s
}

// set keeps the time of a condition whose status stays.
func (s *Status) set(o Observation, c Condition) {
	c.LastTransitionTime = o.now()
	old := s.condition(c.Type)
	if old == nil {
		s.Conditions = append(s.Conditions, c)
		return
	}
	if old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	*old = c
}

func (s *Status) condition(kind string) *Condition {
	for i := range s.Conditions {
		if s.Conditions[i].Type == kind {
			return &s.Conditions[i]
		}
	}
	return nil
}

func (s *Status) is(kind string) bool {
	c := s.condition(kind)
	return c != nil && c.Status == "True"
}

// IsInProgress: it fences, and has not succeeded. maxConcurrent counts these.
func (s Status) IsInProgress() bool { return s.Intent != nil && s.Release == nil && !s.is(Succeeded) }

// IsQueued: it waits for other takeovers.
func (s Status) IsQueued() bool {
	c := s.condition(Processing)
	return c != nil && c.Reason == ReasonTooMany
}

// IsResting: nothing is done until something else changes.
func (s Status) IsResting() bool {
	c := s.condition(Processing)
	return c != nil && c.Status == "False"
}

package inventory

import (
	"cmp"
	"slices"
)

// Explanation explains the decision about one device.
type Explanation struct {
	Device
	LeftOut  string // why it is excluded from all pools
	Resource string // full name of the (first) resource that has it; "" for none
	Held     bool
	Wrong    string    // see Member
	Verdicts []Verdict // by selector, in the order of precedence
}

// Outcome is the result of a selector for a device.
type Outcome string

const (
	Taken   Outcome = "taken"
	Late    Outcome = "late" // an earlier selector took it
	Refused Outcome = "refused"
	// For a device that a pod holds:
	Kept     Outcome = "kept"     // of this resource; filters are not applied
	Withheld Outcome = "withheld" // of another resource
)

// DeviceTypeFilter is the Filter if the device type differs.
const DeviceTypeFilter = "deviceType"

// Verdict is a selector's result for a device.
type Verdict struct {
	Resource string   `json:"resource"`
	Index    int      `json:"index"`    // of the resource in resourceList
	Selector int      `json:"selector"` // in Resource.Selectors
	Outcome  Outcome  `json:"outcome"`
	Filter   string   `json:"filter,omitempty"` // the first filter that refused
	Wanted   []string `json:"wanted,omitempty"` // any of these, as in config.json
	Found    string   `json:"found,omitempty"`  // the device's value
}

// Passed returns the number of filters that the device passed.
func (v Verdict) Passed() int {
	all := allFilters(Selector{})
	if v.Outcome != Refused {
		return len(all) + 1
	}
	return slices.IndexFunc(all, func(f filter) bool { return f.key == v.Filter }) + 1 // 0 for DeviceTypeFilter
}

// Explain reports for each device of a snapshot, by type and id, how Assign
// decides.
func Explain(c Config, s *Snapshot, o AssignOptions) []Explanation {
	sels, all := prepareCandidates(c, s, o)
	explanations := make([]Explanation, 0, len(all))
	for i := range all {
		explanations = append(explanations, explain(c, sels, &all[i]))
	}
	return explanations
}

func explain(c Config, sels []preparedSelector, d *candidate) Explanation {
	e := Explanation{Device: d.Device, LeftOut: d.leftOut, Held: d.held, Wrong: d.wrong}
	if d.leftOut != "" {
		return e
	}
	for i := range sels {
		sel := &sels[i]
		r := c.Resources[sel.resource]
		v := Verdict{Resource: r.FullName(), Index: r.Index, Selector: sel.index}
		var refused *filter
		if sel.kind == d.kind {
			refused = sel.refusal(d)
		}
		switch {
		case slices.Contains(d.kept, i):
			v.Outcome, e.Resource = Kept, cmp.Or(e.Resource, r.FullName())
		case sel.kind != d.kind:
			v.Outcome, v.Filter, v.Wanted, v.Found = Refused, DeviceTypeFilter, []string{string(sel.kind)}, string(d.kind)
		case refused != nil:
			v.Outcome, v.Filter, v.Wanted, v.Found = Refused, refused.key, refused.wanted, refused.found(d)
		case e.Held:
			v.Outcome = Withheld
		case e.Resource != "":
			v.Outcome = Late
		default:
			v.Outcome, e.Resource, e.Wrong = Taken, r.FullName(), sel.unhealthy(d)
		}
		e.Verdicts = append(e.Verdicts, v)
	}
	return e
}

package plugin

import (
	"cmp"
	"time"

	"github.com/cleatproject/cleat/sriov/gate"
)

// Document is the plugin's JSON status.
type Document struct {
	State      gate.State         `json:"state"`
	Control    gate.HolderState   `json:"control"`
	Generation int64              `json:"generation,omitempty"`
	UID        string             `json:"uid,omitempty"`
	Node       string             `json:"node,omitempty"`
	ConfigHash string             `json:"configHash"`
	LeaseEnds  time.Time          `json:"leaseEnds,omitzero"`
	HoldEnds   time.Time          `json:"holdEnds,omitzero"`
	Closed     gate.Closed        `json:"closed,omitempty"`    // reason by PCI address
	Withdrawn  bool               `json:"withdrawn,omitempty"` // the devices of Closed
	Error      string             `json:"error,omitempty"`
	Troubles   string             `json:"troubles,omitempty"` // outside the gate, such as an invalid configuration
	Scanned    time.Time          `json:"scanned,omitzero"`
	ScanTook   string             `json:"scanTook,omitempty"`
	Warnings   []string           `json:"warnings,omitempty"`
	Resources  []ResourceDocument `json:"resources"`
}

// ResourceDocument is a resource's part.
type ResourceDocument struct {
	Name       string           `json:"name"`
	Phase      gate.Phase       `json:"phase"`
	Devices    int              `json:"devices"`
	Offered    int              `json:"offered"`
	Allocating int              `json:"allocating"`
	Listening  bool             `json:"kubeletListening"`
	Error      string           `json:"error,omitempty"`
	Members    []MemberDocument `json:"members"`
}

// MemberDocument is a device's part.
type MemberDocument struct {
	ID    string `json:"id"`
	Held  bool   `json:"held,omitempty"`
	Wrong string `json:"wrong,omitempty"`
}

// Document returns the plugin's status.
func (p *Plugin) Document() Document {
	s := p.Status()
	d := Document{
		State: s.State, Control: s.Holding, Generation: s.Generation, UID: s.UID, Node: s.Node, ConfigHash: s.Hash,
		LeaseEnds: s.LeaseEnds, HoldEnds: s.HoldEnds, Closed: s.Closed, Withdrawn: s.Withdrawn, Error: s.Error, Resources: []ResourceDocument{},
	}
	if err := p.problems.err(); err != nil {
		d.Troubles = err.Error()
	}
	f, l := p.found.Load(), p.loaded.Load()
	for _, w := range l.warnings {
		d.Warnings = append(d.Warnings, w.String())
	}
	if f != nil {
		d.Scanned, d.ScanTook = f.at, f.took.String()
		for _, w := range f.assignment.Warnings {
			d.Warnings = append(d.Warnings, w.String())
		}
	}
	for _, name := range l.names() {
		r := s.Resources[name]
		x := ResourceDocument{
			Name: name, Phase: r.Phase, Devices: r.Devices, Offered: r.Offered, Allocating: r.Allocating,
			Listening: r.Streaming, Error: r.Error, Members: []MemberDocument{},
		}
		if f != nil && f.offers[name] != nil {
			for _, m := range f.offers[name].pool.Members {
				x.Members = append(x.Members, MemberDocument{ID: m.ID, Held: m.Held, Wrong: cmp.Or(m.Wrong, s.Closed.Reason(gateDevice(m)))})
			}
		}
		d.Resources = append(d.Resources, x)
	}
	return d
}

package client

import (
	"cmp"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Volume is a volume as the driver and the memory together know it.
type Volume struct {
	ID string `json:"id,omitempty"`
	// Name is the one that it was created with, also of a foreign volume of
	// cleat's own driver; of other foreign ones it is the id.
	Name   string `json:"name"`
	Driver string `json:"driver"`
	// State is ready, creating or deleting (a call was cut off: repeat it),
	// foreign (the driver has it, this memory does not), or missing (the
	// other way round).
	State      string              `json:"state"`
	Size       int64               `json:"sizeBytes,omitempty"`
	Capability Capability          `json:"capability"`
	Parameters map[string]string   `json:"parameters,omitempty"`
	Mutable    map[string]string   `json:"mutableParameters,omitempty"`
	Source     Source              `json:"source,omitzero"`
	Context    map[string]string   `json:"volumeContext,omitempty"`
	Topology   []map[string]string `json:"topology,omitempty"`
	Created    time.Time           `json:"created,omitzero"`
	// Nodes are where the driver says that it is published.
	Nodes []string `json:"publishedNodes,omitempty"`
	// Targets are where it is attached on this machine.
	Targets []Target `json:"targets,omitempty"`
	Staging string   `json:"stagingPath,omitempty"`
	// Conditions are what is wrong with it, where the driver tells.
	Conditions []volume.Condition `json:"conditions,omitempty"`
}

// States of a Volume besides those of a record's phase.
const (
	StateForeign = "foreign"
	StateMissing = "missing"
)

// Target is a place where a volume is attached.
type Target struct {
	Path     string `json:"path"`
	ReadOnly bool   `json:"readOnly,omitempty"`
	// Published is false while an attach was begun and did not end.
	Published bool `json:"published"`
}

func (r volumeRecord) public() Volume {
	v := Volume{
		ID: r.ID, Name: r.Name, Driver: r.Driver, State: string(r.Phase), Size: r.Capacity, Capability: r.Capability,
		Parameters: r.Parameters, Mutable: r.Mutable, Source: r.Source, Context: r.Context, Topology: r.Topology, Created: r.Created,
	}
	if r.Phase == StateForeign {
		v.Name = cmp.Or(r.Context[access.KeyName], r.Name)
	}
	if r.Attachment != nil {
		v.Staging = r.Attachment.Staging
		for _, t := range r.Attachment.Targets {
			v.Targets = append(v.Targets, Target{Path: t.Path, ReadOnly: t.ReadOnly, Published: t.Published})
		}
	}
	return v
}

// foreign is the record of a volume that only the driver knows.
func (d *Driver) foreign(v *csi.Volume) volumeRecord {
	return volumeRecord{
		labels: labels{Driver: d.info.Name, Name: v.GetVolumeId(), ID: v.GetVolumeId()},
		Phase:  StateForeign, Capacity: v.GetCapacityBytes(), Created: volume.IDTime(v.GetVolumeId()),
		Context: v.GetVolumeContext(), Source: sourceOf(v.GetContentSource()), Topology: segments(v.GetAccessibleTopology()),
	}
}

// refresh takes over what the driver tells about a volume now.
func (v *Volume) refresh(now *csi.Volume, nodes []string) {
	if now.GetCapacityBytes() > 0 {
		v.Size = now.GetCapacityBytes()
	}
	if source := sourceOf(now.GetContentSource()); source != (Source{}) {
		v.Source = source
	}
	if len(now.GetVolumeContext()) > 0 {
		v.Context = now.GetVolumeContext()
	}
	v.Nodes = nodes
}

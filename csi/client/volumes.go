package client

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Volume combines the driver's report and the record.
type Volume struct {
	Object
	Size       int64               `json:"sizeBytes,omitempty"`
	Capability Capability          `json:"capability"`
	Parameters map[string]string   `json:"parameters,omitempty"`
	Mutable    map[string]string   `json:"mutableParameters,omitempty"`
	Source     Source              `json:"source,omitzero"`
	Context    map[string]string   `json:"volumeContext,omitempty"`
	Topology   []map[string]string `json:"topology,omitempty"`
	Created    time.Time           `json:"created,omitzero"`
	// from the driver
	Nodes []string `json:"publishedNodes,omitempty"`
	// on this machine
	Targets []Target `json:"targets,omitempty"`
	Staging string   `json:"stagingPath,omitempty"`
	// from the driver
	Conditions []volume.Condition `json:"conditions,omitempty"`
}

// volumeRecord is the file of a volume that was created here, or is foreign and
// has to grow.
type volumeRecord struct {
	Volume
	Requested volume.SizeRange `json:"requested"`
	SourceRef string           `json:"sourceRef,omitempty"` // of the request
	// size for a pending NodeExpandVolume
	Grow int64 `json:"grow,omitempty"`
	// Foreign: not created here, also while it is deleted.
	Foreign bool `json:"foreign,omitempty"`

	attachment *attachment // in its own file
}

// id keeps the record of a foreign volume apart from that of an own volume with
// the same name.
func (n *volumeRecord) id() (driver, key string) {
	if n.Foreign {
		return n.Driver, n.ID
	}
	return n.Object.id()
}

// save drops a record that is not needed any more.
func (d *Driver) save(n *volumeRecord) error {
	if n.State == StateForeign && n.Grow == 0 {
		return d.state.drop(n)
	}
	return d.state.put(n)
}

// CreateRequest is the request of Create.
type CreateRequest struct {
	// The same name gives the same volume.
	Name string
	Size volume.SizeRange
	// nil: as the source, or a mounted directory with the driver's default file
	// system
	Capability *Capability
	// of the driver; Modify can change Mutable
	Parameters, Mutable map[string]string
	// the source by name or id; at most one
	FromVolume, FromSnapshot string
}

// Create creates a volume. It is idempotent.
func (d *Driver) Create(ctx context.Context, req CreateRequest) (Volume, error) {
	n, err := d.planCreate(ctx, req)
	if err != nil {
		return Volume{}, err
	}
	err = createObject(ctx, d, n, func(old *volumeRecord, known bool) error {
		if err := d.createVolume(ctx, n); err != nil {
			return err
		}
		if known && old.State == StateReady && old.ID == n.ID {
			old.Size, old.Context = n.Size, n.Context
			n = old
		}
		return d.save(n)
	})
	if err != nil {
		return Volume{}, err
	}
	return n.view(), nil
}

func (d *Driver) planCreate(ctx context.Context, req CreateRequest) (*volumeRecord, error) {
	if err := d.need("create volumes", csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME); err != nil {
		return nil, err
	}
	if req.Name == "" {
		return nil, errs.Errorf(errs.Invalid, "a volume needs a name")
	}
	if req.FromVolume != "" && req.FromSnapshot != "" {
		return nil, errs.Errorf(errs.Invalid, "a volume is copied from a volume or from a snapshot, not from both")
	}
	if len(req.Mutable) > 0 {
		if err := d.need("set parameters that can be changed later", csi.ControllerServiceCapability_RPC_MODIFY_VOLUME); err != nil {
			return nil, err
		}
	}
	n := &volumeRecord{
		Volume: Volume{
			Object:     Object{Driver: d.info.Name, Name: req.Name, State: StateCreating},
			Parameters: req.Parameters, Mutable: req.Mutable, Created: time.Now().UTC().Truncate(time.Millisecond),
		},
		Requested: req.Size, SourceRef: req.FromVolume + req.FromSnapshot,
	}
	size, err := d.source(ctx, req, n)
	old, known, readErr := stored(d.state, n)
	isRepeat := readErr == nil && known && old.SourceRef == n.SourceRef
	if isRepeat && (errors.Is(err, errs.NotFound) || errors.Is(err, errNoLookup)) { // an existing copy does not need its source
		n.Source, n.Capability, err = old.Source, old.Capability, nil
	}
	if err != nil {
		return nil, err
	}
	switch {
	case req.Size != volume.SizeRange{}:
	case isRepeat: // the source can have grown
		n.Requested = old.Requested
	default:
		n.Requested.Required = size
	}
	if req.Capability != nil {
		n.Capability = *req.Capability
	}
	return n, d.needCapability(n.Capability)
}

// source sets the source of a copy and its capability, and returns the size, 0 if
// it is not known: Kubernetes requests a size too, and some drivers require one.
func (d *Driver) source(ctx context.Context, req CreateRequest, n *volumeRecord) (size int64, err error) {
	switch {
	case req.FromVolume != "":
		if err := d.need("clone volumes", csi.ControllerServiceCapability_RPC_CLONE_VOLUME); err != nil {
			return 0, err
		}
		v, err := usable(d.findVolume(ctx, req.FromVolume))
		if err != nil {
			return 0, err
		}
		n.Source, n.Capability = Source{Volume: v.ID}, v.Capability
		return v.Size, nil
	case req.FromSnapshot != "":
		if err := d.need("restore snapshots", csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT); err != nil {
			return 0, err
		}
		s, err := usable(d.findSnapshot(ctx, req.FromSnapshot))
		if err != nil {
			return 0, err
		}
		n.Source, n.Capability = Source{Snapshot: s.ID}, s.Capability
		return s.Size, nil
	}
	return 0, nil
}

func (d *Driver) createVolume(ctx context.Context, n *volumeRecord) error {
	answer, err := d.controller.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: n.Name, CapacityRange: capacityRange(n.Requested), Parameters: n.Parameters, MutableParameters: n.Mutable,
		VolumeCapabilities: []*csi.VolumeCapability{n.Capability.message()}, VolumeContentSource: n.Source.message(),
		AccessibilityRequirements: d.topologyRequirement(), Secrets: d.config.Secrets,
	})
	if err != nil {
		return err
	}
	v := answer.GetVolume()
	if v.GetVolumeId() == "" {
		return errs.Errorf(errs.Internal, "driver %s created volume %q without an id", d.info.Name, n.Name)
	}
	n.ID, n.State, n.Context = v.GetVolumeId(), StateReady, v.GetVolumeContext()
	n.Topology, n.Size = segments(v.GetAccessibleTopology()), v.GetCapacityBytes()
	if n.Size == 0 { // the driver does not know
		n.Size = n.Requested.Required
	}
	return nil
}

// Delete deletes a volume. NotFound: neither the driver nor a record has it.
// Unsupported: no record has it, and the driver does not report whether it does. A
// repeat of an interrupted Delete succeeds.
func (d *Driver) Delete(ctx context.Context, ref string) error {
	if err := d.need("delete volumes", csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME); err != nil {
		return err
	}
	return locked(ctx, d, d.findVolume, ref, func(n *volumeRecord) error {
		switch {
		case n.Foreign && ref != n.ID: // known by its name after an interrupted call
			return d.foreignError(ref, n)
		case n.attachment != nil:
			return errs.Errorf(errs.Precondition, "volume %s is attached at %s; detach it first", n.Name, n.attachment.targetPaths())
		}
		return deleteObject(d, n, func() error { return d.createVolume(ctx, n) }, func() error {
			_, err := d.controller.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: n.ID, Secrets: d.config.Secrets})
			return err
		})
	})
}

// Modify changes parameters; omitted keys keep their values.
func (d *Driver) Modify(ctx context.Context, ref string, mutable map[string]string) (out Volume, err error) {
	if err := d.need("change parameters of a volume", csi.ControllerServiceCapability_RPC_MODIFY_VOLUME); err != nil {
		return Volume{}, err
	}
	err = locked(ctx, d, d.findVolume, ref, func(n *volumeRecord) error {
		if _, err := usable(n, nil); err != nil {
			return err
		}
		_, err := d.controller.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{
			VolumeId: n.ID, MutableParameters: mutable, Secrets: d.config.Secrets,
		})
		if err != nil {
			return err
		}
		if n.Mutable == nil {
			n.Mutable = map[string]string{}
		}
		maps.Copy(n.Mutable, mutable)
		out = n.view()
		return d.save(n)
	})
	return out, err
}

// Expand grows a volume at the controller, then, if the driver requests it, on
// the node, or there at the next attach.
func (d *Driver) Expand(ctx context.Context, ref string, size volume.SizeRange) (out Volume, err error) {
	onController, onNode := d.announced[csi.ControllerServiceCapability_RPC_EXPAND_VOLUME], d.announced[csi.NodeServiceCapability_RPC_EXPAND_VOLUME]
	if !onNode {
		if err := d.need("expand volumes", csi.ControllerServiceCapability_RPC_EXPAND_VOLUME); err != nil {
			return Volume{}, err
		}
	}
	if size.Required <= 0 {
		return Volume{}, errs.Errorf(errs.Invalid, "size %d bytes is not possible; give a size above 0", size.Required)
	}
	err = locked(ctx, d, d.findVolume, ref, func(n *volumeRecord) error {
		if err := d.checkExpand(n, onController); err != nil {
			return err
		}
		n.Grow = 0
		if onNode {
			n.Grow = size.Required
		}
		if onController {
			if err := d.controllerExpand(ctx, n, size); err != nil {
				return err
			}
		}
		if err := d.save(n); err != nil { // a crash must not lose the second step
			return err
		}
		if n.Grow > 0 && n.attachment != nil {
			if err := d.nodeExpand(ctx, n, size.Limit); err != nil {
				return err
			}
		}
		out = n.view()
		return d.save(n)
	})
	return out, err
}

// checkExpand refuses what the driver cannot do in the volume's present state.
func (d *Driver) checkExpand(n *volumeRecord, onController bool) error {
	if _, err := usable(n, nil); err != nil {
		return err
	}
	attached := n.attachment != nil
	switch {
	case attached && d.announced[csi.PluginCapability_VolumeExpansion_OFFLINE] && !d.announced[csi.PluginCapability_VolumeExpansion_ONLINE]:
		return errs.Errorf(errs.Precondition, "driver %s expands volumes only while they are detached (VolumeExpansion OFFLINE), and %s is attached at %s; detach it first",
			d.info.Name, n.Name, n.attachment.targetPaths())
	case !attached && !onController:
		return errs.Errorf(errs.Precondition, "driver %s expands volumes only on the node, and %s is not attached; attach it first", d.info.Name, n.Name)
	}
	return nil
}

func (d *Driver) controllerExpand(ctx context.Context, n *volumeRecord, size volume.SizeRange) error {
	capability := n.Capability
	if n.attachment != nil {
		capability = n.attachment.Capability
	}
	answer, err := d.controller.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: n.ID, CapacityRange: capacityRange(size), VolumeCapability: capability.message(), Secrets: d.config.Secrets,
	})
	if err != nil {
		return err
	}
	grown := size.Required
	if answer.GetCapacityBytes() > 0 {
		grown = answer.GetCapacityBytes()
	}
	n.Size = max(n.Size, grown)
	if n.Grow > 0 {
		n.Grow = grown
	}
	if !answer.GetNodeExpansionRequired() {
		n.Grow = 0
	}
	return nil
}

// nodeExpand makes an attached volume use its size. The caller saves the
// record.
func (d *Driver) nodeExpand(ctx context.Context, n *volumeRecord, limit int64) error {
	a := n.attachment
	path := a.Staging
	for _, t := range a.Targets {
		if t.Published {
			path = t.Path
		}
	}
	answer, err := d.node.NodeExpandVolume(ctx, &csi.NodeExpandVolumeRequest{
		VolumeId: n.ID, VolumePath: path, StagingTargetPath: a.Staging, VolumeCapability: a.Capability.message(),
		CapacityRange: capacityRange(volume.SizeRange{Required: n.Grow, Limit: limit}), Secrets: d.config.Secrets,
	})
	if err != nil {
		return err
	}
	n.Grow = 0
	n.Size = max(n.Size, answer.GetCapacityBytes())
	return nil
}

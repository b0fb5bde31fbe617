package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// CreateRequest asks for a volume.
type CreateRequest struct {
	// Name is the orchestrator's: the same name gives the same volume.
	Name string
	Size volume.SizeRange
	// Capability is how it is meant to be used; nil is as its source, or a
	// mounted directory with the driver's own file system.
	Capability *Capability
	// Parameters are the driver's own; Mutable are those that Modify may
	// change later.
	Parameters, Mutable map[string]string
	// FromVolume and FromSnapshot name what to copy, by name or id; at most one.
	FromVolume, FromSnapshot string
}

func (r CreateRequest) sourceRef() string { return r.FromVolume + r.FromSnapshot }

// volumeRecord is all that is remembered of a volume.
type volumeRecord struct {
	labels
	Phase      phase               `json:"phase"`
	Size       volume.SizeRange    `json:"size"` // as it was asked for
	Capacity   int64               `json:"capacity,omitempty"`
	Capability Capability          `json:"capability"`
	Parameters map[string]string   `json:"parameters,omitempty"`
	Mutable    map[string]string   `json:"mutable,omitempty"`
	Source     Source              `json:"source,omitzero"`
	SourceRef  string              `json:"sourceRef,omitempty"` // as the request named it
	Context    map[string]string   `json:"context,omitempty"`
	Topology   []map[string]string `json:"topology,omitempty"`
	Created    time.Time           `json:"created"`
	Attachment *attachment         `json:"attachment,omitempty"`
	// Grow is the size that the node must still be told, in bytes.
	Grow int64 `json:"grow,omitempty"`
}

func (d *Driver) volumes() shelf[volumeRecord] {
	return shelf[volumeRecord]{d.memory, store.Bucket[volumeRecord]{Name: "volumes"}}
}

// Create makes a volume, or returns the one that the same request made.
func (d *Driver) Create(ctx context.Context, req CreateRequest) (Volume, error) {
	record, err := d.plan(ctx, req)
	if err != nil {
		return Volume{}, err
	}
	unlock, err := d.memory.lock(ctx, record.key())
	if err != nil {
		return Volume{}, err
	}
	defer unlock()
	old, known, err := d.volumes().find(ctx, d.info.Name, req.Name)
	if err != nil {
		return Volume{}, err
	}
	if known && old.Phase == deleting {
		return Volume{}, errs.Errorf(errs.Precondition, "volume %q is being deleted; delete it again to finish that, then create it again", req.Name)
	}
	if !known {
		if err := d.volumes().put(ctx, record); err != nil {
			return Volume{}, err
		}
	}
	made, err := d.make(ctx, record)
	if err != nil {
		if !known && isFinal(err) {
			d.forget(ctx, record)
		}
		return Volume{}, err
	}
	if known && old.Phase == ready && old.ID == made.ID {
		old.Capacity, old.Context = made.Capacity, made.Context
		made = old
	}
	if err := d.volumes().keep(ctx, made); err != nil {
		return Volume{}, err
	}
	return made.public(), nil
}

// forget drops a record after a refusal. That it stays when even this fails is
// no harm: the next create or delete of the name goes on from it.
func (d *Driver) forget(ctx context.Context, record volumeRecord) {
	if err := d.volumes().drop(ctx, record); err != nil {
		d.config.Notice(fmt.Sprintf("the memory of volume %q stays: %v", record.Name, err))
	}
}

// plan checks a request against what the driver can do and makes the record
// that says what is about to happen.
func (d *Driver) plan(ctx context.Context, req CreateRequest) (volumeRecord, error) {
	var none volumeRecord
	if err := d.needController("create volumes", csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME); err != nil {
		return none, err
	}
	if req.Name == "" {
		return none, errs.Errorf(errs.Invalid, "a volume needs a name")
	}
	if req.FromVolume != "" && req.FromSnapshot != "" {
		return none, errs.Errorf(errs.Invalid, "a volume is copied from a volume or from a snapshot, not from both")
	}
	if len(req.Mutable) > 0 {
		if err := d.needController("set parameters that can be changed later", csi.ControllerServiceCapability_RPC_MODIFY_VOLUME); err != nil {
			return none, err
		}
	}
	source, inherited, err := d.source(ctx, req)
	if errors.Is(err, errs.NotFound) { // the copy may be made already, its source need not be there for ever
		old, known, findErr := d.volumes().find(ctx, d.info.Name, req.Name)
		if findErr == nil && known && old.SourceRef == req.sourceRef() {
			source, inherited, err = old.Source, old.Capability, nil
		}
	}
	if err != nil {
		return none, err
	}
	record := volumeRecord{
		labels: labels{Driver: d.info.Name, Name: req.Name}, Phase: creating, Size: req.Size, Capability: inherited,
		Parameters: req.Parameters, Mutable: req.Mutable, Source: source, SourceRef: req.sourceRef(), Created: now(),
	}
	if req.Capability != nil {
		record.Capability = *req.Capability
	}
	return record, d.needCapability(record.Capability)
}

// source finds what a volume is to be copied from, and how that is used.
func (d *Driver) source(ctx context.Context, req CreateRequest) (Source, Capability, error) {
	switch {
	case req.FromVolume != "":
		if err := d.needController("clone volumes", csi.ControllerServiceCapability_RPC_CLONE_VOLUME); err != nil {
			return Source{}, Capability{}, err
		}
		v, err := d.usableVolume(ctx, req.FromVolume)
		return Source{Volume: v.ID}, v.Capability, err
	case req.FromSnapshot != "":
		if err := d.needController("restore snapshots", csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT); err != nil {
			return Source{}, Capability{}, err
		}
		s, err := d.usableSnapshot(ctx, req.FromSnapshot)
		return Source{Snapshot: s.ID}, s.Capability, err
	}
	return Source{}, Capability{}, nil
}

// make asks the driver for the volume of a record.
func (d *Driver) make(ctx context.Context, record volumeRecord) (volumeRecord, error) {
	answer, err := call(ctx, d, "CreateVolume", d.controller.CreateVolume, &csi.CreateVolumeRequest{
		Name: record.Name, CapacityRange: capacityRange(record.Size), Parameters: record.Parameters, MutableParameters: record.Mutable,
		VolumeCapabilities: []*csi.VolumeCapability{record.Capability.message()}, VolumeContentSource: record.Source.message(),
		AccessibilityRequirements: d.here(), Secrets: d.config.Secrets,
	})
	if err != nil {
		return record, err
	}
	v := answer.GetVolume()
	if v.GetVolumeId() == "" {
		return record, errs.Errorf(errs.Internal, "driver %s created volume %q without an id", d.info.Name, record.Name)
	}
	record.ID, record.Phase, record.Context = v.GetVolumeId(), ready, v.GetVolumeContext()
	record.Topology = segments(v.GetAccessibleTopology())
	record.Capacity = v.GetCapacityBytes()
	if record.Capacity == 0 { // the driver does not know
		record.Capacity = record.Size.Required
	}
	return record, nil
}

// Delete removes a volume. NotFound: nobody knows it; a volume that a cut-off
// Delete has removed already is no error.
func (d *Driver) Delete(ctx context.Context, ref string) error {
	if err := d.needController("delete volumes", csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME); err != nil {
		return err
	}
	return d.alone(ctx, ref, func(record volumeRecord) error {
		if record.Attachment != nil {
			return errs.Errorf(errs.Precondition, "volume %s is attached at %s; detach it first", record.Name, record.Attachment.places())
		}
		if record.Phase == creating {
			made, err := d.make(ctx, record) // the only way to learn its id
			if isFinal(err) {
				return d.volumes().drop(ctx, record)
			}
			if err != nil {
				return err
			}
			record = made
		}
		was := record.Phase
		record.Phase = deleting
		if err := d.volumes().put(ctx, record); err != nil {
			return err
		}
		_, err := call(ctx, d, "DeleteVolume", d.controller.DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: record.ID, Secrets: d.config.Secrets})
		if err != nil && codeOf(err) != codes.NotFound {
			if isFinal(err) {
				record.Phase = was
				return joinPut(err, d.volumes().keep(ctx, record))
			}
			return err
		}
		return d.volumes().drop(ctx, record)
	})
}

func joinPut(err, put error) error {
	if put != nil {
		return fmt.Errorf("%w (and its state could not be written: %w)", err, put)
	}
	return err
}

// alone finds a volume and runs fn while no other call works on it. The record
// is read again under the lock.
func (d *Driver) alone(ctx context.Context, ref string, fn func(volumeRecord) error) error {
	found, err := d.findVolume(ctx, ref)
	if err != nil {
		return err
	}
	unlock, err := d.memory.lock(ctx, found.key())
	if err != nil {
		return err
	}
	defer unlock()
	if record, ok, err := d.volumes().find(ctx, d.info.Name, found.Name); err != nil {
		return err
	} else if ok {
		found = record
	}
	return fn(found)
}

// Modify changes parameters of a volume; keys left out stay as they are.
func (d *Driver) Modify(ctx context.Context, ref string, mutable map[string]string) (Volume, error) {
	if err := d.needController("change parameters of a volume", csi.ControllerServiceCapability_RPC_MODIFY_VOLUME); err != nil {
		return Volume{}, err
	}
	var out Volume
	err := d.alone(ctx, ref, func(record volumeRecord) error {
		if err := record.usable(); err != nil {
			return err
		}
		_, err := call(ctx, d, "ControllerModifyVolume", d.controller.ControllerModifyVolume, &csi.ControllerModifyVolumeRequest{
			VolumeId: record.ID, MutableParameters: mutable, Secrets: d.config.Secrets,
		})
		if err != nil {
			return err
		}
		if record.Mutable == nil {
			record.Mutable = map[string]string{}
		}
		for key, value := range mutable {
			record.Mutable[key] = value
		}
		out = record.public()
		return d.volumes().keep(ctx, record)
	})
	return out, err
}

package client

import (
	"context"
	"errors"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/store"
)

// Snapshot is a snapshot as the driver and the memory together know it.
type Snapshot struct {
	ID     string `json:"id,omitempty"`
	Name   string `json:"name"`
	Driver string `json:"driver"`
	State  string `json:"state"` // as Volume's
	Source string `json:"sourceVolume"`
	// SourceName is that volume's name, while it is remembered.
	SourceName string    `json:"sourceVolumeName,omitempty"`
	Size       int64     `json:"sizeBytes"`
	Ready      bool      `json:"ready"`
	Group      string    `json:"group,omitempty"`
	Created    time.Time `json:"created,omitzero"` // the moment of the cut
	// Capability is how its volume was used, so that a restored one is the same.
	Capability Capability `json:"capability"`
}

type snapshotRecord struct {
	labels
	Phase      phase             `json:"phase"`
	Source     string            `json:"source"`
	Parameters map[string]string `json:"parameters,omitempty"`
	Size       int64             `json:"size,omitempty"`
	Ready      bool              `json:"ready,omitempty"`
	Group      string            `json:"group,omitempty"`
	Created    time.Time         `json:"created"`
	Capability Capability        `json:"capability"`
}

func (d *Driver) snapshots() shelf[snapshotRecord] {
	return shelf[snapshotRecord]{d.memory, store.Bucket[snapshotRecord]{Name: "snapshots"}}
}

func (r snapshotRecord) public() Snapshot {
	return Snapshot{ID: r.ID, Name: r.Name, Driver: r.Driver, State: string(r.Phase), Source: r.Source, Size: r.Size,
		Ready: r.Ready, Group: r.Group, Created: r.Created, Capability: r.Capability}
}

// learn takes over what the driver tells.
func (r *snapshotRecord) learn(s *csi.Snapshot) {
	r.ID, r.Size, r.Ready, r.Group = s.GetSnapshotId(), s.GetSizeBytes(), s.GetReadyToUse(), s.GetGroupSnapshotId()
	if s.GetSourceVolumeId() != "" {
		r.Source = s.GetSourceVolumeId()
	}
	if s.GetCreationTime() != nil {
		r.Created = s.GetCreationTime().AsTime()
	}
}

// CreateSnapshot cuts a snapshot of a volume, or returns the one that the same
// request cut, and waits until it is ready to use.
func (d *Driver) CreateSnapshot(ctx context.Context, name, source string, parameters map[string]string) (Snapshot, error) {
	if err := d.needController("cut snapshots", csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT); err != nil {
		return Snapshot{}, err
	}
	if name == "" {
		return Snapshot{}, errs.Errorf(errs.Invalid, "a snapshot needs a name")
	}
	record := snapshotRecord{labels: labels{Driver: d.info.Name, Name: name}, Phase: creating, Parameters: parameters, Created: now()}
	unlock, err := d.memory.lock(ctx, "snapshot "+record.key())
	if err != nil {
		return Snapshot{}, err
	}
	defer unlock()
	old, known, err := d.snapshots().find(ctx, d.info.Name, name)
	switch {
	case err != nil:
		return Snapshot{}, err
	case known && old.Phase == deleting:
		return Snapshot{}, errs.Errorf(errs.Precondition, "snapshot %q is being deleted; delete it again to finish that, then create it again", name)
	}
	v, err := d.usableVolume(ctx, source)
	switch {
	case known && errors.Is(err, errs.NotFound) && (source == old.Source || source == ""):
		v = volumeRecord{labels: labels{ID: old.Source}, Capability: old.Capability} // the volume is gone, its snapshot need not be
	case err != nil:
		return Snapshot{}, err
	}
	record.Source, record.Capability = v.ID, v.Capability
	if !known {
		if err := d.snapshots().put(ctx, record); err != nil {
			return Snapshot{}, err
		}
	}
	if err := d.cut(ctx, &record); err != nil {
		if !known && isFinal(err) {
			return Snapshot{}, joinPut(err, d.snapshots().drop(ctx, record))
		}
		return Snapshot{}, err
	}
	return record.public(), nil
}

// cut asks for the snapshot of a record until it is ready. The specification
// lets a repeat of the request tell that, for drivers that cannot look it up.
func (d *Driver) cut(ctx context.Context, record *snapshotRecord) error {
	request := &csi.CreateSnapshotRequest{SourceVolumeId: record.Source, Name: record.Name, Parameters: record.Parameters, Secrets: d.config.Secrets}
	if d.offers.plugin[csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS] {
		request.AccessibilityRequirements = d.here()
	}
	for pause := newPause(); ; {
		answer, err := call(ctx, d, "CreateSnapshot", d.controller.CreateSnapshot, request)
		if err != nil {
			return stillWaiting(ctx, record.Phase, "snapshot "+record.Name, err)
		}
		if answer.GetSnapshot().GetSnapshotId() == "" {
			return errs.Errorf(errs.Internal, "driver %s created snapshot %q without an id", d.info.Name, record.Name)
		}
		record.learn(answer.GetSnapshot())
		record.Phase = ready
		if err := d.snapshots().keep(ctx, *record); err != nil {
			return err
		}
		if record.Ready {
			return nil
		}
		if err := d.pauseFor(ctx, pause, "snapshot "+record.Name); err != nil {
			return err
		}
	}
}

func (d *Driver) pauseFor(ctx context.Context, p *pause, what string) error {
	if p.step > time.Second {
		d.config.Notice(what + " is cut and is not ready yet; waiting")
	}
	if !p.wait(ctx) {
		return stillWaiting(ctx, ready, what, ctx.Err())
	}
	return nil
}

// stillWaiting says what time ran out on: a cut that was made is not lost.
func stillWaiting(ctx context.Context, at phase, what string, err error) error {
	if at != ready || ctx.Err() == nil {
		return err
	}
	return errs.Errorf(errs.Unavailable, "%s is taken but not ready yet; the driver continues with it, ask again later: %w", what, err)
}

// DeleteSnapshot removes a snapshot. NotFound: nobody knows it.
func (d *Driver) DeleteSnapshot(ctx context.Context, ref string) error {
	if err := d.needController("delete snapshots", csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT); err != nil {
		return err
	}
	record, err := d.findSnapshot(ctx, ref)
	if err != nil {
		return err
	}
	unlock, err := d.memory.lock(ctx, "snapshot "+record.key())
	if err != nil {
		return err
	}
	defer unlock()
	if record.Group != "" {
		return errs.Errorf(errs.Invalid, "snapshot %s is a member of group %s and lives with it; delete the group", record.Name, record.Group)
	}
	if record.Phase == creating {
		if err := d.cut(ctx, &record); isFinal(err) {
			return d.snapshots().drop(ctx, record)
		} else if err != nil {
			return err
		}
	}
	was := record.Phase
	record.Phase = deleting
	if err := d.snapshots().put(ctx, record); err != nil {
		return err
	}
	_, err = call(ctx, d, "DeleteSnapshot", d.controller.DeleteSnapshot, &csi.DeleteSnapshotRequest{SnapshotId: record.ID, Secrets: d.config.Secrets})
	if err != nil && codeOf(err) != codes.NotFound {
		if isFinal(err) {
			record.Phase = was
			return joinPut(err, d.snapshots().keep(ctx, record))
		}
		return err
	}
	return d.snapshots().drop(ctx, record)
}

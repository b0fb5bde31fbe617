package client

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
)

// Snapshot combines the driver's report and the record.
type Snapshot struct {
	Object
	Source string `json:"sourceVolume"`
	// if created here
	SourceName string    `json:"sourceVolumeName,omitempty"`
	Size       int64     `json:"sizeBytes"`
	Ready      bool      `json:"ready"`
	Group      string    `json:"group,omitempty"`
	Created    time.Time `json:"created,omitzero"` // when the content was frozen
	// of the source; a restored volume has the same
	Capability Capability `json:"capability"`
}

type snapshotRecord struct {
	Snapshot
	Parameters map[string]string `json:"parameters,omitempty"`
}

func (s *Snapshot) refresh(now *csi.Snapshot) {
	s.ID, s.Size, s.Ready = now.GetSnapshotId(), now.GetSizeBytes(), now.GetReadyToUse()
	s.Group = now.GetGroupSnapshotId()
	if now.GetSourceVolumeId() != "" {
		s.Source = now.GetSourceVolumeId()
	}
	if now.GetCreationTime() != nil {
		s.Created = now.GetCreationTime().AsTime()
	}
}

// unnamed is a snapshot of the driver without a record.
func (d *Driver) unnamed(now *csi.Snapshot, state string) Snapshot {
	s := Snapshot{Object: Object{Driver: d.info.Name, Name: now.GetSnapshotId(), State: state}}
	s.refresh(now)
	return s
}

// CreateSnapshot creates a snapshot and waits until it is ready to use. It is
// idempotent.
func (d *Driver) CreateSnapshot(ctx context.Context, name, source string, parameters map[string]string) (Snapshot, error) {
	if err := d.need("create snapshots", csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT); err != nil {
		return Snapshot{}, err
	}
	if name == "" {
		return Snapshot{}, errs.Errorf(errs.Invalid, "a snapshot needs a name")
	}
	n := &snapshotRecord{Parameters: parameters, Snapshot: Snapshot{
		Object: Object{Driver: d.info.Name, Name: name, State: StateCreating}, Created: time.Now().UTC(),
	}}
	v, err := usable(d.findVolume(ctx, source))
	switch {
	case err == nil:
		n.Source, n.Capability = v.ID, v.Capability
	case errors.Is(err, errs.NotFound), errors.Is(err, errNoLookup): // an existing snapshot does not need its volume
		old, known, readErr := stored(d.state, n)
		if readErr != nil || !known || source != old.Source {
			return Snapshot{}, err
		}
		n.Source, n.Capability = old.Source, old.Capability
	default:
		return Snapshot{}, err
	}
	err = createObject(ctx, d, n, func(*snapshotRecord, bool) error { return d.takeSnapshot(ctx, n) })
	return n.Snapshot, err
}

// takeSnapshot repeats CreateSnapshot until ready, as specified for drivers
// without a lookup.
func (d *Driver) takeSnapshot(ctx context.Context, n *snapshotRecord) error {
	request := &csi.CreateSnapshotRequest{SourceVolumeId: n.Source, Name: n.Name, Parameters: n.Parameters, Secrets: d.config.Secrets}
	if d.announced[csi.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS] {
		request.AccessibilityRequirements = d.topologyRequirement()
	}
	return d.awaitReadyToUse(ctx, n, func() (bool, error) {
		answer, err := d.controller.CreateSnapshot(ctx, request)
		if err != nil {
			return false, err
		}
		if answer.GetSnapshot().GetSnapshotId() == "" {
			return false, errs.Errorf(errs.Internal, "driver %s created snapshot %q without an id", d.info.Name, n.Name)
		}
		n.refresh(answer.GetSnapshot())
		n.State = StateReady
		return n.Ready, d.state.put(n)
	})
}

func (d *Driver) awaitReadyToUse(ctx context.Context, n objectRecord, take func() (isReady bool, err error)) error {
	name := kind(n) + " " + n.object().Name
	for pause := newBackoff(); ; {
		isReady, err := take()
		if err == nil && !isReady {
			if pause.Pause() > time.Second {
				d.config.Notice(name + " is taken and not ready yet; waiting")
			}
			if pause.Wait(ctx) == nil {
				continue
			}
			err = ctx.Err()
		}
		if err != nil && n.object().State == StateReady && ctx.Err() != nil {
			return errs.Errorf(errs.Unavailable, "%s is taken but not ready yet; the driver continues with it, ask again later: %w", name, err)
		}
		return err
	}
}

// DeleteSnapshot deletes a snapshot. NotFound and Unsupported are as for Delete.
func (d *Driver) DeleteSnapshot(ctx context.Context, ref string) error {
	if err := d.need("delete snapshots", csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT); err != nil {
		return err
	}
	return locked(ctx, d, d.findSnapshot, ref, func(n *snapshotRecord) error {
		if n.Group != "" {
			return errs.Errorf(errs.Invalid, "snapshot %s is a member of group %s and is deleted with the group; delete the group", n.Name, n.Group)
		}
		return deleteObject(d, n, func() error { return d.takeSnapshot(ctx, n) }, func() error {
			_, err := d.controller.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: n.ID, Secrets: d.config.Secrets})
			return err
		})
	})
}

// Snapshots lists the driver's snapshots (LIST_SNAPSHOTS) and those known here,
// by name, of source (name or id) if set.
func (d *Driver) Snapshots(ctx context.Context, source string) ([]Snapshot, error) {
	var sourceID string
	if source != "" {
		v, err := d.findVolume(ctx, source)
		if err != nil {
			return nil, err
		}
		sourceID = v.ID
	}
	known, err := d.knownSnapshots()
	if err != nil {
		return nil, err
	}
	canList := d.announced[csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS]
	byID := map[string]*csi.Snapshot{}
	if canList {
		listed, err := d.listSnapshots(ctx, &csi.ListSnapshotsRequest{SourceVolumeId: sourceID})
		if err != nil {
			return nil, err
		}
		for _, s := range listed {
			byID[s.GetSnapshotId()] = s
		}
	}
	var out []Snapshot
	for _, n := range known {
		if sourceID != "" && n.Source != sourceID {
			continue
		}
		if s := byID[n.ID]; s != nil {
			n.refresh(s)
			delete(byID, n.ID)
		} else if canList && n.State == StateReady {
			n.State = StateMissing
		}
		out = append(out, n.Snapshot)
	}
	for _, s := range byID {
		out = append(out, d.unnamed(s, StateForeign))
	}
	slices.SortFunc(out, func(a, b Snapshot) int { return strings.Compare(a.Name, b.Name) })
	return out, d.nameSources(out)
}

// nameSources fills in the names of source volumes that have a record.
func (d *Driver) nameSources(snapshots []Snapshot) error {
	volumes, err := storedAll[*volumeRecord](d.state, d.info.Name)
	if err != nil {
		return err
	}
	for i := range snapshots {
		if v, ok := byRef(volumes, snapshots[i].Source); ok {
			snapshots[i].SourceName = v.Name
		}
	}
	return nil
}

func (d *Driver) listSnapshots(ctx context.Context, request *csi.ListSnapshotsRequest) ([]*csi.Snapshot, error) {
	entries, err := pages(func(token string) ([]*csi.ListSnapshotsResponse_Entry, string, error) {
		request.MaxEntries, request.StartingToken, request.Secrets = pageSize, token, d.config.Secrets
		answer, err := d.controller.ListSnapshots(ctx, request)
		return answer.GetEntries(), answer.GetNextToken(), err
	})
	var out []*csi.Snapshot
	for _, e := range entries {
		out = append(out, e.GetSnapshot())
	}
	return out, err
}

// ShowSnapshot returns a snapshot by name or id.
func (d *Driver) ShowSnapshot(ctx context.Context, ref string) (Snapshot, error) {
	n, err := d.findSnapshot(ctx, ref)
	if err != nil {
		return Snapshot{}, err
	}
	if n.ID == "" {
		return n.Snapshot, nil
	}
	s, err := d.getSnapshot(ctx, n.ID)
	if err == nil {
		n.refresh(s)
	} else if err := n.notShown(err); err != nil {
		return Snapshot{}, err
	}
	out := []Snapshot{n.Snapshot}
	err = d.nameSources(out)
	return out[0], err
}

// getSnapshot asks the driver for one snapshot. Unsupported: it has no call for
// that.
func (d *Driver) getSnapshot(ctx context.Context, id string) (*csi.Snapshot, error) {
	switch {
	case d.announced[csi.ControllerServiceCapability_RPC_GET_SNAPSHOT]:
		answer, err := d.controller.GetSnapshot(ctx, &csi.GetSnapshotRequest{SnapshotId: id, Secrets: d.config.Secrets})
		return answer.GetSnapshot(), err
	case d.announced[csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS]:
		listed, err := d.listSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: id})
		if err == nil && len(listed) == 0 {
			err = errs.Errorf(errs.NotFound, "driver %s does not list snapshot %q", d.info.Name, id)
		}
		if err != nil {
			return nil, err
		}
		return listed[0], nil
	}
	return nil, d.need("look a snapshot up", csi.ControllerServiceCapability_RPC_GET_SNAPSHOT)
}

// knownSnapshots have a record, or are members of such a group.
func (d *Driver) knownSnapshots() ([]*snapshotRecord, error) {
	known, err := storedAll[*snapshotRecord](d.state, d.info.Name)
	if err != nil {
		return nil, err
	}
	groups, err := storedAll[*groupRecord](d.state, d.info.Name)
	for _, g := range groups {
		for _, member := range g.Snapshots {
			known = append(known, &snapshotRecord{Snapshot: member})
		}
	}
	return known, err
}

// findSnapshot finds a snapshot by name or id: here, else at the driver.
func (d *Driver) findSnapshot(ctx context.Context, ref string) (*snapshotRecord, error) {
	if ref == "" {
		return nil, errs.Errorf(errs.Invalid, "the name or id of the snapshot is empty")
	}
	known, err := d.knownSnapshots()
	if err != nil {
		return nil, err
	}
	if n, ok := byRef(known, ref); ok {
		return n, nil
	}
	s, err := d.getSnapshot(ctx, ref)
	if err != nil {
		return nil, d.notFound(err, "snapshot", ref, "GET_SNAPSHOT nor LIST_SNAPSHOTS")
	}
	return &snapshotRecord{Snapshot: d.unnamed(s, StateForeign)}, nil
}

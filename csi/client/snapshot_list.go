package client

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
)

// Snapshots lists the driver's snapshots, of one volume where source (a name
// or id) is set, by name. A driver without LIST_SNAPSHOTS lists what is
// remembered.
func (d *Driver) Snapshots(ctx context.Context, source string) ([]Snapshot, error) {
	var sourceID string
	if source != "" {
		v, err := d.findVolume(ctx, source)
		if err != nil {
			return nil, err
		}
		sourceID = v.ID
	}
	records, err := d.snapshots().all(ctx, d.info.Name)
	if err != nil {
		return nil, err
	}
	canList := d.offers.controller[csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS]
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
	for _, r := range records {
		if sourceID != "" && r.Source != sourceID {
			continue
		}
		if s := byID[r.ID]; s != nil {
			r.learn(s)
			delete(byID, r.ID)
		} else if canList && r.Phase == ready {
			r.Phase = StateMissing
		}
		out = append(out, r.public())
	}
	ours, err := d.groupIDs(ctx)
	if err != nil {
		return nil, err
	}
	for _, s := range byID {
		r := d.foreignSnapshot(s)
		if ours[s.GetGroupSnapshotId()] {
			r.Phase = ready // remembered with its group
		}
		out = append(out, r.public())
	}
	slices.SortFunc(out, func(a, b Snapshot) int { return strings.Compare(a.Name, b.Name) })
	return out, d.nameSources(ctx, out)
}

// groupIDs are the groups that are remembered.
func (d *Driver) groupIDs(ctx context.Context) (map[string]bool, error) {
	records, err := d.groups().all(ctx, d.info.Name)
	ids := map[string]bool{}
	for _, r := range records {
		if r.ID != "" {
			ids[r.ID] = true
		}
	}
	return ids, err
}

// nameSources fills in the names of the volumes that are remembered.
func (d *Driver) nameSources(ctx context.Context, snapshots []Snapshot) error {
	volumes, err := d.volumes().all(ctx, d.info.Name)
	if err != nil {
		return err
	}
	names := map[string]string{}
	for _, v := range volumes {
		names[v.ID] = v.Name
	}
	for i := range snapshots {
		snapshots[i].SourceName = names[snapshots[i].Source]
	}
	return nil
}

func (d *Driver) listSnapshots(ctx context.Context, request *csi.ListSnapshotsRequest) ([]*csi.Snapshot, error) {
	entries, err := pages(func(token string) ([]*csi.ListSnapshotsResponse_Entry, string, error) {
		answer, err := callPage(ctx, d, "ListSnapshots", d.controller.ListSnapshots, &csi.ListSnapshotsRequest{
			MaxEntries: pageSize, StartingToken: token, SourceVolumeId: request.GetSourceVolumeId(), SnapshotId: request.GetSnapshotId(), Secrets: d.config.Secrets,
		})
		return answer.GetEntries(), answer.GetNextToken(), err
	})
	var out []*csi.Snapshot
	for _, e := range entries {
		out = append(out, e.GetSnapshot())
	}
	return out, err
}

func (d *Driver) foreignSnapshot(s *csi.Snapshot) snapshotRecord {
	r := snapshotRecord{labels: labels{Driver: d.info.Name, Name: s.GetSnapshotId()}, Phase: StateForeign}
	r.learn(s)
	return r
}

// ShowSnapshot returns one snapshot by its name or id.
func (d *Driver) ShowSnapshot(ctx context.Context, ref string) (Snapshot, error) {
	record, err := d.findSnapshot(ctx, ref)
	if err != nil || record.ID == "" {
		return record.public(), err
	}
	s, err := d.lookSnapshot(ctx, record.ID)
	switch {
	case err == nil:
		record.learn(s)
	case errors.Is(err, errs.NotFound) && record.Phase == ready:
		record.Phase = StateMissing
	case errors.Is(err, errs.NotFound), errors.Is(err, errs.Unsupported):
	default:
		return Snapshot{}, err
	}
	out := []Snapshot{record.public()}
	err = d.nameSources(ctx, out)
	return out[0], err
}

func (d *Driver) lookSnapshot(ctx context.Context, id string) (*csi.Snapshot, error) {
	switch {
	case d.offers.controller[csi.ControllerServiceCapability_RPC_GET_SNAPSHOT]:
		answer, err := call(ctx, d, "GetSnapshot", d.controller.GetSnapshot, &csi.GetSnapshotRequest{SnapshotId: id, Secrets: d.config.Secrets})
		return answer.GetSnapshot(), err
	case d.offers.controller[csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS]:
		listed, err := d.listSnapshots(ctx, &csi.ListSnapshotsRequest{SnapshotId: id})
		if err != nil {
			return nil, err
		}
		if len(listed) == 0 {
			return nil, d.unknown("snapshot", id)
		}
		return listed[0], nil
	}
	return nil, d.lacks("look a snapshot up", csi.ControllerServiceCapability_RPC_GET_SNAPSHOT)
}

// findSnapshot finds a snapshot by name or id: in the memory, among the
// members of groups, else at the driver.
func (d *Driver) findSnapshot(ctx context.Context, ref string) (snapshotRecord, error) {
	record, ok, err := d.snapshots().find(ctx, d.info.Name, ref)
	if err != nil || ok {
		return record, err
	}
	if ref == "" {
		return record, errs.Errorf(errs.Invalid, "the name or id of the snapshot is empty")
	}
	if record, ok, err = d.member(ctx, ref); err != nil || ok {
		return record, err
	}
	s, err := d.lookSnapshot(ctx, ref)
	switch {
	case errors.Is(err, errs.Unsupported):
		return record, errs.Errorf(errs.NotFound, "no snapshot with the name or id %q is remembered in %s, and driver %s cannot look it up: it announces neither GET_SNAPSHOT nor LIST_SNAPSHOTS",
			ref, d.config.StateDir, d.info.Name)
	case errors.Is(err, errs.NotFound), errors.Is(err, errs.Invalid):
		return record, d.unknown("snapshot", ref)
	case err != nil:
		return record, err
	}
	return d.foreignSnapshot(s), nil
}

// usableSnapshot finds a snapshot that the driver has.
func (d *Driver) usableSnapshot(ctx context.Context, ref string) (snapshotRecord, error) {
	record, err := d.findSnapshot(ctx, ref)
	if err == nil && (record.Phase == creating || record.Phase == deleting) {
		err = errs.Errorf(errs.Precondition, "snapshot %s is %s: that call was interrupted, repeat it first", record.Name, record.Phase)
	}
	return record, err
}

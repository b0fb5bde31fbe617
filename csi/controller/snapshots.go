package controller

import (
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
)

// CreateSnapshot cuts a snapshot, or answers with the one cut for an equal
// request.
func (s *Server) CreateSnapshot(ctx context.Context, r *spec.CreateSnapshotRequest) (*spec.CreateSnapshotResponse, error) {
	if err := s.announced.RequireController("CreateSnapshot", spec.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT); err != nil {
		return nil, err
	}
	req, err := request.CreateSnapshot(r, s.offer)
	if err != nil {
		return nil, err
	}
	if !req.Accessibility.Admits(s.announced.Segments) {
		return nil, errs.Errorf(errs.Exhausted, "snapshots of this driver are on %s, which no requisite topology of accessibility_requirements includes", describe(s.announced.Segments))
	}
	snap, err := op.Do(ctx, s.operations, op.Request{
		What: "CreateSnapshot", Keys: []string{snapshotNameKey(req.Name)}, Fingerprint: request.Fingerprint(r),
	}, func(ctx context.Context) (volume.Snapshot, error) {
		return s.backend.Snapshots.CreateSnapshot(ctx, volume.SnapshotRequest{Name: req.Name, Source: req.Source, Parameters: req.Parameters})
	})
	if err != nil {
		return nil, err
	}
	return &spec.CreateSnapshotResponse{Snapshot: csi.Snapshot(snap, s.announced)}, nil
}

// DeleteSnapshot removes a snapshot that is no member of a group.
func (s *Server) DeleteSnapshot(ctx context.Context, r *spec.DeleteSnapshotRequest) (*spec.DeleteSnapshotResponse, error) {
	if err := s.announced.RequireController("DeleteSnapshot", spec.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT); err != nil {
		return nil, err
	}
	id, err := request.DeleteSnapshot(r)
	if err != nil {
		return nil, err
	}
	snap, err := s.backend.Snapshots.GetSnapshot(ctx, id)
	switch {
	case errs.KindOf(err) == errs.NotFound:
		snap = volume.Snapshot{}
	case err != nil:
		return nil, err
	}
	keys := []string{snapshotKey(id)}
	if snap.Name != "" && snap.Group == "" {
		keys = append(keys, snapshotNameKey(snap.Name))
	}
	_, err = op.Do(ctx, s.operations, op.Request{
		What: "DeleteSnapshot", Keys: keys, Fingerprint: request.Fingerprint(r), Negates: true,
	}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.backend.Snapshots.DeleteSnapshot(ctx, id)
	})
	if err != nil {
		return nil, err
	}
	return &spec.DeleteSnapshotResponse{}, nil
}

// GetSnapshot answers what is known of a snapshot.
func (s *Server) GetSnapshot(ctx context.Context, r *spec.GetSnapshotRequest) (*spec.GetSnapshotResponse, error) {
	if err := s.announced.RequireController("GetSnapshot", spec.ControllerServiceCapability_RPC_GET_SNAPSHOT); err != nil {
		return nil, err
	}
	id, err := request.GetSnapshot(r)
	if err != nil {
		return nil, err
	}
	snap, err := s.backend.Snapshots.GetSnapshot(ctx, id)
	if err != nil {
		return nil, err
	}
	return &spec.GetSnapshotResponse{Snapshot: csi.Snapshot(snap, s.announced)}, nil
}

// ListSnapshots lists snapshots in the order of their ids; a filter that
// nothing fits makes an empty list.
func (s *Server) ListSnapshots(ctx context.Context, r *spec.ListSnapshotsRequest) (*spec.ListSnapshotsResponse, error) {
	if err := s.announced.RequireController("ListSnapshots", spec.ControllerServiceCapability_RPC_LIST_SNAPSHOTS); err != nil {
		return nil, err
	}
	req, err := request.ListSnapshots(r)
	if err != nil {
		return nil, err
	}
	read := func(ctx context.Context, after string, limit int) ([]volume.Snapshot, error) {
		return s.backend.Snapshots.ListSnapshots(ctx, volume.SnapshotQuery{Source: req.Source, After: volume.SnapshotID(after), Limit: limit})
	}
	if req.Snapshot != "" {
		read = s.readOneSnapshot(req)
	}
	entries, token, err := pageOf(ctx, request.ListOfSnapshots, req.Page, read, s.listSnapshot,
		func(snap volume.Snapshot) string { return string(snap.ID) })
	if err != nil {
		return nil, err
	}
	return &spec.ListSnapshotsResponse{Entries: entries, NextToken: token}, nil
}

// readOneSnapshot reads a list of at most the one snapshot that is asked for.
func (s *Server) readOneSnapshot(req request.SnapshotList) func(context.Context, string, int) ([]volume.Snapshot, error) {
	return func(ctx context.Context, after string, _ int) ([]volume.Snapshot, error) {
		snap, err := s.backend.Snapshots.GetSnapshot(ctx, req.Snapshot)
		switch {
		case errs.KindOf(err) == errs.NotFound:
			return nil, nil
		case err != nil:
			return nil, err
		case req.Source != "" && snap.Source != req.Source, string(snap.ID) <= after:
			return nil, nil
		}
		return []volume.Snapshot{snap}, nil
	}
}

func (s *Server) listSnapshot(_ context.Context, snap volume.Snapshot) (*spec.ListSnapshotsResponse_Entry, bool, error) {
	return &spec.ListSnapshotsResponse_Entry{Snapshot: csi.Snapshot(snap, s.announced)}, true, nil
}

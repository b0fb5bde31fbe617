package csi

import (
	"cmp"
	"context"
	"encoding/base64"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// maxPage limits a page when the caller sets no limit: a client accepts
// messages of 4 MiB, and an entry has some hundred bytes.
const maxPage = 5000

// list is part of tokens, so that one list does not accept those of another.
type list string

const (
	listOfVolumes   list = "volumes"
	listOfSnapshots list = "snapshots"
	listOfHealth    list = "health"
)

const tokenVersion = "1"

// tokenEncoding accepts only its own spelling.
var tokenEncoding = base64.RawURLEncoding.Strict()

// token returns the token that continues a list after an id. The object need
// not exist any more when the token is used.
func (l list) token(after string) string {
	return tokenEncoding.EncodeToString([]byte(tokenVersion + ":" + string(l) + ":" + after))
}

// parseToken returns an id, or "". BadToken: not a token of this list.
func (l list) parseToken(token string) (after string, err error) {
	if token == "" {
		return "", nil
	}
	plain, err := tokenEncoding.DecodeString(token)
	id, ours := strings.CutPrefix(string(plain), tokenVersion+":"+string(l)+":")
	if err != nil || !ours || volume.CheckID(id) != nil {
		return "", errs.Errorf(errs.BadToken, "starting_token %s was not issued by this plugin for this list; restart without a token", errs.Quote(token))
	}
	return id, nil
}

type pageRequest interface {
	GetMaxEntries() int32
	GetStartingToken() string
}

// readPage reads items after an id, a chunk at a time, and translates those
// that belong to the list. The token is set if another entry exists, and
// contains the last id instead of a position: entries can be created and
// deleted between pages.
func readPage[I, E any](ctx context.Context, l list, r pageRequest,
	read func(ctx context.Context, after string, limit int) ([]I, error),
	entry func(ctx context.Context, item I) (e E, belongs bool, err error),
	id func(I) string,
) (entries []E, token string, err error) {
	if r.GetMaxEntries() < 0 {
		return nil, "", invalidf("max_entries is %d; it cannot be negative", r.GetMaxEntries())
	}
	after, err := l.parseToken(r.GetStartingToken())
	if err != nil {
		return nil, "", err
	}
	limit := min(cmp.Or(int(r.GetMaxEntries()), maxPage), maxPage)
	for last := ""; ; {
		items, err := read(ctx, after, limit+1)
		if err != nil {
			return nil, "", err
		}
		for _, item := range items {
			after = id(item)
			e, belongs, err := entry(ctx, item)
			switch {
			case err != nil:
				return nil, "", err
			case !belongs:
			case len(entries) == limit:
				return entries, l.token(last), nil
			default:
				entries, last = append(entries, e), after
			}
		}
		if len(items) <= limit {
			return entries, "", nil
		}
	}
}

func volumeID(v volume.Volume) string { return string(v.ID) }

func (s *Controller) readVolumes(ctx context.Context, after string, limit int) ([]volume.Volume, error) {
	return s.backend.Engine.List(ctx, volume.ID(after), limit)
}

// ListVolumes lists all volumes except ephemeral ones.
func (s *Controller) ListVolumes(ctx context.Context, r *spec.ListVolumesRequest) (*spec.ListVolumesResponse, error) {
	var published map[volume.ID][]string
	entries, token, err := readPage(ctx, listOfVolumes, r,
		func(ctx context.Context, after string, limit int) (page []volume.Volume, err error) {
			if page, err = s.readVolumes(ctx, after, limit); err == nil {
				published, err = s.allPublishedNodes(ctx, volume.ID(after))
			}
			return page, err
		},
		func(_ context.Context, v volume.Volume) (*spec.ListVolumesResponse_Entry, bool, error) {
			return &spec.ListVolumesResponse_Entry{
				Volume: s.volume(v), Status: &spec.ListVolumesResponse_VolumeStatus{PublishedNodeIds: published[v.ID]},
			}, !v.Ephemeral, nil
		}, volumeID)
	return &spec.ListVolumesResponse{Entries: entries, NextToken: token}, err
}

// ControllerListVolumeHealth lists volumes with conditions.
func (s *Controller) ControllerListVolumeHealth(ctx context.Context, r *spec.ControllerListVolumeHealthRequest) (*spec.ControllerListVolumeHealthResponse, error) {
	if err := s.announced.needs(r, spec.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH); err != nil {
		return nil, err
	}
	entries, token, err := readPage(ctx, listOfHealth, r, s.readVolumes,
		func(ctx context.Context, v volume.Volume) (*spec.VolumeHealth, bool, error) {
			if v.Ephemeral {
				return nil, false, nil
			}
			conditions, err := s.backend.Health.VolumeHealth(ctx, v.ID)
			if errs.KindOf(err) == errs.NotFound { // deleted meanwhile
				return nil, false, nil
			}
			return volumeHealth(v.ID, conditions), len(conditions) > 0, err
		}, volumeID)
	return &spec.ControllerListVolumeHealthResponse{Entries: entries, NextToken: token}, err
}

// ListSnapshots lists snapshots, filtered by the id and the source of the
// request.
func (s *Controller) ListSnapshots(ctx context.Context, r *spec.ListSnapshotsRequest) (*spec.ListSnapshotsResponse, error) {
	if err := cmp.Or(
		s.announced.needs(r, spec.ControllerServiceCapability_RPC_LIST_SNAPSHOTS),
		checkString("source_volume_id", r.GetSourceVolumeId(), maxString),
		checkString("snapshot_id", r.GetSnapshotId(), maxString),
	); err != nil {
		return nil, err
	}
	id, source := volume.SnapshotID(r.GetSnapshotId()), volume.ID(r.GetSourceVolumeId())
	read := func(ctx context.Context, after string, limit int) ([]volume.Snapshot, error) {
		if id == "" {
			return s.backend.Snapshots.ListSnapshots(ctx, volume.SnapshotQuery{Source: source, After: volume.SnapshotID(after), Limit: limit})
		}
		snap, err := s.backend.Snapshots.GetSnapshot(ctx, id)
		switch {
		case errs.KindOf(err) == errs.NotFound:
			return nil, nil
		case err != nil:
			return nil, err
		case source != "" && snap.Source != source, string(snap.ID) <= after:
			return nil, nil
		}
		return []volume.Snapshot{snap}, nil
	}
	entries, token, err := readPage(ctx, listOfSnapshots, r, read,
		func(_ context.Context, snap volume.Snapshot) (*spec.ListSnapshotsResponse_Entry, bool, error) {
			return &spec.ListSnapshotsResponse_Entry{Snapshot: s.snapshot(snap)}, true, nil
		},
		func(snap volume.Snapshot) string { return string(snap.ID) })
	return &spec.ListSnapshotsResponse{Entries: entries, NextToken: token}, err
}

package controller

import (
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/volume"
)

// maxPage bounds a page whose caller sets no bound: a client takes messages of
// 4 MiB, and an entry has some hundred bytes.
const maxPage = 5000

// pageOf collects one page of a list: it reads items behind an id, a chunk at
// a time, and turns those that belong to the list into entries. The token is
// set when there is at least one more entry. Since a token names the id of the
// last entry, and not a position, entries may come and go meanwhile.
func pageOf[I, E any](ctx context.Context, list request.List, page request.Page,
	read func(ctx context.Context, after string, limit int) ([]I, error),
	entry func(ctx context.Context, item I) (e E, belongs bool, err error),
	id func(I) string,
) (entries []E, token string, err error) {
	limit := maxPage
	if page.Limit > 0 {
		limit = min(page.Limit, maxPage)
	}
	after, last := page.After, ""
	for {
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
				return entries, list.Token(last), nil
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

func (s *Server) readVolumes(ctx context.Context, after string, limit int) ([]volume.Volume, error) {
	return s.backend.Engine.List(ctx, volume.ID(after), limit)
}

// ListVolumes lists the volumes that an orchestrator made, in the order of
// their ids. Ephemeral volumes are their workload's own.
func (s *Server) ListVolumes(ctx context.Context, r *spec.ListVolumesRequest) (*spec.ListVolumesResponse, error) {
	page, err := request.ListVolumes(r)
	if err != nil {
		return nil, err
	}
	entries, token, err := pageOf(ctx, request.ListOfVolumes, page, s.readVolumes, s.listVolume, volumeID)
	if err != nil {
		return nil, err
	}
	return &spec.ListVolumesResponse{Entries: entries, NextToken: token}, nil
}

func (s *Server) listVolume(ctx context.Context, v volume.Volume) (*spec.ListVolumesResponse_Entry, bool, error) {
	if v.Ephemeral {
		return nil, false, nil
	}
	nodes, err := s.publishedNodes(ctx, v.ID)
	return &spec.ListVolumesResponse_Entry{
		Volume: s.volume(v), Status: &spec.ListVolumesResponse_VolumeStatus{PublishedNodeIds: nodes},
	}, true, err
}

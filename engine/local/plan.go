package local

import (
	"context"
	"fmt"
	"maps"

	"github.com/cleatproject/cleat/engine/newvolume"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// plan is a valid create request.
type plan struct {
	volume.CreateRequest
	settings settings
}

func planCreate(req volume.CreateRequest) (plan, error) {
	if err := newvolume.Check(req); err != nil {
		return plan{}, err
	}
	s, err := parseSettings(settings{Provisioning: thin}, req.Parameters)
	if err != nil {
		return plan{}, err
	}
	req.Parameters = maps.Clone(req.Parameters)
	return plan{CreateRequest: req, settings: s}, nil
}

func (p plan) locks() []string {
	keys := []string{"name:" + p.Name}
	if p.Source.Volume != "" {
		keys = append(keys, "vol:"+string(p.Source.Volume))
	}
	if p.Source.Snapshot != "" {
		keys = append(keys, "snap:"+string(p.Source.Snapshot))
	}
	return keys
}

// origin is the source of a new volume.
type origin = newvolume.Origin[originFile]

type originFile struct {
	volume.Source
	promised int64  // additional space for the thick source
	intent   string // key of the freeze record
}

// fileOf returns the path of a source in the pool.
func fileOf(s volume.Source) string {
	if s.Volume != "" {
		return volumesDir + "/" + string(s.Volume)
	}
	return snapshotsDir + "/" + string(s.Snapshot)
}

func (e *Engine) originOf(ctx context.Context, s volume.Source) (*origin, error) {
	o, err := newvolume.OriginOf(s, func(id volume.ID) (origin, error) {
		r, err := e.readyVolume(ctx, id)
		promised := r.Promised
		if r.Settings.thick() {
			promised = r.Size
		}
		return origin{Size: r.Size, Content: r.Content, FSType: r.FSType, NewUUID: true, At: originFile{Source: s, promised: promised}}, err
	}, func(id volume.SnapshotID) (origin, error) {
		r, err := e.readySnapshot(ctx, id)
		return origin{Size: r.Size, Content: r.Content, FSType: r.FSType, NewUUID: true, At: originFile{Source: s, promised: r.Promised}}, err
	})
	if o == nil || err != nil {
		return nil, err
	}
	if _, err := e.pool.inspect(fileOf(s), o.Size); err != nil {
		return nil, fmt.Errorf("source of the new volume: %w", e.explain(err))
	}
	return o, nil
}

// chooseSize chooses the size; largest is the maximum size of a file in the pool.
func (p plan) chooseSize(from *origin, largest int64) (int64, error) {
	size, err := newvolume.Size(p.Size, p.FSType, from, granule)
	if err == nil && size > largest {
		return 0, errs.Errorf(errs.OutOfRange, "a volume of %d bytes is not possible: files in this pool have at most %d bytes", size, largest)
	}
	return size, err
}

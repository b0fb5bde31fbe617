package enginetest

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

type referenceSnapshot struct {
	volume.Snapshot
	bytes sparse
}

type referenceGroup struct {
	id      volume.GroupID
	name    string
	sources []volume.ID // sorted, without duplicates
	members []volume.SnapshotID
	created time.Time
}

// CreateSnapshot implements volume.Snapshots.
func (r *Reference) CreateSnapshot(ctx context.Context, req volume.SnapshotRequest) (volume.Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return volume.Snapshot{}, err
	}
	if err := checkName(req.Name); err != nil {
		return volume.Snapshot{}, err
	}
	if err := checkNoParameters(req.Parameters); err != nil {
		return volume.Snapshot{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.snapshots {
		if s.Group != "" || s.Name != req.Name {
			continue
		}
		if s.Source != req.Source {
			return volume.Snapshot{}, errs.Errorf(errs.Exists, "snapshot %q exists and is a snapshot of volume %s", req.Name, s.Source)
		}
		return s.Snapshot, nil
	}
	v, err := r.volume(req.Source)
	if err != nil {
		return volume.Snapshot{}, err
	}
	return r.takeSnapshot(v, req.Name, "").Snapshot, nil
}

func (r *Reference) takeSnapshot(v *referenceVolume, name string, group volume.GroupID) *referenceSnapshot {
	s := &referenceSnapshot{
		Snapshot: volume.Snapshot{
			ID: volume.NewSnapshotID(""), Name: name, Source: v.ID, Size: v.Size, Content: v.Content, FSType: v.FSType,
			Created: time.Now(), Ready: true, Group: group,
		},
		bytes: maps.Clone(v.bytes),
	}
	r.snapshots[s.ID] = s
	return s
}

// DeleteSnapshot implements volume.Snapshots.
func (r *Reference) DeleteSnapshot(ctx context.Context, id volume.SnapshotID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if s := r.snapshots[id]; s != nil && s.Group != "" {
		return errs.Errorf(errs.Invalid, "snapshot %s is a member of group %s and is deleted with it", id, s.Group)
	}
	delete(r.snapshots, id)
	return nil
}

// GetSnapshot implements volume.Snapshots.
func (r *Reference) GetSnapshot(ctx context.Context, id volume.SnapshotID) (volume.Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return volume.Snapshot{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.snapshot(id)
	if err != nil {
		return volume.Snapshot{}, err
	}
	return s.Snapshot, nil
}

// ListSnapshots implements volume.Snapshots.
func (r *Reference) ListSnapshots(ctx context.Context, query volume.SnapshotQuery) ([]volume.Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []volume.Snapshot
	for _, id := range slices.Sorted(maps.Keys(r.snapshots)) {
		s := r.snapshots[id]
		if id > query.After && (query.Source == "" || s.Source == query.Source) && (query.Limit == 0 || len(all) < query.Limit) {
			all = append(all, s.Snapshot)
		}
	}
	return all, nil
}

// CreateGroup implements volume.Groups.
func (r *Reference) CreateGroup(ctx context.Context, req volume.GroupRequest) (volume.Group, error) {
	if err := ctx.Err(); err != nil {
		return volume.Group{}, err
	}
	if err := checkGroup(req); err != nil {
		return volume.Group{}, err
	}
	sources := slices.Compact(slices.Sorted(slices.Values(req.Sources)))
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, g := range r.groups {
		if g.name != req.Name {
			continue
		}
		if !slices.Equal(g.sources, sources) {
			return volume.Group{}, errs.Errorf(errs.Exists, "group %q exists with the volumes %v", req.Name, g.sources)
		}
		return r.groupOf(g), nil
	}
	for _, id := range sources {
		if _, err := r.volume(id); err != nil {
			return volume.Group{}, err
		}
	}
	g := &referenceGroup{id: volume.NewGroupID(""), name: req.Name, sources: sources, created: time.Now()}
	for _, id := range sources {
		v := r.volumes[id]
		g.members = append(g.members, r.takeSnapshot(v, req.Name+"/"+v.Name, g.id).ID)
	}
	r.groups[g.id] = g
	return r.groupOf(g), nil
}

func (r *Reference) groupOf(g *referenceGroup) volume.Group {
	out := volume.Group{ID: g.id, Name: g.name, Created: g.created, Ready: true}
	for _, id := range g.members {
		out.Snapshots = append(out.Snapshots, r.snapshots[id].Snapshot)
	}
	return out
}

// DeleteGroup implements volume.Groups.
func (r *Reference) DeleteGroup(ctx context.Context, id volume.GroupID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.groups[id]; g != nil {
		for _, member := range g.members {
			delete(r.snapshots, member)
		}
	}
	delete(r.groups, id)
	return nil
}

// GetGroup implements volume.Groups.
func (r *Reference) GetGroup(ctx context.Context, id volume.GroupID) (volume.Group, error) {
	if err := ctx.Err(); err != nil {
		return volume.Group{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if g := r.groups[id]; g != nil {
		return r.groupOf(g), nil
	}
	return volume.Group{}, errs.Errorf(errs.NotFound, "group %q does not exist", id)
}

// Allocated implements volume.Deltas.
func (r *Reference) Allocated(ctx context.Context, id volume.SnapshotID, from int64) (volume.BlockMap, error) {
	if err := ctx.Err(); err != nil {
		return volume.BlockMap{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s, err := r.snapshot(id)
	if err != nil {
		return volume.BlockMap{}, err
	}
	return blockMap(s, slices.Collect(maps.Keys(s.bytes)), from)
}

// Delta implements volume.Deltas.
func (r *Reference) Delta(ctx context.Context, base, target volume.SnapshotID, from int64) (volume.BlockMap, error) {
	if err := ctx.Err(); err != nil {
		return volume.BlockMap{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	b, err := r.snapshot(base)
	if err != nil {
		return volume.BlockMap{}, err
	}
	s, err := r.snapshot(target)
	if err != nil {
		return volume.BlockMap{}, err
	}
	if b.Source != s.Source {
		return volume.BlockMap{}, errs.Errorf(errs.Invalid, "snapshots %s and %s are of different volumes, %s and %s", base, target, b.Source, s.Source)
	}
	return blockMap(s, s.bytes.differs(b.bytes), from)
}

func blockMap(s *referenceSnapshot, blocks []int64, from int64) (volume.BlockMap, error) {
	if from < 0 || from > s.Size {
		return volume.BlockMap{}, errs.Errorf(errs.OutOfRange, "offset %d is outside the %d bytes of snapshot %s", from, s.Size, s.ID)
	}
	// A later base can be larger.
	blocks = slices.DeleteFunc(blocks, func(number int64) bool { return number*sparseBlock >= s.Size })
	ranges := rangesOf(blocks, from)
	return volume.BlockMap{Size: s.Size, Ranges: func(yield func(volume.Range, error) bool) {
		for _, r := range ranges {
			if !yield(r, nil) {
				return
			}
		}
	}}, nil
}

func (r *Reference) snapshot(id volume.SnapshotID) (*referenceSnapshot, error) {
	if s := r.snapshots[id]; s != nil {
		return s, nil
	}
	return nil, errs.Errorf(errs.NotFound, "snapshot %q does not exist", id)
}

func checkGroup(req volume.GroupRequest) error {
	if len(req.Sources) == 0 {
		return errs.Errorf(errs.Invalid, "a group needs at least one volume")
	}
	for key, value := range req.Parameters {
		if key != "consistency" || (value != "group" && value != "member") {
			return errs.Errorf(errs.Invalid, "parameter %s=%q is not known; known is consistency with group or member", key, value)
		}
	}
	return checkName(req.Name)
}

func checkNoParameters(parameters map[string]string) error {
	for key := range parameters {
		return errs.Errorf(errs.Invalid, "parameter %s is not known; snapshots have no parameters", key)
	}
	return nil
}

func rangesOf(blocks []int64, from int64) []volume.Range {
	slices.SortFunc(blocks, cmp.Compare)
	var out []volume.Range
	for _, b := range blocks {
		r := volume.Range{Offset: b * sparseBlock, Length: sparseBlock}
		if n := len(out); n > 0 && out[n-1].End() == r.Offset {
			out[n-1].Length += r.Length
			continue
		}
		out = append(out, r)
	}
	return slices.DeleteFunc(out, func(r volume.Range) bool { return r.End() <= from })
}

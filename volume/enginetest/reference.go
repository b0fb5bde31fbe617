package enginetest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	referenceGranule  = 4096
	referenceMinimum  = 1 << 20
	referenceFallback = 1 << 30
	referenceCapacity = 1 << 40
)

// Reference is an in-memory engine with every ability, simple rather than fast.
// The property test compares other engines with it. For fewer abilities, set
// fields of the Backend to nil.
type Reference struct {
	mu        sync.Mutex
	pool      string
	volumes   map[volume.ID]*referenceVolume
	snapshots map[volume.SnapshotID]*referenceSnapshot
	groups    map[volume.GroupID]*referenceGroup
	storage   []volume.Condition
}

type referenceVolume struct {
	volume.Volume
	parameters map[string]string // of the request
	conditions []volume.Condition
	bytes      sparse
	holds      int
}

// NewReference returns an empty reference engine with a capacity of 1 TiB.
func NewReference() *Reference {
	return &Reference{
		pool:      uuid.NewString(),
		volumes:   map[volume.ID]*referenceVolume{},
		snapshots: map[volume.SnapshotID]*referenceSnapshot{},
		groups:    map[volume.GroupID]*referenceGroup{},
	}
}

// Backend returns the engine with all its abilities.
func (r *Reference) Backend() volume.Backend {
	keys := referenceParameters()
	return volume.Backend{
		Engine: r, Snapshots: r, Groups: r, Deltas: r, Modifier: r, Health: r,
		Clones: true, Parameters: keys, Mutable: keys,
	}
}

// Create implements volume.Engine.
func (r *Reference) Create(ctx context.Context, req volume.CreateRequest) (volume.Volume, error) {
	if err := ctx.Err(); err != nil {
		return volume.Volume{}, err
	}
	req, err := checkCreate(req)
	if err != nil {
		return volume.Volume{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.volumeNamed(req.Name); v != nil {
		if err := v.sameAs(req); err != nil {
			return volume.Volume{}, err
		}
		return v.copy(), nil
	}
	v, err := r.newVolume(req)
	if err != nil {
		return volume.Volume{}, err
	}
	r.volumes[v.ID] = v
	return v.copy(), nil
}

func (r *Reference) newVolume(req volume.CreateRequest) (*referenceVolume, error) {
	bytes, atLeast, err := r.sourceOf(req)
	if err != nil {
		return nil, err
	}
	fallback := int64(referenceFallback)
	if atLeast > 0 {
		fallback = atLeast
	}
	size, err := req.Size.Choose(fallback, max(atLeast, referenceMinimum), referenceGranule)
	if err != nil {
		return nil, err
	}
	if free := referenceCapacity - r.used(); size > free {
		return nil, errs.Errorf(errs.Exhausted, "%d bytes requested, %d available", size, free)
	}
	id := volume.NewID("")
	attributes := referenceDefaults()
	maps.Copy(attributes, req.Parameters)
	return &referenceVolume{
		Volume: volume.Volume{
			ID: id, Name: req.Name, Size: size, Content: req.Content, FSType: req.FSType, Source: req.Source,
			Locator:   access.File{Pool: r.pool, Name: "volumes/" + string(id)},
			Ephemeral: req.Ephemeral, Attributes: attributes, Created: time.Now(),
		},
		parameters: maps.Clone(req.Parameters),
		bytes:      bytes,
	}, nil
}

func (r *Reference) sourceOf(req volume.CreateRequest) (sparse, int64, error) {
	var content volume.Content
	var fsType string
	var bytes sparse
	var size int64
	switch {
	case req.Source.IsZero():
		return sparse{}, 0, nil
	case req.Source.Volume != "":
		v, err := r.volume(req.Source.Volume)
		if err != nil {
			return nil, 0, err
		}
		content, fsType, bytes, size = v.Content, v.FSType, v.bytes, v.Size
	default:
		s, err := r.snapshot(req.Source.Snapshot)
		if err != nil {
			return nil, 0, err
		}
		content, fsType, bytes, size = s.Content, s.FSType, s.bytes, s.Size
	}
	if req.Content == volume.Filesystem && (content != req.Content || fsType != req.FSType) {
		return nil, 0, errs.Errorf(errs.Invalid, "the source has content %s %s, so a volume with %s cannot be created from it", content, fsType, req.FSType)
	}
	return maps.Clone(bytes), size, nil
}

// Delete implements volume.Engine.
func (r *Reference) Delete(ctx context.Context, id volume.ID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if v := r.volumes[id]; v != nil && v.holds > 0 {
		return errs.Errorf(errs.Precondition, "volume %s is in use; release it first", id)
	}
	delete(r.volumes, id)
	return nil
}

// Get implements volume.Engine.
func (r *Reference) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	if err := ctx.Err(); err != nil {
		return volume.Volume{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v, err := r.volume(id)
	if err != nil {
		return volume.Volume{}, err
	}
	return v.copy(), nil
}

// List implements volume.Engine.
func (r *Reference) List(ctx context.Context, after volume.ID, limit int) ([]volume.Volume, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []volume.Volume
	for _, id := range slices.Sorted(maps.Keys(r.volumes)) {
		if id > after && (limit == 0 || len(all) < limit) {
			all = append(all, r.volumes[id].copy())
		}
	}
	return all, nil
}

// Expand implements volume.Engine.
func (r *Reference) Expand(ctx context.Context, id volume.ID, size volume.SizeRange) (volume.Volume, error) {
	if err := ctx.Err(); err != nil {
		return volume.Volume{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v, err := r.volume(id)
	if err != nil {
		return volume.Volume{}, err
	}
	if err := checkRange(size); err != nil {
		return volume.Volume{}, err
	}
	if size.Limit != 0 && v.Size > size.Limit {
		return volume.Volume{}, errs.Errorf(errs.OutOfRange, "volume %s has %d bytes, but the request is for %s; volumes cannot shrink", id, v.Size, size)
	}
	want, err := size.Choose(v.Size, v.Size, referenceGranule)
	if err != nil {
		return volume.Volume{}, err
	}
	if free := referenceCapacity - r.used(); want-v.Size > free {
		return volume.Volume{}, errs.Errorf(errs.OutOfRange, "%d more bytes requested, %d available", want-v.Size, free)
	}
	v.Size = want
	return v.copy(), nil
}

// Capacity implements volume.Engine.
func (r *Reference) Capacity(ctx context.Context, query volume.CapacityQuery) (volume.Capacity, error) {
	if err := ctx.Err(); err != nil {
		return volume.Capacity{}, err
	}
	if err := checkParameters(query.Parameters); err != nil {
		return volume.Capacity{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	free := referenceCapacity - r.used()
	return volume.Capacity{Available: free, Maximum: free, Minimum: referenceMinimum}, nil
}

// Modify implements volume.Modifier.
func (r *Reference) Modify(ctx context.Context, id volume.ID, parameters map[string]string) (volume.Volume, error) {
	if err := ctx.Err(); err != nil {
		return volume.Volume{}, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	v, err := r.volume(id)
	if err != nil {
		return volume.Volume{}, err
	}
	if err := checkParameters(parameters); err != nil {
		return volume.Volume{}, err
	}
	maps.Copy(v.Attributes, parameters)
	return v.copy(), nil
}

func (r *Reference) volume(id volume.ID) (*referenceVolume, error) {
	if v := r.volumes[id]; v != nil {
		return v, nil
	}
	return nil, errs.Errorf(errs.NotFound, "volume %q does not exist", id)
}

func (r *Reference) volumeNamed(name string) *referenceVolume {
	for _, v := range r.volumes {
		if v.Name == name {
			return v
		}
	}
	return nil
}

func (r *Reference) used() (sum int64) {
	for _, v := range r.volumes {
		sum += v.Size
	}
	return sum
}

func (v *referenceVolume) copy() volume.Volume {
	out := v.Volume
	out.Attributes = maps.Clone(v.Attributes)
	return out
}

func (v *referenceVolume) sameAs(req volume.CreateRequest) error {
	switch {
	case !req.Size.Admits(v.Size):
		return errs.Errorf(errs.Exists, "volume %q exists with %d bytes, which the requested size excludes", v.Name, v.Size)
	case v.Content != req.Content || v.FSType != req.FSType:
		return errs.Errorf(errs.Exists, "volume %q exists with content %s %s", v.Name, v.Content, v.FSType)
	case v.Source != req.Source:
		return errs.Errorf(errs.Exists, "volume %q exists and was created from another source", v.Name)
	case !maps.Equal(v.parameters, req.Parameters) || v.Ephemeral != req.Ephemeral:
		return errs.Errorf(errs.Exists, "volume %q exists and was created with other parameters", v.Name)
	}
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/driver"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// poolID is the pool in locators. A product would have one for each share.
const poolID = "2f1c8d5e-6f0a-4c3b-9d57-3a1be0c0ffee"

const (
	granule     = 1 << 20
	defaultSize = 1 << 30
	largest     = 1 << 43
)

// engine implements volume.Engine. A record has one of three phases, so that a process
// that is killed between any two steps leaves nothing that the next does not finish:
// creating and deleting volumes are removed by open.
type engine struct {
	share   string
	records driver.Records[record]
	mu      sync.Mutex        // of all changes
	step    func(name string) // for tests: what has just been done
}

type record struct {
	Name, FSType string
	Content      volume.Content
	Size         int64
	Ephemeral    bool
	Created      time.Time
	Phase        phase
}

type phase string

const (
	creating phase = "creating"
	ready    phase = "ready"
	deleting phase = "deleting"
)

func open(ctx context.Context, share string, state driver.State) (*engine, error) {
	e := &engine{share: share, records: driver.Records[record]{State: state, Name: "volumes"}, step: func(string) {}}
	all, err := e.records.All(ctx)
	for id, r := range all {
		if err == nil && r.Phase != ready {
			err = e.remove(ctx, volume.ID(id))
		}
	}
	return e, err
}

func (e *engine) path(id volume.ID) string { return filepath.Join(e.share, string(id)) }

// Create implements volume.Engine. A volume is sparse: it takes space as it is written.
func (e *engine) Create(ctx context.Context, req volume.CreateRequest) (volume.Volume, error) {
	r, err := plan(req)
	if err != nil {
		return volume.Volume{}, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if id, old, err := e.named(ctx, req.Name); err != nil || old.Name != "" {
		if err == nil && (r.Content != old.Content || r.Ephemeral != old.Ephemeral || req.FSType != "" && req.FSType != old.FSType || !req.Size.Admits(old.Size)) {
			err = errs.Errorf(errs.Exists, "volume %s has the name %s, and another size, content or file system", id, errs.Quote(req.Name))
		}
		return e.volume(id, old), err
	}
	id := volume.NewID(poolID)
	if err := e.records.State.Spare(ctx); err != nil {
		return volume.Volume{}, errs.Errorf(errs.Exhausted, "no space for the record of a volume: %w", err)
	}
	if err := e.records.Put(ctx, string(id), r); err != nil {
		return volume.Volume{}, err
	}
	e.step("create.recorded")
	if err := e.fill(id, r.Size); err != nil {
		return volume.Volume{}, errors.Join(err, e.remove(context.WithoutCancel(ctx), id))
	}
	e.step("create.filled")
	r.Phase = ready
	if err := e.records.Put(context.WithoutCancel(ctx), string(id), r); err != nil {
		return volume.Volume{}, err
	}
	return e.volume(id, r), nil
}

// plan checks a request. It is pure.
func plan(req volume.CreateRequest) (record, error) {
	r := record{Name: req.Name, FSType: req.FSType, Content: req.Content, Ephemeral: req.Ephemeral, Created: time.Now(), Phase: creating}
	if r.Content == volume.Filesystem && r.FSType == "" {
		r.FSType = "ext4"
	}
	for key := range req.Parameters {
		return r, errs.Errorf(errs.Invalid, "parameter %s is not known: this driver has none", errs.Quote(key))
	}
	switch {
	case req.Name == "":
		return r, errs.Errorf(errs.Invalid, "the name is empty")
	case !req.Source.IsZero():
		return r, errs.Errorf(errs.Invalid, "this driver has neither snapshots nor clones")
	case r.Content != volume.Raw && r.Content != volume.Filesystem:
		return r, errs.Errorf(errs.Invalid, "content %s is not possible: use raw or filesystem", errs.Quote(string(r.Content)))
	case r.Content == volume.Raw && r.FSType != "":
		return r, errs.Errorf(errs.Invalid, "a raw volume has no file system %s", errs.Quote(r.FSType))
	case r.Content == volume.Filesystem && !slices.Contains([]string{"ext4", "xfs", "btrfs"}, r.FSType): // what a node can make
		return r, errs.Errorf(errs.Invalid, "file system %s is not known: use ext4, xfs or btrfs", errs.Quote(r.FSType))
	case req.Size.Required < 0, req.Size.Limit < 0, req.Size.Required > largest, req.Size.Limit > 0 && req.Size.Limit < req.Size.Required:
		return r, errs.Errorf(errs.OutOfRange, "a size of %s is not possible: use 1 MiB to 8 TiB", req.Size)
	}
	var err error
	r.Size, err = req.Size.Choose(defaultSize, granule, granule)
	return r, err
}

// fill gives a volume its size. It can be repeated.
func (e *engine) fill(id volume.ID, size int64) error {
	f, err := os.OpenFile(e.path(id), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(size), f.Sync(), f.Close(), syncDir(e.share))
}

// Delete implements volume.Engine.
func (e *engine) Delete(ctx context.Context, id volume.ID) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	r, found, err := e.records.Get(ctx, string(id))
	if err != nil || !found {
		return err
	}
	r.Phase = deleting
	if err := e.records.Put(ctx, string(id), r); err != nil {
		return err
	}
	e.step("delete.recorded")
	return e.remove(context.WithoutCancel(ctx), id)
}

// remove removes the file, then the record.
func (e *engine) remove(ctx context.Context, id volume.ID) error {
	if err := os.Remove(e.path(id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := syncDir(e.share); err != nil {
		return err
	}
	e.step("remove.file")
	return e.records.Delete(ctx, string(id))
}

// Get implements volume.Engine.
func (e *engine) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	r, found, err := e.records.Get(ctx, string(id))
	if err == nil && (!found || r.Phase != ready) {
		err = errs.Errorf(errs.NotFound, "no volume has the id %s", errs.Quote(string(id)))
	}
	return e.volume(id, r), err
}

// List implements volume.Engine.
func (e *engine) List(ctx context.Context, after volume.ID, limit int) (list []volume.Volume, err error) {
	all, err := e.records.All(ctx)
	for id, r := range all {
		if r.Phase == ready && volume.ID(id) > after {
			list = append(list, e.volume(volume.ID(id), r))
		}
	}
	slices.SortFunc(list, func(a, b volume.Volume) int { return strings.Compare(string(a.ID), string(b.ID)) })
	if limit > 0 && len(list) > limit {
		list = list[:limit]
	}
	return list, err
}

// Expand implements volume.Engine.
func (e *engine) Expand(ctx context.Context, id volume.ID, size volume.SizeRange) (volume.Volume, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	v, err := e.Get(ctx, id)
	if err != nil {
		return v, err
	}
	grown, err := plan(volume.CreateRequest{Name: v.Name, Content: volume.Raw, Size: size})
	switch {
	case err != nil:
		return v, err
	case size.Limit != 0 && v.Size > size.Limit:
		return v, errs.Errorf(errs.OutOfRange, "volume %s has %d bytes, more than the limit of %d", id, v.Size, size.Limit)
	case v.Size >= size.Required:
		return v, nil
	}
	if err := e.fill(id, grown.Size); err != nil {
		return v, err
	}
	e.step("expand.filled")
	err = e.records.Change(ctx, string(id), func(now record, found bool) (record, bool, error) {
		now.Size = grown.Size
		return now, found, nil
	})
	v.Size = grown.Size
	return v, err
}

// Capacity implements volume.Engine.
func (e *engine) Capacity(ctx context.Context, q volume.CapacityQuery) (volume.Capacity, error) {
	if _, err := plan(volume.CreateRequest{Name: "any", Content: volume.Raw, Parameters: q.Parameters}); err != nil {
		return volume.Capacity{}, err
	}
	var s unix.Statfs_t
	if err := unix.Statfs(e.share, &s); err != nil {
		return volume.Capacity{}, errs.Errorf(errs.Unavailable, "the share %s: %w", e.share, err)
	}
	return volume.Capacity{Available: int64(s.Bavail) * s.Bsize, Minimum: granule, Maximum: largest}, ctx.Err()
}

// named returns the volume of a name, with an empty record if it does not exist.
func (e *engine) named(ctx context.Context, name string) (volume.ID, record, error) {
	all, err := e.records.All(ctx)
	for id, r := range all {
		if r.Name != name {
			continue
		}
		if r.Phase == ready {
			return volume.ID(id), r, err
		}
		if err := e.remove(ctx, volume.ID(id)); err != nil { // of a call that failed
			return "", record{}, err
		}
	}
	return "", record{}, err
}

func (e *engine) volume(id volume.ID, r record) volume.Volume {
	return volume.Volume{
		ID: id, Name: r.Name, Size: r.Size, Content: r.Content, FSType: r.FSType, Ephemeral: r.Ephemeral, Created: r.Created,
		Locator: access.File{Pool: poolID, Name: string(id)},
	}
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("the share: %w", err)
	}
	return errors.Join(d.Sync(), d.Close())
}

//go:build ceph

package ceph

import (
	"context"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ceph/go-ceph/rbd"

	"github.com/cleatproject/cleat/internal/crashpoint"
)

// reaper removes the images of deleted volumes. One that a snapshot or clone
// needs stays; it is tried again when a snapshot or child of it is removed, and
// at intervals, as the cluster's manager flattens children without notice, and
// clients that died are given up after 30 s.
type reaper struct {
	e       *Engine
	stop    func()
	changed chan struct{} // has an element if due is not empty

	mu      sync.Mutex
	due     []remains
	waiting map[remains]bool
}

// remains names the image of a deleted volume, which does not have to exist.
type remains struct {
	pool  *pool
	image string // internal id at its creation
}

const (
	reapInterval = 30 * time.Second
	reapWorkers  = 4
)

func newReaper(e *Engine) *reaper {
	ctx, cancel := context.WithCancel(context.Background())
	r := &reaper{e: e, changed: make(chan struct{}, 1), waiting: map[remains]bool{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.run(ctx)
	}()
	r.stop = func() {
		cancel()
		<-done
	}
	return r
}

// add has the image of a deleted volume, if it is one, tried soon.
func (r *reaper) add(p *pool, image string) {
	r.mu.Lock()
	r.due = append(r.due, remains{p, image})
	r.mu.Unlock()
	r.wake()
}

func (r *reaper) wake() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

func (r *reaper) run(ctx context.Context) {
	ticker := time.NewTicker(reapInterval)
	defer ticker.Stop()
	var running sync.WaitGroup
	defer running.Wait()
	slots := make(chan struct{}, reapWorkers)
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
		case <-ticker.C:
			r.retry()
		}
		for item, ok := r.next(); ok && ctx.Err() == nil; item, ok = r.next() {
			slots <- struct{}{}
			running.Go(func() {
				r.try(ctx, item)
				<-slots
			})
		}
	}
}

func (r *reaper) next() (item remains, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.due) == 0 {
		return remains{}, false
	}
	item, r.due = r.due[0], r.due[1:]
	return item, true
}

func (r *reaper) retry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for item := range r.waiting {
		r.due = append(r.due, item)
	}
}

func (r *reaper) try(ctx context.Context, item remains) {
	again, err := mutate(ctx, r.e.Connection, "remove image "+deletedName(item.image), []string{"image:" + item.image}, func() (bool, error) { return r.e.reap(item) })
	if err != nil && ctx.Err() == nil {
		r.e.logger.Warn("removal of a deleted volume's image failed, will retry", "image", deletedName(item.image), "err", err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if delete(r.waiting, item); again || err != nil {
		r.waiting[item] = true
	}
}

// reap removes an image and has its parent tried. again: a hidden snapshot, a
// client or the cluster prevents it, of whose end nothing notifies.
func (e *Engine) reap(item remains) (again bool, err error) {
	name := deletedName(item.image)
	i, err := item.pool.inspect(name)
	if is(err, notFound) { // or a removal was interrupted
		err = item.pool.remove(name, "")
		return is(err, syscall.ENOTEMPTY, syscall.EBUSY), err
	}
	if err != nil {
		return false, err
	}
	if i.id != item.image && i.record == nil {
		return false, nil // of another program, and reported with the list of volumes
	}
	for _, s := range i.snapshots {
		if s.name != "" {
			return false, nil
		}
	}
	if err := item.pool.open(name, i.dropUnused); err != nil {
		return false, err
	}
	crashpoint.Hit("reap.released")
	// Checked first: an image that cannot be removed stays out of the trash.
	if i, err = item.pool.inspect(name); err != nil {
		return false, err
	}
	if users, err := e.watchers(i); err != nil || len(users)+len(i.snapshots)+len(i.others) > 0 {
		return true, err
	}
	if err := item.pool.remove(name, ""); is(err, syscall.ENOTEMPTY, syscall.EBUSY) {
		return true, nil
	} else if err != nil {
		return false, err
	}
	crashpoint.Hit("reap.removed")
	if i.parent != nil {
		if p, err := e.poolOf(int64(i.parent.Image.PoolID), name); err == nil {
			e.reaper.add(p, i.parent.Image.ImageID)
		}
	}
	return false, nil
}

// dropUnused removes what interrupted calls left: temporary snapshots, snapshots
// without metadata, and hidden ones, which no clone needs any more.
func (i *image) dropUnused(r *rbd.Image) error {
	for _, s := range i.others {
		kind, err := r.GetSnapNamespaceType(s.Id)
		if err == nil && (kind == rbd.SnapNamespaceTypeTrash || strings.HasPrefix(s.Name, clonePrefix)) {
			err = r.RemoveSnapByID(s.Id)
		}
		if !is(err, syscall.EBUSY) && ignoreMissing(err) != nil { // EBUSY: a clone needs it
			return err
		}
	}
	for _, s := range i.snapshots {
		if err := ignoreMissing(r.GetSnapshot(snapName(s.hash)).Remove()); err != nil {
			return err
		}
	}
	return nil
}

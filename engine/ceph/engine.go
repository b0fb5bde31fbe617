//go:build ceph

package ceph

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"

	"github.com/ceph/go-ceph/rbd"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/volume"
)

// Config is what an engine serves.
type Config struct {
	Cluster     cephconf.Cluster
	Credentials cephconf.Credentials
	// Pools are the pools of volumes; the first one also has the state of the
	// controller.
	Pools []string
	// nil: no background events
	Logger *slog.Logger
}

// Engine serves the RBD images of some pools. One process at a time changes
// them; if two overlap, no volume is lost or exists twice.
type Engine struct {
	*Connection
	index  *index
	reaper *reaper
	depths depthLimits
	// groups: librbd can restore volumes from members of groups.
	groups bool
}

// Open connects to the cluster and lists its volumes. Errors: Unavailable (no
// answer), Unauthenticated (key), NotFound (pool).
func Open(ctx context.Context, c Config) (*Engine, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if len(c.Pools) == 0 {
		return nil, errs.Errorf(errs.Invalid, "no pool of Ceph cluster %s is named", c.Cluster.ID)
	}
	conn, err := connect(ctx, c.Cluster, c.Credentials, c.Logger, func(conn *Connection) error { return conn.openPools(c) })
	if err != nil {
		return nil, err
	}
	e := &Engine{Connection: conn, index: newIndex(), depths: defaultDepths()}
	e.reaper = newReaper(e)
	if err := e.takeOver(ctx); err != nil {
		e.logger.Warn("earlier controllers are not fenced", "err", err)
	}
	e.groups, err = call(ctx, conn, "look up what librbd can clone", func() (bool, error) { return conn.pools[0].canCloneMembers(), nil })
	if err == nil {
		err = e.fill(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("list the volumes of Ceph cluster %s: %w", c.Cluster.ID, joinClose(ctx, err, e))
	}
	return e, nil
}

func joinClose(ctx context.Context, err error, e *Engine) error {
	if closing := e.Close(ctx); closing != nil {
		e.logger.Warn("connection to Ceph not closed", "err", closing)
	}
	return err
}

// Close ends background work and the connection. It is idempotent.
func (e *Engine) Close(ctx context.Context) error {
	e.reaper.stop()
	return e.Connection.close(ctx)
}

// Backend returns the abilities of RBD.
func (e *Engine) Backend() volume.Backend {
	b := volume.Backend{
		Engine: e, Snapshots: e, Deltas: e, Health: e,
		Clones: true, MultiNode: true, FormatOnNode: true,
		Parameters: parameterKeys(),
	}
	if e.groups {
		b.Groups = e
	}
	return b
}

// fill fills the index. Images are opened by several workers, as each takes
// some round trips.
func (e *Engine) fill(ctx context.Context) error {
	for _, p := range e.pools {
		names, err := call(ctx, e.Connection, "list the images of pool "+p.name, func() ([]string, error) { return e.list(p) })
		if err != nil {
			return err
		}
		_, err = call(ctx, e.Connection, "read the interrupted creations of pool "+p.name, func() (struct{}, error) { return struct{}{}, p.endCreations(p.hasEnded) })
		if err != nil {
			return err
		}
		_, err = call(ctx, e.Connection, "read the groups of pool "+p.name, func() (struct{}, error) { return struct{}{}, e.endGroups(p) })
		if err != nil {
			return err
		}
		if err := e.fillPool(ctx, p, names); err != nil {
			return err
		}
	}
	return nil
}

// list returns the images of a pool. It has the reaper try those in librbd's
// trash, where an interrupted removal leaves them.
func (e *Engine) list(p *pool) ([]string, error) {
	trash, err := rbd.GetTrashList(p.io)
	if err != nil {
		return nil, explain(err, "list the trash of pool %s", p.name)
	}
	for _, t := range trash {
		if image, deleted := strings.CutPrefix(t.Name, deletedPrefix); deleted {
			e.reaper.add(p, image)
		}
	}
	names, err := rbd.GetImageNames(p.io)
	return names, explain(err, "list the images of pool %s", p.name)
}

const fillWorkers = 8

func (e *Engine) fillPool(ctx context.Context, p *pool, names []string) error {
	work := make(chan string)
	failed := make(chan error, fillWorkers)
	var workers sync.WaitGroup
	for range fillWorkers {
		workers.Go(func() {
			var first error
			for name := range work {
				if err := e.fillImage(ctx, p, name); err != nil && first == nil {
					first = err
				}
			}
			failed <- first
		})
	}
	for _, name := range names {
		if strings.HasPrefix(name, volumePrefix) || strings.HasPrefix(name, deletedPrefix) {
			work <- name
		}
	}
	close(work)
	workers.Wait()
	close(failed)
	for err := range failed {
		if err != nil {
			return err
		}
	}
	return nil
}

func (e *Engine) fillImage(ctx context.Context, p *pool, name string) error {
	id, deleted := strings.CutPrefix(name, deletedPrefix)
	if deleted {
		e.reaper.add(p, id)
	}
	i, err := call(ctx, e.Connection, "read image "+name, func() (*image, error) { return p.inspect(name) })
	if is(err, notFound) {
		return nil // its creation or removal was interrupted
	}
	if errors.Is(err, errDamaged) {
		e.logger.Error("volume left out", "err", err)
		return nil
	}
	if err != nil {
		return err
	}
	if i.record == nil {
		if !i.isMaking && (!deleted || i.id != id) {
			e.logger.Error("volume left out", "err", i.noRecord())
		}
		return nil
	}
	if !deleted {
		e.index.put(i.volume())
	} else if err := e.finishRename(ctx, i); err != nil {
		return err
	}
	for _, s := range i.snapshots {
		complete, err := call(ctx, e.Connection, "read the group of a snapshot of image "+name, func() (bool, error) { return e.isComplete(s) })
		if err != nil && errs.KindOf(err) != errs.Precondition { // its group is in a pool that is not served any more
			return err
		}
		if complete {
			e.index.putSnapshot(i.snapshot(s))
		}
	}
	return nil
}

// finishRename removes the old name of a deleted volume's image, which a new
// volume of that name would find.
func (e *Engine) finishRename(ctx context.Context, i *image) error {
	_, err := call(ctx, e.Connection, "remove the old name of image "+i.name, func() (struct{}, error) {
		old, err := i.pool.inspect(imageName(hash(i.record.Name)))
		if err == nil && old.id == i.id {
			err = i.pool.dropID(old.name)
		}
		return struct{}{}, ignoreMissing(err)
	})
	return err
}

// Get implements volume.Engine.
func (e *Engine) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	return call(ctx, e.Connection, "get volume "+errs.Quote(string(id)), func() (volume.Volume, error) {
		i, err := e.find(id)
		if err != nil {
			return volume.Volume{}, err
		}
		return i.volume(), nil
	})
}

// List implements volume.Engine.
func (e *Engine) List(ctx context.Context, after volume.ID, limit int) ([]volume.Volume, error) {
	if ctx.Err() != nil {
		return nil, late(ctx, "list volumes")
	}
	return e.index.list(after, limit), nil
}

// find returns the image of a volume. NotFound: nothing of it exists.
func (e *Engine) find(id volume.ID) (*image, error) {
	if h, foreign := parseHandle(id); foreign {
		return e.adopt(id, h)
	}
	v, own := parseVolumeID(id)
	if !own {
		return nil, noVolume(id)
	}
	p, err := e.poolOf(v.pool, string(id))
	if errors.Is(err, errNoPool) {
		return nil, cmp.Or(e.notElsewhere(nil, v), err)
	}
	if err != nil {
		return nil, err
	}
	i, err := p.inspect(imageName(v.hash))
	switch {
	case ignoreMissing(err) != nil:
		return nil, err
	case err == nil && i.record != nil && i.record.Image == v.image:
		return i, nil
	case err == nil && i.record == nil && !i.isMaking:
		return nil, i.noRecord()
	}
	if err := e.missing(p, v); err != nil {
		return nil, err
	}
	e.index.drop(id)
	return nil, noVolume(id)
}

func noVolume(id volume.ID) error {
	if strings.HasPrefix(string(id), "mig_") {
		return errs.Errorf(errs.Precondition, "volume %s is of Kubernetes' former RBD plugin, and has no record of this driver; docs/ceph.md, Adopt an image, says how it gets one", errs.Quote(string(id)))
	}
	return errs.Errorf(errs.NotFound, "volume %s does not exist", errs.Quote(string(id)))
}

// poolOf returns the pool in the id of an object; poolOutside has the errors. The
// monitors are asked: this client's map can lack a pool that is new.
func (e *Engine) poolOf(id int64, object string) (*pool, error) {
	for _, p := range e.pools {
		if p.id == id {
			return p, nil
		}
	}
	dump, status, err := e.rados.MonCommand([]byte(`{"prefix":"osd dump","format":"json"}`))
	if err != nil {
		return nil, commandError(err, status, "look up pool %d", id)
	}
	return nil, poolOutside(dump, id, object, e.cluster.ID)
}

func (e *Engine) poolNamed(name string) *pool {
	for _, p := range e.pools {
		if p.name == name {
			return p
		}
	}
	return nil
}

func (e *Engine) poolNames() []string {
	var names []string
	for _, p := range e.pools {
		names = append(names, p.name)
	}
	return names
}

//go:build ceph

package ceph

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/ceph/go-ceph/cephfs"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// FSConfig is what an FS serves.
type FSConfig struct {
	Cluster     cephconf.Cluster
	Credentials cephconf.Credentials
	// FS is the name of the file system; empty: the cluster has only one.
	FS string
	// Interval of polling running copies; zero is a second.
	Interval time.Duration
	// nil: no background events
	Logger *slog.Logger
}

// FS serves the subvolumes of one group of a CephFS file system. One process at
// a time changes them; if two overlap, no volume is lost or exists twice.
type FS struct {
	*Connection
	user    string // of Ceph
	name    string // of the file system
	id      int64
	root    string    // path of the group
	data    []poolRef // of the file system
	manager fsManager
	mount   *fsMount
	index   *index
	copies  *copies
	clients sessionCache
	leftOut []string // subvolumes whose record could not be read at the start
}

// stateNamespace and the name of the group are the namespace of the metadata
// pool with the state of the controller.
const stateNamespace = "cleat/"

// OpenFS connects to the cluster and lists its volumes. Errors: Unavailable (no
// answer), Unauthenticated (key), Denied (capabilities), NotFound (file system).
func OpenFS(ctx context.Context, c FSConfig) (*FS, error) {
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	e := &FS{index: newIndex(), user: c.Credentials.User}
	conn, err := connect(ctx, c.Cluster, c.Credentials, c.Logger, func(conn *Connection) error {
		e.Connection = conn
		return e.choose(c.FS)
	})
	if err != nil {
		return nil, err
	}
	e.Connection = conn
	e.copies = newCopies(e, c.Interval)
	if err := e.takeOver(ctx); err != nil {
		e.logger.Warn("earlier controllers are not fenced", "err", err)
	}
	_, err = call(ctx, conn, "list the volumes of file system "+e.name, func() (struct{}, error) { return struct{}{}, e.start() })
	if err != nil {
		if closing := e.Close(ctx); closing != nil {
			e.logger.Warn("connection to Ceph not closed", "err", closing)
		}
		return nil, fmt.Errorf("open the file system of Ceph cluster %s: %w", c.Cluster.ID, err)
	}
	return e, nil
}

// choose finds the file system and opens its metadata pool.
func (e *FS) choose(name string) error {
	out, status, err := e.rados.MonCommand([]byte(`{"prefix":"fs ls","format":"json"}`))
	if err != nil {
		return commandError(err, status, "list the file systems of Ceph cluster %s", e.cluster.ID)
	}
	fs, err := chooseFS(out, name)
	if err != nil {
		return err
	}
	e.name = fs.Name
	for i, pool := range fs.DataPools {
		e.data = append(e.data, poolRef{pool, fs.DataPoolIDs[i]})
	}
	_, err = e.openPool(fs.MetadataPool, stateNamespace+e.cluster.CephFS.Group())
	return err
}

func (e *FS) start() error {
	e.manager = fsManager{conn: e.Connection, fs: e.name, group: e.cluster.CephFS.Group()}
	e.root = "/volumes/" + e.manager.group
	if err := e.manager.makeGroup(); err != nil {
		return err
	}
	e.mount = &fsMount{conn: e.Connection, fs: e.name, root: e.root, began: e.recordMount}
	e.release = e.mount.close
	if err := e.mount.use(func(*cephfs.MountInfo) error { return nil }); err != nil {
		return err
	}
	e.id = e.mount.id
	if err := e.pools[0].endCreations(e.hasEnded); err != nil {
		return err
	}
	names, err := e.mount.names(volumePrefix)
	for _, name := range names {
		if err == nil {
			err = e.fill(name)
		}
	}
	return err
}

// hasEnded reports whether the creation of a subvolume completed, or left nothing.
func (e *FS) hasEnded(name string) (bool, error) {
	s, err := e.mount.inspect(name)
	if is(err, notFound) {
		return true, nil
	}
	return err == nil && s.record != nil && !s.record.hasFailed(), err
}

// fill adds a subvolume and its snapshots to the index, and has its copies
// completed.
func (e *FS) fill(name string) error {
	s, err := e.mount.inspect(name)
	if is(err, notFound) {
		return nil // it has just been removed
	}
	if errors.Is(err, errDamaged) {
		e.logger.Error("volume left out", "err", err)
		e.leftOut = append(e.leftOut, name)
		return nil
	}
	if err != nil {
		return err
	}
	if err := e.checkRecorded(s); err != nil {
		e.logger.Error("volume left out", "err", err)
	}
	if s.record != nil {
		e.index.put(e.volume(s))
		if s.record.Copy != nil {
			e.copies.add(copyJob{target: name, from: s.record.Copy.From, snap: s.record.Copy.Snap})
		}
	}
	snaps, temporary, err := e.mount.snapshots(s)
	for _, snap := range snaps {
		e.index.putSnapshot(e.snapshot(snap))
	}
	for _, target := range temporary {
		e.copies.add(copyJob{target: imageName(target), from: name, snap: cloneSnapName(target)})
	}
	return err
}

// Close ends background work and the connection. It is idempotent.
func (e *FS) Close(ctx context.Context) error {
	e.copies.stop()
	return e.Connection.close(ctx)
}

// Backend returns the abilities of CephFS.
func (e *FS) Backend() volume.Backend {
	return volume.Backend{
		Engine: e, Snapshots: e, Health: e,
		Clones: true, MultiNode: true, SharedFS: FSType,
		Parameters: fsParameterKeys(),
	}
}

// Get implements volume.Engine.
func (e *FS) Get(ctx context.Context, id volume.ID) (volume.Volume, error) {
	return call(ctx, e.Connection, "get volume "+errs.Quote(string(id)), func() (volume.Volume, error) {
		if h, foreign := parseHandle(id); foreign {
			return e.adopt(id, h)
		}
		s, err := e.find(id)
		if err != nil {
			return volume.Volume{}, err
		}
		return e.withProgress(s)
	})
}

// List implements volume.Engine.
func (e *FS) List(ctx context.Context, after volume.ID, limit int) ([]volume.Volume, error) {
	if ctx.Err() != nil {
		return nil, late(ctx, "list volumes")
	}
	return e.index.list(after, limit), nil
}

// find returns the subvolume of a volume. NotFound: it does not exist.
func (e *FS) find(id volume.ID) (*subvolume, error) {
	v, own := parseFSID(id)
	if !own {
		return nil, noVolume(id)
	}
	if v.fs != e.id {
		return nil, errs.Errorf(errs.Precondition, "volume %s is in file system number %d of Ceph cluster %s; this driver serves %s, which is number %d", id, v.fs, e.cluster.ID, e.name, e.id)
	}
	s, err := e.mount.inspect(imageName(v.hash))
	if err == nil {
		err = e.checkRecorded(s)
	}
	if is(err, notFound) || err == nil && (withoutDashes(s.uuid) != v.uuid || s.record == nil) {
		e.index.drop(id)
		return nil, noVolume(id)
	}
	return s, err
}

// volume describes a subvolume with a record. A copy that runs has no progress
// yet.
func (e *FS) volume(s *subvolume) volume.Volume {
	r := s.record
	v := volume.Volume{
		ID:   volume.ID(fsID{fs: e.id, hash: hash(r.Name), uuid: withoutDashes(s.uuid)}.String()),
		Name: r.Name, Size: s.size, Content: volume.Filesystem, FSType: FSType,
		Source: r.source(), Ephemeral: r.Ephemeral, Created: r.Created,
		Locator: e.locator(s.content()),
	}
	if r.Copy != nil {
		v.Size, v.Progress = r.Copy.Size, r.Copy.progress(0)
	}
	if r.Shows != nil {
		v.Locator, v.ReadOnly = e.locator(r.Shows.path()), true
	}
	return v
}

func (e *FS) locator(path string) access.CephFS {
	return access.CephFS{Ceph: access.Ceph{ClusterID: e.cluster.ID}, FS: e.name, Path: e.root + path}
}

// withProgress is volume with the progress of a copy.
func (e *FS) withProgress(s *subvolume) (volume.Volume, error) {
	v := e.volume(s)
	if s.record.Copy == nil {
		return v, nil
	}
	done, err := e.mount.used(s.content())
	v.Progress = s.record.Copy.progress(done)
	return v, err
}

// Package hostfs mounts file systems of this machine where a SNAP process finds
// them: NFS exports, CephFS directories and directories of pools, each below the
// directory of volumes under the name of its volume.
//
// What is mounted is read from the kernel's table of mounts alone, so that a
// server that does not answer never holds up a question. Calls that may wait for
// a server run in a process of their own, which is killed at the deadline.
package hostfs

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/pool"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/op"
)

// Config says where mounts go and what they are made of.
type Config struct {
	// Dir is the directory of volumes; it is made when absent. SNAP sees what is
	// mounted in it when it lies on a shared mount.
	Dir   string
	Pools pool.Pools
	// KeyDir holds the files that locators name as Ceph keys, CephDir a
	// <clusterID>.conf per cluster. Empty: there are none.
	KeyDir, CephDir string
	// Deadline bounds one mount or unmount; 0 is 20 s.
	Deadline time.Duration
	Logger   *slog.Logger // nil: none
	// Helper is the command line that runs RunHelper; see HelperCommand.
	Helper []string
}

const defaultDeadline = 20 * time.Second

// Mounts are those of one directory of volumes. Calls for different volumes run
// at once, those for one volume one after the other. Nothing is kept in memory:
// the kernel's table is the truth.
type Mounts struct {
	config Config
	pools  pool.Pools // without symbolic links, as far as they were there at the start
	log    *slog.Logger
	lookup lookup
	locks  op.Locks // by target

	mu    sync.Mutex
	stuck map[string]*process // by target; killed, and not gone yet
}

// Open prepares the directory of volumes. Invalid: a bad path in the
// configuration.
func Open(c Config) (*Mounts, error) {
	for what, dir := range map[string]string{"directory of volumes": c.Dir, "directory of keys": c.KeyDir, "directory of Ceph's configuration": c.CephDir} {
		if dir == "" && what != "directory of volumes" {
			continue
		}
		if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
			return nil, errs.Errorf(errs.Invalid, "%s %q: an absolute path other than / is needed", what, dir)
		}
	}
	if c.Deadline < 0 || len(c.Helper) == 0 {
		return nil, errs.Errorf(errs.Invalid, "mounts: a helper's command line and a deadline that is not negative are needed, got %q and %v", c.Helper, c.Deadline)
	}
	if c.Deadline == 0 {
		c.Deadline = defaultDeadline
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(c.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("directory of volumes: %w", err)
	}
	dir, err := filepath.EvalSymlinks(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("directory of volumes: %w", err)
	}
	m := &Mounts{
		config: c, pools: pool.Pools{}, log: c.Logger, lookup: net.DefaultResolver.LookupNetIP,
		stuck: map[string]*process{},
	}
	for id, dir := range c.Pools {
		m.pools[id] = dir
		// The table of mounts knows no links. A pool that comes later had better
		// have none in its path.
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			m.pools[id] = real
		}
	}
	return m, m.warnUnlessShared(dir)
}

// warnUnlessShared: a mount that stays in this container is of no use to SNAP in
// another, and nothing but an empty directory would show it.
func (m *Mounts) warnUnlessShared(dir string) error {
	table, err := mount.Table(context.Background())
	if err != nil {
		return err
	}
	if holder, ok := mount.Holding(table, dir); ok && !holder.Shared {
		m.log.Warn("the directory of volumes is not on a shared mount: a SNAP process in another container will not see what is mounted there",
			"dir", m.config.Dir, "mount", holder.Target, "hint", "give the volume mountPropagation: Bidirectional, or run: mount --make-rshared "+holder.Target)
	}
	return nil
}

// Path is where the mount of a name is, or would be: absolute, and never outside
// of the directory of volumes.
func (m *Mounts) Path(name string) string {
	return filepath.Join(m.config.Dir, filepath.Base(filepath.Clean("/"+name)))
}

// target is Path of a name that was checked.
func (m *Mounts) target(name string) (string, error) {
	if err := request.CheckVolume(name); err != nil {
		return "", err
	}
	return filepath.Join(m.config.Dir, name), nil
}

// source is a file system that can be mounted.
type source interface {
	fmt.Stringer
	// shown reports whether a mount of the table is one of this source.
	shown(ctx context.Context, e mount.Entry, table []mount.Entry) (bool, error)
	// mountAt mounts it on an empty directory.
	mountAt(ctx context.Context, target string) error
}

func (m *Mounts) source(spec plan.MountSpec) (source, error) {
	switch {
	case spec.NFS != nil:
		return newNFS(m, *spec.NFS, spec.ReadOnly)
	case spec.CephFS != nil:
		return newCephFS(m, *spec.CephFS, spec.ReadOnly)
	case spec.Directory != nil:
		return directory{m, *spec.Directory, spec.ReadOnly}, nil
	}
	return nil, errs.Errorf(errs.Invalid, "a mount of nothing: one of NFS, CephFS and a directory must be given")
}

// Mount mounts a file system at Path(name); if it is mounted there already,
// nothing is done. It never mounts on top of another mount, nor over a directory
// that holds anything. When it fails nothing is left, save where an error says
// otherwise. Options of the same source that changed since do not count, whether
// it is read-only does.
// Precondition: another thing is there, or the source cannot be mounted as it
// is; the message says what to change. Invalid: options that are not possible.
// Unavailable: the server does not answer.
func (m *Mounts) Mount(ctx context.Context, name string, spec plan.MountSpec) error {
	target, err := m.target(name)
	if err != nil {
		return err
	}
	src, err := m.source(spec)
	if err != nil {
		return err
	}
	return m.mountSource(ctx, target, src)
}

func (m *Mounts) mountSource(ctx context.Context, target string, src source) error {
	done, err := m.begin(ctx, target)
	if err != nil {
		return err
	}
	defer done()
	if there, err := m.isThere(ctx, target, src); err != nil || there {
		return err
	}
	if err := makeEmpty(target); err != nil {
		return err
	}
	if err := src.mountAt(ctx, target); err != nil {
		return m.tidy(ctx, target, src, err)
	}
	there, err := m.isThere(ctx, target, src)
	if err == nil && !there {
		err = errs.Errorf(errs.Precondition, "%s was mounted at %s and is gone again: somebody else unmounts there", src, target)
	}
	return err
}

// tidy takes away what a mount that failed has left. One that was completed at
// the last moment is a mount all the same.
func (m *Mounts) tidy(ctx context.Context, target string, src source, failed error) error {
	ctx = context.WithoutCancel(ctx)
	if there, err := m.isThere(ctx, target, src); err == nil && there {
		return nil
	}
	removeEmpty(m.log, target)
	return failed
}

// Mounted reports whether the file system is mounted at Path(name). It asks the
// kernel's table of mounts, never a server. Precondition: another thing is
// mounted there.
func (m *Mounts) Mounted(ctx context.Context, name string, spec plan.MountSpec) (bool, error) {
	target, err := m.target(name)
	if err != nil {
		return false, err
	}
	src, err := m.source(spec)
	if err != nil {
		return false, err
	}
	return m.isThere(ctx, target, src)
}

func (m *Mounts) isThere(ctx context.Context, target string, src source) (bool, error) {
	e, mounted, err := mount.At(ctx, target)
	if err != nil || !mounted {
		return false, err
	}
	table, err := mount.Table(ctx)
	if err != nil {
		return false, err
	}
	same, err := src.shown(ctx, e, table)
	if err == nil && !same {
		err = errs.Errorf(errs.Precondition, "%s is mounted at %s, where %s is wanted; unmount it if it is not needed", describe(e), target, src)
	}
	return same, err
}

// describe names a mount for a message.
func describe(e mount.Entry) string {
	mode := "writable"
	if e.ReadOnly() {
		mode = "read-only"
	}
	if e.Root != "/" && e.Root != "" {
		return fmt.Sprintf("%s of %s (%s, %s)", e.Root, e.Source, e.FSType, mode)
	}
	return fmt.Sprintf("%s (%s, %s)", e.Source, e.FSType, mode)
}

// begin waits for earlier calls at a mount point; done ends this one.
func (m *Mounts) begin(ctx context.Context, target string) (done func(), err error) {
	if done, err = m.locks.Lock(ctx, target); err != nil {
		return nil, errs.Errorf(errs.Busy, "%s: another mount or unmount is under way there: %w", target, err)
	}
	return done, nil
}

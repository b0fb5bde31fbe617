// Package hostfs mounts NFS exports, CephFS directories and directories of
// pools for a SNAP process, in the volume directory.
//
// State is read from the kernel's mount table only, so queries never wait for a
// server. Calls that can wait run in a helper process, which is killed at the
// deadline.
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

// Config configures Mounts.
type Config struct {
	// Dir is the volume directory, created if needed. SNAP sees its mounts if
	// it is on a shared mount.
	Dir   string
	Pools pool.Pools
	// KeyDir holds Ceph key files, CephDir one <clusterID>.conf per cluster.
	KeyDir, CephDir string
	// Deadline bounds one mount or unmount; 0 is 20 s.
	Deadline time.Duration
	Logger   *slog.Logger
	// Helper is the command line that calls RunHelper; see HelperCommand.
	Helper []string
}

const defaultDeadline = 20 * time.Second

// Mounts manages the mounts of one volume directory. Calls for one volume are
// serialised. The kernel's mount table is the only state.
type Mounts struct {
	config Config
	pools  pool.Pools // with symbolic links resolved at the start
	log    *slog.Logger
	lookup lookup
	locks  op.Locks // by target

	mu    sync.Mutex
	stuck map[string]*process // killed helpers that still exist, by target
}

// Open prepares the volume directory. Invalid: an invalid path.
func Open(c Config) (*Mounts, error) {
	for what, dir := range map[string]string{"volume directory": c.Dir, "key directory": c.KeyDir, "Ceph configuration directory": c.CephDir} {
		if dir == "" && what != "volume directory" {
			continue
		}
		if !filepath.IsAbs(dir) || filepath.Clean(dir) == "/" {
			return nil, errs.Errorf(errs.Invalid, "%s %q must be an absolute path other than /", what, dir)
		}
	}
	if c.Deadline < 0 || len(c.Helper) == 0 {
		return nil, errs.Errorf(errs.Invalid, "invalid helper command %q or deadline %v: a command and a deadline of at least 0 are required", c.Helper, c.Deadline)
	}
	if c.Deadline == 0 {
		c.Deadline = defaultDeadline
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(c.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("volume directory: %w", err)
	}
	dir, err := filepath.EvalSymlinks(c.Dir)
	if err != nil {
		return nil, fmt.Errorf("volume directory: %w", err)
	}
	m := &Mounts{
		config: c, pools: pool.Pools{}, log: c.Logger, lookup: net.DefaultResolver.LookupNetIP,
		stuck: map[string]*process{},
	}
	for id, dir := range c.Pools {
		m.pools[id] = dir
		// The mount table has no symbolic links. Pools that are created later
		// must have none.
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			m.pools[id] = real
		}
	}
	return m, m.warnUnlessShared(dir)
}

// warnUnlessShared logs a warning if SNAP in another container could not see
// the mounts; it would see an empty directory.
func (m *Mounts) warnUnlessShared(dir string) error {
	table, err := mount.Table(context.Background())
	if err != nil {
		return err
	}
	if holder, ok := mount.Holding(table, dir); ok && !holder.Shared {
		m.log.Warn("volume directory not on a shared mount, SNAP in another container will not see its mounts",
			"path", m.config.Dir, "target", holder.Target, "hint", "give the volume mountPropagation: Bidirectional, or run: mount --make-rshared "+holder.Target)
	}
	return nil
}

// Path returns the path of a mount, which is always in the volume directory.
func (m *Mounts) Path(name string) string {
	return filepath.Join(m.config.Dir, filepath.Base(filepath.Clean("/"+name)))
}

func (m *Mounts) target(name string) (string, error) {
	if err := request.CheckVolume(name); err != nil {
		return "", err
	}
	return filepath.Join(m.config.Dir, name), nil
}

// source is a file system that can be mounted.
type source interface {
	fmt.Stringer
	// shown reports whether a mount in the table has this source.
	shown(ctx context.Context, e mount.Entry, table []mount.Entry) (bool, error)
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
	return nil, errs.Errorf(errs.Invalid, "no mount source: one of NFS, CephFS and Directory is required")
}

// Mount mounts a file system at Path(name). It is idempotent, and never mounts
// over another mount or a directory with contents. A failed mount leaves
// nothing, unless the error says otherwise. An existing mount of the same
// source is accepted with other options, but not with another read-only mode.
// Precondition: something else is mounted there, or the source cannot be
// mounted; the message says what to change. Invalid: invalid options.
// Unavailable: the server does not respond.
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
	if there, err := m.isMounted(ctx, target, src); err != nil || there {
		return err
	}
	if err := ensureEmptyDir(target); err != nil {
		return err
	}
	if err := src.mountAt(ctx, target); err != nil {
		return m.cleanUpFailed(ctx, target, src, err)
	}
	there, err := m.isMounted(ctx, target, src)
	if err == nil && !there {
		err = errs.Errorf(errs.Precondition, "%s was mounted at %s, but another program unmounted it", src, target)
	}
	return err
}

// cleanUpFailed cleans up, or succeeds if the mount was completed at the last
// moment.
func (m *Mounts) cleanUpFailed(ctx context.Context, target string, src source, failed error) error {
	ctx = context.WithoutCancel(ctx)
	if there, err := m.isMounted(ctx, target, src); err == nil && there {
		return nil
	}
	removeMountPoint(m.log, target)
	return failed
}

// Mounted never contacts a server. Precondition: something else is mounted
// there.
func (m *Mounts) Mounted(ctx context.Context, name string, spec plan.MountSpec) (bool, error) {
	target, err := m.target(name)
	if err != nil {
		return false, err
	}
	src, err := m.source(spec)
	if err != nil {
		return false, err
	}
	return m.isMounted(ctx, target, src)
}

// IsMountPoint reports whether anything is mounted at Path(name).
func (m *Mounts) IsMountPoint(ctx context.Context, name string) (bool, error) {
	target, err := m.target(name)
	if err != nil {
		return false, err
	}
	_, mounted, err := mount.At(ctx, target)
	return mounted, err
}

func (m *Mounts) isMounted(ctx context.Context, target string, src source) (bool, error) {
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
		err = errs.Errorf(errs.Precondition, "%s is mounted at %s instead of %s; unmount it if it is not needed", describe(e), target, src)
	}
	return same, err
}

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

// begin locks a mount point; done unlocks it.
func (m *Mounts) begin(ctx context.Context, target string) (done func(), err error) {
	if done, err = m.locks.Lock(ctx, target); err != nil {
		return nil, errs.Errorf(errs.Busy, "%s: another mount or unmount is in progress: %w", target, err)
	}
	return done, nil
}

// Package cephfs attaches volumes that are directories of CephFS file systems,
// through the kernel's client. It needs neither Ceph's libraries nor its
// programs.
//
// An attached volume is a mount of its own in the driver's directory, which a
// node.Manager binds to the orchestrator's paths. It has a client instance of
// its own, so that a fence, an error or the end of the mount concerns no other
// volume. The kernel's mount table is the record of what is attached: the
// mount's directory is named after the volume. A file next to it has the
// locator, and the client's name in the kernel.
//
// Calls into a mount end when the cluster answers, and do not end with their
// caller. They run as operations: a call returns at its bound, a repeat joins
// the operation. A client that learns that the cluster has fenced it fails all
// calls, for ever.
package cephfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/deviceop"
	"github.com/cleatproject/cleat/internal/linux/cephmount"
	"github.com/cleatproject/cleat/internal/linux/libceph"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/cephclient"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Config configures an Attacher. Driver and Dir are required.
type Config struct {
	// Driver is the name of the CSI driver: its mounts are in a directory of this
	// name.
	Driver string
	// Dir is a directory of the driver's processes on this machine. Mounts in it
	// must propagate to the machine, as those at the orchestrator's paths.
	Dir string
	// Clusters returns the configured clusters, for locators with a clusterID.
	Clusters func() (cephconf.Clusters, error)
	// Credentials returns the user for requests without secrets.
	Credentials func() (cephconf.Credentials, error)
	// VolumeID returns the id of an attached volume, or "" if it does not follow
	// from the locator.
	VolumeID func(access.CephFS) volume.ID
	// Timeout limits the wait of one call for the cluster; 0: a minute.
	Timeout time.Duration
}

// Attacher attaches directories of CephFS.
type Attacher struct {
	config Config
	ops    *deviceop.Operations
	// Volumes whose flush error Detach has returned.
	flushFailed sync.Map
}

var _ node.Attacher = (*Attacher)(nil)

const (
	defaultTimeout = time.Minute
	// usual is how long the cluster takes at most for an answer if nothing is
	// wrong.
	usual = 5 * time.Second
)

// New returns an Attacher. Close it.
func New(c Config) *Attacher {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	return &Attacher{config: c, ops: deviceop.New(deviceop.Config{
		Object: "CephFS directory", Storage: "Ceph cluster", Lock: filepath.Join(c.Dir, "cephfs.lock"), Timeout: c.Timeout,
	})}
}

// Close waits for operations until ctx ends. Those that wait for a cluster end
// with the process.
func (a *Attacher) Close(ctx context.Context) error { return a.ops.Close(ctx) }

// Protocol returns the protocol of an Attacher's locators.
func Protocol() string { return access.CephFS{}.Protocol() }

// Lock implements node.Attacher. The engine is on another machine, and CephFS
// orders its snapshots with the writes of all clients.
func (a *Attacher) Lock(context.Context, node.Target) (unlock func(), err error) {
	return func() {}, nil
}

// Attach implements node.Attacher. Mounts at the orchestrator's paths are
// read-only as requested; this one is if the directory is in a snapshot.
func (a *Attacher) Attach(ctx context.Context, t node.Target, use node.Use) (*node.Attachment, error) {
	l, err := locatorOf(t)
	if err != nil {
		return nil, err
	}
	if use.Block {
		return nil, errs.Errorf(errs.Invalid, "a CephFS volume is a directory and has no block device: use access type mount (volumeMode Filesystem)")
	}
	client, _, err := cephclient.Config{Clusters: a.config.Clusters, Credentials: a.config.Credentials}.Client(ctx, l.Ceph, t.Secrets)
	if err != nil {
		return nil, err
	}
	v := a.volumeOf(l)
	got, err := deviceop.Do(ctx, a.ops, v.object(), "attach", fmt.Sprint(access.Encode(l)), func(ctx context.Context) (attached, error) {
		return a.attach(ctx, v, client)
	})
	if err != nil {
		return nil, err
	}
	// This asks the cluster nothing: attach has looked the path up.
	f, err := os.OpenFile(got.device.Path, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	return &node.Attachment{Device: got.device, Size: size(got.usage), File: f}, nil
}

type attached struct {
	device node.Device
	usage  cephmount.Usage
}

// attach finds or mounts the volume. It replaces a mount that will not work any
// more, such as a fenced one, unless it is in use. The caller holds the lock.
func (a *Attacher) attach(ctx context.Context, v directory, client libceph.Client) (attached, error) {
	e, mounted, err := v.find(ctx)
	if err != nil {
		return attached{}, err
	}
	if mounted {
		usage, err := v.identify()
		if err == nil || !isDead(err) {
			return attached{v.device(e), usage}, err
		}
		if err := a.remove(ctx, v, e); err != nil {
			return attached{}, fmt.Errorf("replace the volume's mount, which does not work any more: %w", err)
		}
	}
	if err := v.mount(ctx, client); err != nil {
		return attached{}, errors.Join(err, v.forget())
	}
	usage, err := v.identify()
	if err != nil {
		return attached{}, errors.Join(err, mount.Unmount(ctx, v.dir), v.forget())
	}
	e, mounted, err = v.find(ctx)
	if err == nil && !mounted {
		err = errs.Errorf(errs.Unavailable, "%s was unmounted meanwhile by another program", v.dir)
	}
	return attached{v.device(e), usage}, err
}

// mount mounts the volume. The record comes before the mount, and names the
// client after it.
func (v directory) mount(ctx context.Context, client libceph.Client) error {
	if err := os.MkdirAll(v.dir, 0o700); err != nil {
		return err
	}
	if err := v.write(record{Locator: access.Encode(v.locator)}); err != nil {
		return err
	}
	crashpoint.Hit("cephfs.recorded")
	parent, _ := splitSnapshot(v.locator.Path)
	err := cephmount.Mount(ctx, cephmount.Spec{Client: client, FS: v.locator.FS, Path: parent, Target: v.dir, ReadOnly: parent != v.locator.Path})
	if err == nil {
		crashpoint.Hit("cephfs.mounted")
	}
	return err
}

// Detach implements node.Attacher. It waits for an attach in progress. Data that
// a fenced client has not written is lost: Inspect has reported that.
func (a *Attacher) Detach(ctx context.Context, t node.Target) error {
	v, err := a.target(t)
	if err != nil {
		return err
	}
	_, err = deviceop.Do(ctx, a.ops, v.object(), "detach", "", func(ctx context.Context) (struct{}, error) {
		e, mounted, err := v.find(ctx)
		if err == nil && mounted {
			err = a.remove(ctx, v, e)
		}
		if err == nil {
			err = v.forget()
		}
		return struct{}{}, err
	})
	return err
}

// remove flushes and unmounts.
func (a *Attacher) remove(ctx context.Context, v directory, e mount.Entry) error {
	table, err := mount.Table(ctx)
	if err != nil {
		return err
	}
	for _, o := range table {
		if o.ID != e.ID && o.FSType == cephmount.FSType && o.Major == e.Major && o.Minor == e.Minor {
			return errs.Errorf(errs.Precondition, "the CephFS directory is in use: it is mounted at %s", o.Target)
		}
	}
	// A query in flight keeps the mount in use, and without an answer the unmount
	// would wait after the mount has left the table.
	if _, err := a.query(ctx, v, a.config.Timeout); errors.Is(err, errs.Unavailable) {
		return err
	}
	if err := v.flush(ctx); err != nil {
		if _, returned := a.flushFailed.LoadOrStore(v.name, true); !returned {
			return fmt.Errorf("%w: data that was not written is lost; the next call will unmount the directory anyway", err)
		}
	}
	if err := mount.Unmount(ctx, v.dir); err != nil {
		return err
	}
	crashpoint.Hit("cephfs.unmounted")
	a.flushFailed.Delete(v.name)
	return nil
}

// flush writes the volume's data. That of a fenced client fails at the unmount,
// but succeeds, late, if the cluster has lifted the fence of its address and has
// none of its instance. umount2(2) with MNT_FORCE would keep the data in memory,
// which Linux 6.1 and 6.12 answer with a kernel BUG ("Busy inodes after
// unmount").
func (v directory) flush(ctx context.Context) error {
	if v.isFenced(ctx) {
		return nil
	}
	err := cephmount.Sync(ctx, v.dir)
	if v.isFenced(ctx) {
		return nil
	}
	return err
}

// isFenced is false if the kernel does not say.
func (v directory) isFenced(ctx context.Context) bool {
	r, err := v.read()
	if err != nil {
		return false
	}
	status, err := cephmount.StatusOf(ctx, r.Client)
	return err == nil && status.Blocklisted
}

// Resize implements node.Attacher: the size is the quota, which the controller
// changes.
func (a *Attacher) Resize(ctx context.Context, t node.Target) (int64, error) {
	v, err := a.target(t)
	if err != nil {
		return 0, err
	}
	_, mounted, err := v.find(ctx)
	if err != nil {
		return 0, err
	}
	if !mounted {
		return 0, errs.Errorf(errs.Precondition, "the CephFS directory of the volume is not mounted at %s", v.dir)
	}
	usage, err := a.query(ctx, v, a.config.Timeout)
	return size(usage), err
}

// SetReadOnly implements node.Attacher. It is for block volumes.
func (a *Attacher) SetReadOnly(context.Context, node.Target, bool) error {
	return errs.Errorf(errs.Unsupported, "a CephFS volume has no block device")
}

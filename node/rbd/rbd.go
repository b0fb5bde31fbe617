// Package rbd attaches volumes that are RBD images of Ceph clusters, through
// the kernel's driver. It needs neither Ceph's libraries nor its programs.
//
// The kernel's device list is the only record. Each map has a key of its own in
// the kernel, whose name has the driver and the cluster: so every process of
// this driver recognizes its devices, and leaves alone those of other programs,
// such as ceph-csi.
//
// The kernel answers when the cluster does. Calls that wait for it therefore
// run as operations that outlive their callers: a call returns Unavailable at
// its deadline, a repeat joins the operation, and Inspect reports it.
package rbd

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cephconf"
	"github.com/cleatproject/cleat/internal/deviceop"
	"github.com/cleatproject/cleat/internal/linux/krbd"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Config configures an Attacher. Driver and Dir are required.
type Config struct {
	// Driver is the name of the CSI driver: its devices are marked with it.
	Driver string
	// Dir is a directory of the driver's processes on this machine, for locks.
	Dir string
	// Clusters returns the configured clusters, for locators with a clusterID.
	Clusters func() (cephconf.Clusters, error)
	// Credentials returns the user for requests without secrets.
	Credentials func() (cephconf.Credentials, error)
	// VolumeID returns the id of a mapped volume, or "" if it does not follow
	// from the image.
	VolumeID func(krbd.Device) volume.ID
	// Kernel is the kernel with the devices; nil: this machine's.
	Kernel *krbd.Kernel
	// Timeout limits the wait of one call for the cluster; 0: a minute.
	Timeout time.Duration
}

// Attacher attaches RBD images.
type Attacher struct {
	config Config
	kernel *krbd.Kernel
	ops    *deviceop.Operations
	// Devices whose flush error Detach has returned.
	flushFailed sync.Map

	mu     sync.Mutex
	stalls map[string]stall // by client instance, of devices with requests in flight
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
	a := &Attacher{config: c, kernel: c.Kernel, stalls: map[string]stall{}, ops: deviceop.New(deviceop.Config{
		Object: "RBD image", Storage: "Ceph cluster", Lock: filepath.Join(c.Dir, "rbd.lock"), Timeout: c.Timeout,
	})}
	if a.kernel == nil {
		a.kernel = krbd.Host()
	}
	return a
}

// Close waits for operations until ctx ends. Those that wait for a cluster end
// with the process.
func (a *Attacher) Close(ctx context.Context) error { return a.ops.Close(ctx) }

// Protocol returns the protocol of an Attacher's locators.
func Protocol() string { return access.RBD{}.Protocol() }

// Lock implements node.Attacher. The engine is on another machine: it sees the
// cluster's clients, and RBD's snapshots are consistent at any time.
func (a *Attacher) Lock(context.Context, node.Target) (unlock func(), err error) {
	return func() {}, nil
}

// Attach implements node.Attacher.
func (a *Attacher) Attach(ctx context.Context, t node.Target, use node.Use) (*node.Attachment, error) {
	l, err := locatorOf(t)
	if err != nil {
		return nil, err
	}
	spec, err := a.spec(ctx, l, t)
	if err != nil {
		return nil, err
	}
	spec.ReadOnly = use.ReadOnly
	d, err := run(ctx, a, name(l.Pool, l.Image), attachCall(use), t, func(ctx context.Context) (krbd.Device, error) {
		return a.attach(ctx, l, spec)
	})
	if err != nil {
		return nil, err
	}
	f, err := a.kernel.Open(d)
	if err != nil {
		return nil, err
	}
	return &node.Attachment{Device: toDevice(d), Size: d.Size, File: f}, nil
}

// attachCall describes a call: equal ones join.
func attachCall(use node.Use) string {
	if use.ReadOnly {
		return "attach read-only"
	}
	return "attach"
}

// attach finds or maps the image's one device. The caller holds the lock.
func (a *Attacher) attach(ctx context.Context, l access.RBD, spec krbd.Spec) (krbd.Device, error) {
	own, foreign, err := a.find(l, spec)
	if err != nil {
		return krbd.Device{}, err
	}
	switch {
	case len(foreign) > 0:
		return krbd.Device{}, errs.Errorf(errs.Precondition, "the image %s is mapped by another program as %s, and two devices do not see each other's writes; unmap it there first", l.Image, foreign[0].Path)
	case len(own) > 1:
		return krbd.Device{}, errs.Errorf(errs.Precondition, "the image %s is mapped as %d devices (%s, %s, …), which do not see each other's writes; unmap all but one", l.Image, len(own), own[0].Path, own[1].Path)
	case len(own) == 1:
		d, adopted, err := a.adopt(ctx, own[0], spec.ReadOnly)
		if err != nil || adopted {
			return d, err
		}
	}
	d, err := a.kernel.Map(ctx, spec)
	if err != nil {
		return d, err
	}
	if l.ImageID != "" && d.ImageID != l.ImageID {
		err := errs.Errorf(errs.NotFound, "the image %s of the volume was deleted: its name has another image now (id %s, the volume's was %s)", l.Image, d.ImageID, l.ImageID)
		return krbd.Device{}, errors.Join(err, a.kernel.Unmap(ctx, d))
	}
	return d, nil
}

// adopt adjusts an existing device. One that was mapped read-only is unmapped
// for writing.
func (a *Attacher) adopt(ctx context.Context, d krbd.Device, readOnly bool) (krbd.Device, bool, error) {
	switch {
	case d.ReadOnly == readOnly:
		return d, true, nil
	case !readOnly && d.MappedRO:
		if err := a.kernel.Unmap(ctx, d); err != nil {
			return d, false, fmt.Errorf("the image is mapped read-only as %s, and the request needs to write: %w", d.Path, err)
		}
		return d, false, nil
	}
	err := a.kernel.SetReadOnly(d, readOnly)
	d.ReadOnly = readOnly
	return d, true, err
}

// Detach implements node.Attacher. It waits for an attach in progress, also of
// a process that is ending. After an I/O error, such as that of a fenced client,
// the kernel drops data that it could not write, so retries cannot help: the
// first call returns the flush error, the next detaches.
func (a *Attacher) Detach(ctx context.Context, t node.Target) error {
	l, located := t.Locator.(access.RBD)
	image := name(l.Pool, l.Image)
	if !located {
		devices, err := a.attached(t)
		if err != nil || len(devices) == 0 {
			return err
		}
		image = name(devices[0].Pool, devices[0].Image)
	}
	_, err := run(ctx, a, image, "detach", t, func(ctx context.Context) (struct{}, error) {
		devices, err := a.attached(t)
		for _, d := range devices {
			if err == nil {
				err = a.detach(ctx, d)
			}
		}
		return struct{}{}, err
	})
	return err
}

func (a *Attacher) detach(ctx context.Context, d krbd.Device) error {
	err := a.kernel.Flush(ctx, d)
	switch {
	case errors.Is(err, unix.EIO):
		if _, returned := a.flushFailed.LoadOrStore(toDevice(d), true); !returned {
			return fmt.Errorf("%w: data that was not written is lost; the next call will detach the device anyway", err)
		}
	case err != nil && !errors.Is(err, krbd.ErrGone):
		return err
	}
	if err := a.kernel.Unmap(ctx, d); err != nil {
		return err
	}
	a.flushFailed.Delete(toDevice(d))
	return nil
}

// Resize implements node.Attacher. The kernel follows the image by itself,
// except read-only.
func (a *Attacher) Resize(ctx context.Context, t node.Target) (int64, error) {
	d, err := a.only(t)
	if err != nil {
		return 0, err
	}
	return run(ctx, a, name(d.Pool, d.Image), "resize", t, func(ctx context.Context) (int64, error) {
		if err := a.kernel.Refresh(ctx, d); err != nil {
			return 0, err
		}
		d, err := a.only(t)
		return d.Size, err
	})
}

// SetReadOnly implements node.Attacher.
func (a *Attacher) SetReadOnly(_ context.Context, t node.Target, readOnly bool) error {
	d, err := a.only(t)
	if err != nil {
		return err
	}
	return a.kernel.SetReadOnly(d, readOnly)
}

func (a *Attacher) only(t node.Target) (krbd.Device, error) {
	devices, err := a.attached(t)
	switch {
	case err != nil:
		return krbd.Device{}, err
	case len(devices) != 1:
		return krbd.Device{}, errs.Errorf(errs.Precondition, "the volume has %d RBD devices instead of one", len(devices))
	}
	return devices[0], nil
}

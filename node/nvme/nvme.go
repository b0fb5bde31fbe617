// Package nvme attaches volumes that are namespaces of NVMe over Fabrics
// subsystems, through the kernel's initiator. It works with any target, and
// needs no nvme-cli.
//
// The kernel knows controllers (connections) and disks, but not which of a
// subsystem's namespaces are volumes of this driver. Each attached volume
// therefore has a record in a file, written before the first connection and
// removed after the last. The controllers of a subsystem are removed with its
// last volume. Controllers of another host NQN are never changed.
//
// The kernel answers when the target does, so calls that wait for it run as
// operations that outlive their callers. Run adds paths that the kernel has
// removed, and finds interrupted connections: the kernel can lose a flush then
// (see uncertain.go).
package nvme

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/deviceop"
	"github.com/cleatproject/cleat/internal/linux/blockdev"
	"github.com/cleatproject/cleat/internal/linux/holders"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	kernel "github.com/cleatproject/cleat/internal/linux/nvme"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume/access"
)

// Config configures an Attacher. Dir and HostNQN are required.
type Config struct {
	// Dir is a directory of the driver's processes on this machine, for records
	// and locks.
	Dir string
	// HostNQN identifies this driver on this machine to targets, unless a
	// volume's locator names another. No other program uses it: its controllers
	// without a volume are removed.
	HostNQN string
	// KeyDir has the keys that locators name, one file each; empty: no keys.
	KeyDir string
	// Boot is the boot's ID; empty: the kernel's.
	Boot string
	// Kernel is the kernel with the devices; nil: this machine's.
	Kernel *kernel.Kernel
	// Timeout limits the wait of one call for the target; 0: a minute.
	Timeout time.Duration
	Logger  *slog.Logger
}

// Attacher attaches NVMe namespaces.
type Attacher struct {
	config   Config
	kernel   *kernel.Kernel
	ops      *deviceop.Operations
	records  records
	connects connects
	log      *slog.Logger
	// Devices whose flush error Detach has returned.
	flushFailed sync.Map

	mu      sync.Mutex
	retries map[path]backoff // of paths that Run adds
}

var _ node.Attacher = (*Attacher)(nil)

const defaultTimeout = time.Minute

// New returns an Attacher. Close it.
func New(c Config) (*Attacher, error) {
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Kernel == nil {
		c.Kernel = kernel.Host()
	}
	if c.Boot == "" {
		var err error
		if c.Boot, err = bootID(); err != nil {
			return nil, err
		}
	}
	return &Attacher{
		config: c, kernel: c.Kernel, log: c.Logger, retries: map[path]backoff{},
		records:  records{dir: filepath.Join(c.Dir, "nvme"), boot: c.Boot},
		connects: connects{slot: make(chan struct{}, 1)},
		ops: deviceop.New(deviceop.Config{
			Object: "subsystem", Storage: "NVMe target", Lock: filepath.Join(c.Dir, "nvme.lock"), Timeout: c.Timeout,
		}),
	}, nil
}

// Close waits for operations until ctx ends. Those that wait for a target end
// with the process.
func (a *Attacher) Close(ctx context.Context) error { return a.ops.Close(ctx) }

// Protocol returns the protocol of an Attacher's locators.
func Protocol() string { return access.NVMe{}.Protocol() }

// Lock implements node.Attacher. The engine is on another machine.
func (a *Attacher) Lock(context.Context, node.Target) (unlock func(), err error) {
	return func() {}, nil
}

// run runs an operation on a target's subsystem, or joins the same one.
func run[T any](ctx context.Context, a *Attacher, nqn, what string, t node.Target, fn func(context.Context) (T, error)) (T, error) {
	fingerprint := string(t.Volume) + " " + t.Device.Backing
	if t.Locator != nil {
		fingerprint += fmt.Sprint(access.Encode(t.Locator))
	}
	return deviceop.Do(ctx, a.ops, nqn, what, fingerprint, fn)
}

// attached is a volume's disk, and the controllers that lead to it.
type attached struct {
	disk        kernel.Namespace
	controllers []kernel.Controller
	// blocked are the states, by the name of a live controller, in which the target
	// does not execute I/O of the disk there.
	blocked map[string]string
	// multipath: the kernel joins the controllers to one disk.
	multipath bool
}

// Attach implements node.Attacher.
func (a *Attacher) Attach(ctx context.Context, t node.Target, use node.Use) (*node.Attachment, error) {
	l, err := locatorOf(t)
	if err != nil {
		return nil, err
	}
	what := "attach"
	if use.ReadOnly {
		what = "attach read-only"
	}
	n, err := run(ctx, a, l.NQN, what, t, func(ctx context.Context) (kernel.Namespace, error) {
		return a.attach(ctx, t, l, use.ReadOnly)
	})
	if err != nil {
		return nil, err
	}
	multipath, err := a.kernel.IsMultipath()
	if err != nil {
		return nil, err
	}
	f, err := n.Open()
	if err != nil {
		return nil, err
	}
	uncertain := n.WriteBack && multipath && !l.AcceptFlushLoss
	return &node.Attachment{Device: toDevice(n), Size: n.Size, File: f, FlushUncertain: uncertain}, nil
}

// attach records the volume, connects the missing paths and finds the disk. The
// caller holds the subsystem's lock.
func (a *Attacher) attach(ctx context.Context, t node.Target, l access.NVMe, readOnly bool) (kernel.Namespace, error) {
	host := a.host(l)
	if err := a.checkForeign(l.NQN, host.nqn); err != nil {
		return kernel.Namespace{}, err
	}
	disks, err := a.kernel.Namespaces(l.NQN)
	if err != nil {
		return kernel.Namespace{}, err
	}
	if err := a.checkOwner(t.Volume, l, disks); err != nil {
		return kernel.Namespace{}, err
	}
	earlier, err := a.earlierUncertainty(l)
	if err != nil {
		return kernel.Namespace{}, err
	}
	r, isNew, err := a.records.begin(t, l, host, earlier)
	if err != nil {
		return kernel.Namespace{}, err
	}
	crashpoint.Hit("nvme.recorded")
	n, err := a.attachRecorded(ctx, r, l, host, readOnly)
	if err != nil && isNew {
		err = errors.Join(err, a.release(ctx, r))
	}
	return n, err
}

func (a *Attacher) attachRecorded(ctx context.Context, r record, l access.NVMe, host host, readOnly bool) (kernel.Namespace, error) {
	n, err := a.connectAndFind(ctx, l, host)
	if err != nil {
		return n, err
	}
	crashpoint.Hit("nvme.connected")
	if err := a.checkOwner(r.Volume, l, []kernel.Namespace{n}); err != nil {
		return n, err
	}
	if err := setReadOnly(n, readOnly); err != nil {
		return n, err
	}
	n.ReadOnly = readOnly
	if r.Device == toDevice(n) {
		return n, nil
	}
	if !r.Device.IsZero() { // of a new disk nothing can be lost yet
		r.Uncertain = ""
	}
	r.Device = toDevice(n)
	if r.LogSeq, err = logEnd(); err != nil {
		a.log.WarnContext(ctx, "cannot read the kernel's log, interrupted flushes will not be reported", "err", err)
	}
	return n, a.records.put(r)
}

func (a *Attacher) connectAndFind(ctx context.Context, l access.NVMe, host host) (kernel.Namespace, error) {
	if err := a.connectPaths(ctx, l, host); err != nil {
		return kernel.Namespace{}, err
	}
	return a.awaitNamespace(ctx, l, host)
}

func setReadOnly(n kernel.Namespace, readOnly bool) error {
	if n.ReadOnly == readOnly {
		return nil
	}
	f, err := n.Open()
	if err != nil {
		return err
	}
	defer f.Close()
	return blockdev.SetReadOnly(f, readOnly)
}

// Detach implements node.Attacher. After an I/O error the kernel drops data that
// it could not write, so retries cannot help: the first call returns the flush
// error, the next detaches.
func (a *Attacher) Detach(ctx context.Context, t node.Target) error {
	r, found, err := a.recordOf(t)
	if err != nil {
		return err
	}
	if !found {
		return a.checkDetached(ctx, t)
	}
	_, err = run(ctx, a, r.NQN, "detach", t, func(ctx context.Context) (struct{}, error) {
		r, found, err := a.recordOf(t)
		if err != nil || !found {
			return struct{}{}, err
		}
		if err := a.flush(ctx, r); err != nil {
			return struct{}{}, err
		}
		crashpoint.Hit("nvme.flushed")
		return struct{}{}, a.release(ctx, r)
	})
	return err
}

// checkDetached refuses a volume without a record whose disk is in use, unless it is
// attached as another volume.
func (a *Attacher) checkDetached(ctx context.Context, t node.Target) error {
	l, located := t.Locator.(access.NVMe)
	if !located {
		return nil
	}
	n, found, err := a.connectedDisk(l)
	if err != nil || !found {
		return err
	}
	all, err := a.records.all()
	if err != nil {
		return err
	}
	if slices.ContainsFunc(all, func(r record) bool { return r.name == fileName(l) || r.Device == toDevice(n) }) {
		return nil
	}
	return checkUnused(ctx, n)
}

// flush writes the data of the page cache to the target: the kernel drops it
// with the disk. Precondition: the disk is in use.
func (a *Attacher) flush(ctx context.Context, r record) error {
	n, found, err := a.diskOf(r)
	if err != nil || !found {
		return err
	}
	f, err := n.Open()
	if errors.Is(err, blockdev.ErrGone) { // without its node, it can still be mounted
		return checkUnused(ctx, n)
	}
	if err != nil {
		return err
	}
	err = kernelcall.Sync(ctx, f)
	if err := errors.Join(f.Close(), checkUnused(ctx, n)); err != nil {
		return err
	}
	return a.checkFlush(n, err)
}

// checkFlush returns the error of a flush; if data is lost, only the first time.
func (a *Attacher) checkFlush(n kernel.Namespace, err error) error {
	switch {
	case isLoss(err):
		if _, returned := a.flushFailed.LoadOrStore(toDevice(n), true); !returned {
			return fmt.Errorf("flush %s: %w: data that was not written is lost; the next call will detach the device anyway", n.Path, err)
		}
	case err != nil:
		return fmt.Errorf("flush %s: %w", n.Path, err)
	}
	a.flushFailed.Delete(toDevice(n))
	return nil
}

// isLoss reports whether a flush failed for good. All but EIO occur without the
// kernel's multipath, when the target is away (blk_errors of block/blk-core.c).
func isLoss(err error) bool {
	return slices.ContainsFunc([]unix.Errno{unix.EIO, unix.ENOLINK, unix.ETIMEDOUT, unix.ENOSPC, unix.ENODEV, unix.ENXIO}, func(e unix.Errno) bool {
		return errors.Is(err, e)
	})
}

// checkUnused: the kernel removes also a disk in use. Users in other PID
// namespaces are seen only with the host's /proc.
func checkUnused(ctx context.Context, n kernel.Namespace) error {
	return holders.AwaitUnused(ctx, n.Major, n.Minor, func() (inUse bool, err error) {
		users, found := holders.UsersOfDevice(ctx, n.Major, n.Minor)
		if !found {
			return false, nil
		}
		return true, errs.Errorf(errs.Precondition, "disconnect %s: the device is used by %s; unmount or close it there, then try again", n.Path, users)
	})
}

// release removes a volume's record, after the subsystem's controllers if it is
// their last volume.
func (a *Attacher) release(ctx context.Context, r record) error {
	shared, err := a.records.isShared(r)
	if err != nil {
		return err
	}
	if !shared {
		if err := a.disconnect(ctx, r); err != nil {
			return err
		}
		crashpoint.Hit("nvme.disconnected")
		if err := a.removeKey(r); err != nil {
			return err
		}
	}
	return a.records.remove(r)
}

// removeKey removes the TLS key of a subsystem that is no longer connected.
func (a *Attacher) removeKey(r record) error {
	if r.Locator == nil {
		return nil
	}
	l, err := access.Decode(r.Locator)
	if err != nil || l.(access.NVMe).TLSKey == "" {
		return err
	}
	return a.kernel.RemoveKey(r.HostNQN, r.NQN)
}

// disconnect removes this host's controllers of a subsystem, and waits for the
// end of its disks. Detach has checked the record's disk; another one can be in
// use without a record.
func (a *Attacher) disconnect(ctx context.Context, r record) error {
	disks, err := a.kernel.Namespaces(r.NQN)
	if err != nil {
		return err
	}
	for _, n := range disks {
		if toDevice(n) == r.Device {
			continue
		}
		if err := checkUnused(ctx, n); err != nil {
			return fmt.Errorf("the subsystem %s stays connected: %w", r.NQN, err)
		}
	}
	all, err := a.kernel.Controllers()
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.NQN == r.NQN && c.HostNQN == r.HostNQN {
			if err := a.kernel.Delete(ctx, c); err != nil {
				return err
			}
			crashpoint.Hit("nvme.deleted")
		}
	}
	return retry.For(ctx, removalBound, func() (again bool, err error) {
		disks, err := a.kernel.Namespaces(r.NQN)
		if err == nil && len(disks) > 0 {
			err = errs.Errorf(errs.Unavailable, "%s still exists %v after its controllers were removed; another program uses it or is connected to %s", disks[0].Path, removalBound, r.NQN)
		}
		return len(disks) > 0, err
	})
}

const removalBound = 10 * time.Second

// Resize implements node.Attacher. The kernel follows the target by itself:
// Resize waits until the disk has the size that the target reports.
func (a *Attacher) Resize(ctx context.Context, t node.Target) (int64, error) {
	r, at, err := a.only(t)
	if err != nil {
		return 0, err
	}
	return run(ctx, a, r.NQN, "resize", t, func(ctx context.Context) (int64, error) {
		live := slices.IndexFunc(at.controllers, func(c kernel.Controller) bool { return c.State == kernel.StateLive })
		if live < 0 {
			return 0, a.unreachable(r, at)
		}
		want, err := a.kernel.TargetSize(at.controllers[live], at.disk.NSID)
		if err != nil {
			return 0, err
		}
		if err := a.kernel.Rescan(at.controllers[live]); err != nil {
			return 0, err
		}
		return want, retry.For(ctx, scanBound, func() (again bool, err error) {
			n, found, err := a.diskOf(r)
			if err == nil && found && n.Size != want {
				err = errs.Errorf(errs.Unavailable, "the target reports %d bytes, and %s has %d after %v; try again", want, n.Path, n.Size, scanBound)
			}
			return err != nil, err
		})
	})
}

// SetReadOnly implements node.Attacher.
func (a *Attacher) SetReadOnly(_ context.Context, t node.Target, readOnly bool) error {
	_, at, err := a.only(t)
	if err != nil {
		return err
	}
	return setReadOnly(at.disk, readOnly)
}

func (a *Attacher) only(t node.Target) (record, attached, error) {
	r, found, err := a.recordOf(t)
	if err != nil {
		return r, attached{}, err
	}
	if found {
		n, has, err := a.diskOf(r)
		if err != nil {
			return r, attached{}, err
		}
		if has {
			controllers, err := a.controllersOf(r)
			return r, attached{disk: n, controllers: controllers}, err
		}
	}
	return r, attached{}, errs.Errorf(errs.Precondition, "the volume has no NVMe disk on this node; stage it again")
}

package nvme

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/cleatproject/cleat/errs"
	kernel "github.com/cleatproject/cleat/internal/linux/nvme"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	// interval is how often Run looks at the kernel's log and controllers.
	interval = 5 * time.Second
	// maxBackoff is the longest pause between two attempts to add a path.
	maxBackoff = 2 * time.Minute
)

// backoff is when a path is tried again.
type backoff struct {
	next  time.Time
	pause time.Duration
}

// Run adds missing paths to attached volumes, and records interrupted
// connections, until ctx ends. The kernel connects again by itself, but removes
// a controller that its target refuses (since 6.10, and after ctrl_loss_tmo).
func (a *Attacher) Run(ctx context.Context) error {
	var w watcher
	defer func() { w.close() }()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for first := true; ; first = false {
		if w.log == nil {
			var err error
			if w, err = a.newWatcher(); err != nil && first {
				a.log.WarnContext(ctx, "cannot read the kernel's log, interrupted flushes will not be reported", "err", err)
			}
		}
		if err := errors.Join(a.checkLog(ctx, &w), a.addPaths(ctx)); err != nil {
			a.log.WarnContext(ctx, "NVMe check failed, will retry", "err", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// addPaths adds the missing paths of volumes whose disk exists. A disk that is
// gone stays so: only a new stage can mount its successor. An address that fails
// is not tried for other volumes in the same call: an attempt can take a minute,
// and delays the paths to other targets and the check of the log.
func (a *Attacher) addPaths(ctx context.Context) error {
	all, err := a.records.all()
	if err != nil || len(all) == 0 {
		return err
	}
	if multipath, err := a.kernel.IsMultipath(); err != nil || !multipath {
		return err
	}
	controllers, err := a.kernel.Controllers()
	if err != nil {
		return err
	}
	failed := map[netip.AddrPort]bool{}
	for _, r := range all {
		l, err := access.Decode(r.Locator)
		if err != nil {
			return err
		}
		for _, p := range missingPaths(r, l.(access.NVMe), controllers) {
			if !failed[p.address] && a.isDue(p) {
				failed[p.address] = a.addPath(ctx, r, l.(access.NVMe), p) != nil
			}
		}
	}
	return nil
}

// missingPaths returns nothing for a subsystem without a controller.
func missingPaths(r record, l access.NVMe, controllers []kernel.Controller) []path {
	connected, any := map[path]bool{}, false
	for _, c := range controllers {
		connected[path{c.NQN, c.HostNQN, c.Address}] = true
		any = any || c.NQN == r.NQN && c.HostNQN == r.HostNQN
	}
	var missing []path
	for _, address := range l.Paths {
		if p := (path{r.NQN, r.HostNQN, address}); any && !r.Device.IsZero() && !connected[p] {
			missing = append(missing, p)
		}
	}
	return missing
}

func (a *Attacher) isDue(p path) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return !time.Now().Before(a.retries[p].next)
}

// addPath connects one path, unless a call works on the subsystem.
func (a *Attacher) addPath(ctx context.Context, r record, l access.NVMe, p path) error {
	_, err := run(ctx, a, r.NQN, "add path "+p.address.String(), node.Target{}, func(ctx context.Context) (struct{}, error) {
		if _, found, err := a.records.read(r.name); err != nil || !found {
			return struct{}{}, err // detached meanwhile
		}
		return struct{}{}, a.connectPath(ctx, l, host{r.HostNQN, access.HostID(r.HostNQN)}, p.address)
	})
	if errors.Is(err, errs.Busy) || ctx.Err() != nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		delete(a.retries, p)
		a.log.InfoContext(ctx, "connected NVMe path", "nqn", p.nqn, "address", p.address)
		return nil
	}
	b := a.retries[p]
	b.pause = min(max(2*b.pause, interval), maxBackoff)
	b.next = time.Now().Add(b.pause)
	a.retries[p] = b
	a.log.WarnContext(ctx, "NVMe path is down, will retry", "nqn", p.nqn, "address", p.address, "pause", b.pause, "err", err)
	return err
}

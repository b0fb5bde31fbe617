package nvme

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/blockdev"
	kernel "github.com/cleatproject/cleat/internal/linux/nvme"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Inspect implements node.Attacher. Only the target knows volumes that are not
// attached.
func (a *Attacher) Inspect(_ context.Context, t node.Target) (node.Info, error) {
	if _, err := locatorOf(t); err != nil {
		return node.Info{}, err
	}
	info := node.Info{Presence: node.Present}
	r, found, err := a.recordOf(t)
	if err != nil || !found {
		return info, err
	}
	n, found, err := a.diskOf(r)
	if err != nil || r.Device.IsZero() {
		return info, err
	}
	if !found {
		info.Device, info.Backing, info.Presence = r.Device, r.Device.Backing, node.Lost
		info.Problem = errs.Errorf(errs.Unavailable, "the kernel has removed the disk %s of the volume: its subsystem %s was gone, or refused this host", r.Device.Path, r.NQN)
		return info, nil
	}
	at := attached{disk: n}
	if at.multipath, err = a.kernel.IsMultipath(); err != nil {
		return info, err
	}
	if at.controllers, err = a.controllersOf(r); err != nil {
		return info, err
	}
	if at.blocked, err = a.blocked(at.controllers, n.NSID); err != nil {
		return info, err
	}
	info.Device, info.ReadOnly, info.Backing, info.Size = toDevice(n), n.ReadOnly, backing(n), n.Size
	if !at.isLive() {
		info.Presence, info.Problem = node.Unreachable, a.unreachable(r, at)
	}
	info.Conditions = conditions(r, at)
	return info, nil
}

// Held implements node.Attacher: recorded volumes, and the disks of controllers
// that lost their record.
func (a *Attacher) Held(context.Context) ([]node.Held, error) {
	all, err := a.records.all()
	if err != nil {
		return nil, err
	}
	controllers, err := a.kernel.Controllers()
	if err != nil {
		return nil, err
	}
	var held []node.Held
	known := map[string]bool{}
	for _, r := range all {
		known[r.NQN] = true
		h := node.Held{Volume: r.Volume, Device: r.Device}
		if h.Device.IsZero() { // interrupted before its disk was found
			h.Device.Backing = r.NQN + separator
		}
		if h.Locator, err = access.Decode(r.Locator); err != nil {
			return nil, fmt.Errorf("the record %s of an attached NVMe volume: %w", r.name, err)
		}
		held = append(held, h)
	}
	for _, c := range controllers {
		if c.HostNQN != a.config.HostNQN || known[c.NQN] {
			continue
		}
		known[c.NQN] = true
		disks, err := a.kernel.Namespaces(c.NQN)
		if err != nil {
			return nil, err
		}
		for _, n := range disks {
			held = append(held, node.Held{Device: toDevice(n)})
		}
		if len(disks) == 0 {
			held = append(held, node.Held{Device: node.Device{Backing: c.NQN + separator}})
		}
	}
	return held, nil
}

func locatorOf(t node.Target) (access.NVMe, error) {
	l, ok := t.Locator.(access.NVMe)
	if !ok {
		return l, errs.Errorf(errs.Internal, "the locator %T is not that of an NVMe namespace", t.Locator)
	}
	return l, nil
}

// recordOf returns the record of a target's locator or device, unless it is known
// to be another volume's. Without one the device identifies the subsystem, of
// controllers that this driver made.
func (a *Attacher) recordOf(t node.Target) (record, bool, error) {
	l, located := t.Locator.(access.NVMe)
	if located {
		if r, found, err := a.records.read(fileName(l)); err != nil || found {
			return r, found && !r.isOfAnother(t), err
		}
	}
	if t.Device.Backing != "" {
		all, err := a.records.all()
		for _, r := range all {
			if r.Device.Backing == t.Device.Backing {
				return r, !r.isOfAnother(t), err
			}
		}
		if err != nil {
			return record{}, false, err
		}
	}
	if located {
		return a.lostRecord(l)
	}
	nqn, _, found := strings.Cut(t.Device.Backing, separator)
	return record{NQN: nqn, HostNQN: a.config.HostNQN, Device: t.Device}, found, nil
}

// lostRecord returns what the record of a volume had, if only that is missing: the
// disk exists, of controllers that this driver made for no other volume.
func (a *Attacher) lostRecord(l access.NVMe) (record, bool, error) {
	r := record{NQN: l.NQN, HostNQN: a.host(l).nqn, Locator: access.Encode(l)}
	n, found, err := a.connectedDisk(l)
	if err != nil || !found || r.HostNQN != a.config.HostNQN { // other programs can have the host NQN of a locator
		return r, false, err
	}
	r.Device, r.Uncertain = toDevice(n), recordLost
	shared, err := a.records.isShared(r)
	return r, !shared, err
}

// connectedDisk returns the disk of a locator, which exists also for a volume that is
// not attached if another one of the subsystem is.
func (a *Attacher) connectedDisk(l access.NVMe) (kernel.Namespace, bool, error) {
	controllers, err := a.controllersOf(record{NQN: l.NQN, HostNQN: a.host(l).nqn})
	if err != nil || len(controllers) == 0 {
		return kernel.Namespace{}, false, err
	}
	disks, err := a.kernel.Namespaces(l.NQN)
	if err != nil {
		return kernel.Namespace{}, false, err
	}
	n, missing := choose(l, disks)
	return n, missing == nil, nil
}

func (a *Attacher) controllersOf(r record) ([]kernel.Controller, error) {
	all, err := a.kernel.Controllers()
	return slices.DeleteFunc(all, func(c kernel.Controller) bool { return c.NQN != r.NQN || c.HostNQN != r.HostNQN }), err
}

// diskOf returns the disk of a record, if it was found and still exists. A disk
// that the kernel made later, for the same namespace, is not the volume's until
// it is attached: the volume can still be mounted from the former one.
func (a *Attacher) diskOf(r record) (kernel.Namespace, bool, error) {
	disks, err := a.kernel.Namespaces(r.NQN)
	for _, n := range disks {
		if toDevice(n) == r.Device {
			return n, true, nil
		}
	}
	return kernel.Namespace{}, false, err
}

// scanBound limits the kernel's scan of namespaces, which begins after the
// connection: 12 to 180 ms were measured.
const scanBound = 15 * time.Second

// rescanAfter is when the kernel is asked to scan again.
const rescanAfter = 2 * time.Second

// awaitNamespace waits for the volume's disk and its device node. NotFound: the
// subsystem does not have it. Unavailable: the target reports it as inaccessible;
// the kernel makes no disk until a path is accessible.
func (a *Attacher) awaitNamespace(ctx context.Context, l access.NVMe, h host) (kernel.Namespace, error) {
	begun, rescanned := time.Now(), false
	var n kernel.Namespace
	err := retry.For(ctx, scanBound, func() (again bool, err error) {
		disks, err := a.kernel.Namespaces(l.NQN)
		if err != nil {
			return false, err
		}
		if n, err = choose(l, disks); err == nil {
			f, err := n.Open()
			if err == nil {
				return false, f.Close()
			}
			return errors.Is(err, blockdev.ErrGone), err
		}
		if time.Since(begun) > rescanAfter && !rescanned {
			rescanned = true
			controllers, listErr := a.controllersOf(record{NQN: l.NQN, HostNQN: h.nqn})
			for _, c := range controllers {
				listErr = errors.Join(listErr, a.kernel.Rescan(c))
			}
			if listErr != nil {
				return false, listErr
			}
		}
		return errors.Is(err, errs.NotFound), err
	})
	if !errors.Is(err, errs.NotFound) {
		return n, err
	}
	r := record{NQN: l.NQN, HostNQN: h.nqn}
	at, failed := attached{}, error(nil)
	if at.controllers, failed = a.controllersOf(r); failed == nil {
		at.blocked, failed = a.blocked(at.controllers, l.NSID)
	}
	if failed == nil && len(at.blocked) > 0 {
		return n, errs.Errorf(errs.Unavailable, "the subsystem %s has no disk for the volume yet: %s", l.NQN, strings.Join(states(r, at), ", "))
	}
	return n, errors.Join(err, failed)
}

// choose returns the disk of a locator among those of its subsystem. All that
// the locator names must match.
func choose(l access.NVMe, disks []kernel.Namespace) (kernel.Namespace, error) {
	var found []kernel.Namespace
	var others []string
	for _, n := range disks {
		if (l.UUID == "" || n.UUID == l.UUID) && (l.NGUID == "" || n.NGUID == l.NGUID) && (l.NSID == 0 || n.NSID == l.NSID) {
			found = append(found, n)
		}
		others = append(others, fmt.Sprintf("nsId %d, uuid %s", n.NSID, errs.Quote(n.UUID)))
	}
	if len(others) > 8 {
		others = append(others[:8], fmt.Sprintf("and %d more", len(others)-8))
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) == 0 && len(disks) > 0:
		return kernel.Namespace{}, errs.Errorf(errs.NotFound, "the subsystem %s has no namespace with the uuid, nguid or nsId of the volume; it has: %s", l.NQN, strings.Join(others, "; "))
	case len(found) == 0:
		return kernel.Namespace{}, errs.Errorf(errs.NotFound, "the subsystem %s has no namespace for this host", l.NQN)
	}
	return kernel.Namespace{}, errs.Errorf(errs.Precondition, "the subsystem %s has %d namespaces, or one of them several disks, and the volume_context does not name one; add its uuid: %s", l.NQN, len(disks), strings.Join(others, "; "))
}

func toDevice(n kernel.Namespace) node.Device {
	return node.Device{Path: n.Path, Major: n.Major, Minor: n.Minor, Backing: backing(n)}
}

// separator cannot be in an NQN.
const separator = " "

// backing identifies a namespace in all targets.
func backing(n kernel.Namespace) string { return n.NQN + separator + n.WWID }

// isLive reports whether a path executes I/O.
func (at attached) isLive() bool {
	return slices.ContainsFunc(at.controllers, func(c kernel.Controller) bool {
		return c.State == kernel.StateLive && at.blocked[c.Name] == ""
	})
}

// blocked returns the states of a namespace, or of any with NSID 0, by the names of
// the controllers at which it is not accessible.
func (a *Attacher) blocked(controllers []kernel.Controller, nsid uint32) (map[string]string, error) {
	blocked := map[string]string{}
	for _, c := range controllers {
		states, err := a.kernel.ANAStates(c)
		if err != nil {
			return nil, fmt.Errorf("read the ANA states of %s: %w", c.Name, err)
		}
		for id, state := range states {
			if (nsid == 0 || id == nsid) && !kernel.IsAccessible(state) {
				blocked[c.Name] = state
			}
		}
	}
	return blocked, nil
}

func (a *Attacher) unreachable(r record, at attached) error {
	return errs.Errorf(errs.Unavailable, "no path works: %s; the subsystem is %s", strings.Join(states(r, at), ", "), r.NQN)
}

// states describes the paths of a volume that do not work.
func states(r record, at attached) (down []string) {
	missing := map[string]bool{}
	if l, err := access.Decode(r.Locator); err == nil {
		for _, p := range l.(access.NVMe).Paths {
			missing[p.String()] = true
		}
	}
	for _, c := range at.controllers {
		delete(missing, c.Address.String())
		switch state := at.blocked[c.Name]; {
		case c.State != kernel.StateLive:
			down = append(down, fmt.Sprintf("%s at %v is %s", c.Name, c.Address, c.State))
		case state != "":
			down = append(down, fmt.Sprintf("%s at %v is connected, but its target reports the namespace as %s (ANA)", c.Name, c.Address, state))
		}
	}
	for address := range missing {
		down = append(down, address+" is not connected")
	}
	slices.Sort(down)
	return down
}

// conditions returns what is wrong with the paths of an attached volume.
func conditions(r record, at attached) (all []volume.Condition) {
	if !at.multipath { // one path is used, and flushes fail honestly
		return nil
	}
	if down := states(r, at); len(down) > 0 && at.isLive() {
		all = append(all, volume.NewCondition(volume.Degraded, volume.ReasonPathDown, strings.Join(down, ", ")))
	}
	if r.Uncertain != "" && at.disk.WriteBack {
		all = append(all, volume.NewCondition(volume.Degraded, volume.ReasonFlushUncertain, r.Uncertain+
			"; a flush of that moment is lost if the target lost its volatile cache too"))
	}
	return all
}

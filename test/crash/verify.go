package crash

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
)

// verify compares the driver's lists, the pool's files, the kernel's mounts
// and loop devices with what the workers were told. With bytes set it also
// reads everything that was written to volumes in use.
func (s *station) verify(ctx context.Context, bytes bool) error {
	return errors.Join(s.verifyVolumes(ctx), s.verifySnapshots(ctx), s.verifyKernel(ctx), s.verifyPool(ctx), s.verifyData(bytes))
}

func (s *station) verifyVolumes(ctx context.Context) error {
	answer, err := csi.NewControllerClient(s.workers[0].conn).ListVolumes(ctx, &csi.ListVolumesRequest{})
	if err != nil {
		return fmt.Errorf("ListVolumes: %w", err)
	}
	listed := map[string]int64{}
	for _, e := range answer.GetEntries() {
		listed[e.GetVolume().GetVolumeId()] = e.GetVolume().GetCapacityBytes()
	}
	var errs []error
	unborn := 0
	for _, w := range s.workers {
		for _, d := range w.disks {
			size, ok := listed[d.id]
			delete(listed, d.id)
			switch gone := w.open != nil && w.open.goneVolume == d.id; {
			case !ok && !gone:
				errs = append(errs, fmt.Errorf("acknowledged volume %s is not listed", d))
			case ok && size < d.size:
				errs = append(errs, fmt.Errorf("volume %s was acknowledged with %d bytes and has %d", d, d.size, size))
			}
		}
		if w.open != nil {
			unborn += w.open.newVolumes
		}
	}
	if len(listed) > unborn {
		errs = append(errs, fmt.Errorf("%d volumes are listed that nobody owns, at most %d can come from unanswered calls: %v", len(listed), unborn, listed))
	}
	return errors.Join(errs...)
}

func (s *station) verifySnapshots(ctx context.Context) error {
	answer, err := csi.NewControllerClient(s.workers[0].conn).ListSnapshots(ctx, &csi.ListSnapshotsRequest{})
	if err != nil {
		return fmt.Errorf("ListSnapshots: %w", err)
	}
	listed := map[string]*csi.Snapshot{}
	for _, e := range answer.GetEntries() {
		listed[e.GetSnapshot().GetSnapshotId()] = e.GetSnapshot()
	}
	var errs []error
	unborn := 0
	for _, w := range s.workers {
		for _, p := range w.pictures {
			snap, ok := listed[p.id]
			delete(listed, p.id)
			switch gone := w.open != nil && slices.Contains(w.open.goneSnapshots, p.id); {
			case !ok && !gone:
				errs = append(errs, fmt.Errorf("acknowledged snapshot %s %s is not listed", p.name, p.id))
			case ok && (snap.GetGroupSnapshotId() != p.group || snap.GetSourceVolumeId() != p.source || snap.GetSizeBytes() != p.size):
				errs = append(errs, fmt.Errorf("snapshot %s changed: %v", p.name, snap))
			}
		}
		if w.open != nil {
			unborn += w.open.newSnapshots
		}
	}
	if len(listed) > unborn {
		errs = append(errs, fmt.Errorf("%d snapshots are listed that nobody owns, at most %d can come from unanswered calls", len(listed), unborn))
	}
	return errors.Join(errs...)
}

// verifyKernel wants exactly the mounts that the workers' state calls for,
// but for those of an unanswered call.
func (s *station) verifyKernel(ctx context.Context) error {
	table, err := mount.Table(ctx)
	if err != nil {
		return err
	}
	mounts := map[string]int{}
	for _, m := range table {
		if strings.HasPrefix(m.Target, filepath.Join(s.dir, "worker-")) {
			mounts[m.Target]++
		}
	}
	var errs []error
	expect := func(target string, want bool, what string) {
		n := mounts[target]
		delete(mounts, target)
		if want && n != 1 || !want && n != 0 {
			errs = append(errs, fmt.Errorf("%s: %d mounts at %s, want it mounted: %v", what, n, target, want))
		}
	}
	inUse := 0
	for _, w := range s.workers {
		for _, d := range slices.Concat(w.disks, w.inline) {
			open := w.open
			if d.staged {
				inUse++
			}
			if open != nil && open.staging == d.id {
				delete(mounts, w.staging(d))
			} else if !d.block {
				expect(w.staging(d), d.staged, "staging of "+d.String())
			}
			if open != nil && open.publishing == d.id {
				delete(mounts, w.target(d))
			} else {
				expect(w.target(d), d.published, "publish of "+d.String())
			}
		}
		if w.open != nil && w.open.ephemeral {
			for target := range mounts {
				if strings.Contains(target, "inline-"+fmt.Sprint(w.number)) {
					delete(mounts, target)
				}
			}
		}
	}
	for target := range mounts {
		errs = append(errs, fmt.Errorf("a mount that nobody owns: %s", target))
	}
	return errors.Join(append(errs, s.verifyLoops(ctx))...)
}

// verifyLoops wants one loop device per volume in use, none twice.
func (s *station) verifyLoops(ctx context.Context) error {
	names, err := volumeFiles(filepath.Join(s.dir, "pool"))
	if err != nil {
		return err
	}
	devices, err := loop.List(ctx)
	if err != nil {
		return err
	}
	bound := map[string]int{}
	for _, d := range devices {
		if name, ok := names[d.Backing]; ok {
			bound[name]++
		}
	}
	var errs []error
	spare := 0
	for _, w := range s.workers {
		for _, d := range w.disks {
			n := bound[d.id]
			delete(bound, d.id)
			unsure := w.open != nil && (w.open.staging == d.id)
			if d.staged && n != 1 && !unsure || n > 1 || !d.staged && n != 0 && !unsure {
				errs = append(errs, fmt.Errorf("%s has %d loop devices, staged is %v", d, n, d.staged))
			}
		}
		spare += len(w.inline)
		if w.open != nil && w.open.ephemeral {
			spare++
		}
	}
	if len(bound) > spare {
		errs = append(errs, fmt.Errorf("loop devices that nobody owns are bound to %v", bound))
	}
	return errors.Join(errs...)
}

func volumeFiles(pool string) (map[loop.Backing]string, error) {
	names, err := files(filepath.Join(pool, "volumes"))
	if err != nil {
		return nil, err
	}
	byBacking := map[loop.Backing]string{}
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(pool, "volumes", name), &st); err != nil {
			if errors.Is(err, unix.ENOENT) {
				continue
			}
			return nil, err
		}
		byBacking[loop.Backing{Dev: st.Dev, Inode: st.Ino}] = name
	}
	return byBacking, nil
}

// verifyPool wants a file for every volume and snapshot, and no other; a copy
// that goes on in the background is given time.
func (s *station) verifyPool(ctx context.Context) error {
	const bound = 5 * time.Second
	patience := time.NewTimer(bound)
	defer patience.Stop()
	for {
		err := s.poolMatches(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-patience.C:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond): // a background copy has no event to wait for
		}
	}
}

func (s *station) poolMatches(ctx context.Context) error {
	controller := csi.NewControllerClient(s.workers[0].conn)
	volumes, err := controller.ListVolumes(ctx, &csi.ListVolumesRequest{})
	if err != nil {
		return err
	}
	snapshots, err := controller.ListSnapshots(ctx, &csi.ListSnapshotsRequest{})
	if err != nil {
		return err
	}
	own := map[string]bool{}
	for _, e := range volumes.GetEntries() {
		own["volumes/"+e.GetVolume().GetVolumeId()] = true
	}
	for _, e := range snapshots.GetEntries() {
		own["snapshots/"+e.GetSnapshot().GetSnapshotId()] = true
	}
	extra := 0 // ephemeral volumes are not listed
	for _, w := range s.workers {
		extra += len(w.inline)
		if w.open != nil && w.open.ephemeral {
			extra++
		}
	}
	var errs []error
	for _, sub := range []string{"volumes", "snapshots", "incoming"} {
		names, err := files(filepath.Join(s.dir, "pool", sub))
		if err != nil {
			return err
		}
		for _, name := range names {
			key := sub + "/" + name
			if own[key] {
				delete(own, key)
				continue
			}
			if extra--; extra < 0 {
				errs = append(errs, fmt.Errorf("the pool holds %s, which nobody owns", key))
			}
		}
	}
	for key := range own {
		errs = append(errs, fmt.Errorf("the pool lacks %s, which is listed", key))
	}
	return errors.Join(errs...)
}

func (s *station) verifyData(all bool) error {
	var errs []error
	for _, w := range s.workers {
		for _, d := range slices.Concat(w.disks, w.inline) {
			if !d.published || w.open != nil && w.open.publishing == d.id {
				continue
			}
			left := 3
			for key, seed := range d.data {
				if left--; left < 0 && !all {
					break
				}
				if err := checkData(w.target(d), d.block, key, seed); err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", d, err))
				}
			}
		}
	}
	return errors.Join(errs...)
}

// verifyRest attaches every volume that is not in use, and a volume restored
// from every snapshot, and reads what they must hold.
func (w *worker) verifyRest() error {
	for _, p := range slices.Clone(w.pictures) {
		d := &disk{name: w.name("check"), block: p.block, fsType: p.fsType, size: p.size, data: p.data}
		source := &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: p.id}}}
		if err := w.createDisk(d, source); err != nil {
			return err
		}
		err := w.readAll(d)
		if err != nil {
			return fmt.Errorf("restored from %s: %w", p.name, err)
		}
		if err := w.remove(d); err != nil {
			return err
		}
	}
	for _, d := range w.disks {
		if err := w.readAll(d); err != nil {
			return err
		}
	}
	return nil
}

// readAll attaches a volume as far as it is not, reads all it must hold, and
// puts it back as it was.
func (w *worker) readAll(d *disk) error {
	var undo []func(*disk) error
	for _, s := range []struct {
		done     bool
		do, back func(*disk) error
	}{{d.granted, w.grant, w.revoke}, {d.staged, w.stage, w.unstage}, {d.published, w.publish, w.unpublish}} {
		if s.done {
			continue
		}
		if err := s.do(d); err != nil {
			return err
		}
		undo = append([]func(*disk) error{s.back}, undo...)
	}
	for key, seed := range d.data {
		if err := checkData(w.target(d), d.block, key, seed); err != nil {
			return fmt.Errorf("%s: %w", d, err)
		}
	}
	for _, back := range undo {
		if err := back(d); err != nil {
			return err
		}
	}
	return nil
}

package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/test/crash/workload/site"
)

// verifyMounts compares the mounts with the workers' models, except those of a
// pending call.
func (s *Instance) verifyMounts(seen site.Snapshot) error {
	mounts := maps.Clone(seen.Mounts)
	var errs []error
	expect := func(target string, want bool, what string) {
		n := mounts[target]
		delete(mounts, target)
		if want && n != 1 || !want && n != 0 {
			errs = append(errs, fmt.Errorf("%s: %d mounts at %s, want it mounted: %v", what, n, target, want))
		}
	}
	for _, w := range s.workers {
		for _, d := range slices.Concat(w.disks, w.inline) {
			if w.open != nil && w.open.staging == d.id {
				delete(mounts, w.staging(d))
			} else if !d.block {
				expect(w.staging(d), d.staged, "staging of "+d.String())
			}
			if w.open != nil && w.open.publishing == d.id {
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
		errs = append(errs, fmt.Errorf("a mount without an owner: %s", target))
	}
	return errors.Join(errs...)
}

// verifyLoops checks that each volume in use has exactly one loop device, with
// the requested settings.
func (s *Instance) verifyLoops(seen site.Snapshot) error {
	bound := maps.Clone(seen.Loops)
	var errs []error
	spare := 0
	for _, w := range s.workers {
		for _, d := range w.disks {
			loops := bound[d.id]
			delete(bound, d.id)
			errs = append(errs, w.verifyLoop(d, loops))
		}
		for _, d := range w.inline {
			if d.published {
				spare++
			}
		}
		if w.open != nil && w.open.ephemeral {
			spare++
		}
	}
	if len(bound) > spare {
		errs = append(errs, fmt.Errorf("loop devices without an owner are bound to %v", bound))
	}
	return errors.Join(errs...)
}

func (w *worker) verifyLoop(d *disk, loops []site.Loop) error {
	n := len(loops)
	unsure := w.open != nil && w.open.staging == d.id
	modifying := w.open != nil && w.open.modifying == d.id
	switch {
	case n > 1, !unsure && d.staged != (n == 1):
		return fmt.Errorf("%s has %d loop devices, staged is %v", d, n, d.staged)
	case d.staged && !unsure && !modifying && d.readAhead != 0 && loops[0].ReadAheadKiB != d.readAhead:
		return fmt.Errorf("%s reads %d KiB ahead, want %d", d, loops[0].ReadAheadKiB, d.readAhead)
	}
	return nil
}

// verifyFiles checks the sizes of the files of acknowledged volumes and
// snapshots, and that those of thick volumes are fully allocated.
func (s *Instance) verifyFiles(seen site.Snapshot) error {
	var errs []error
	for _, w := range s.workers {
		for _, d := range w.disks {
			f, ok := seen.Files["volumes/"+d.id]
			switch modifying := w.open != nil && w.open.modifying == d.id; {
			case !ok: // verifyPool reports missing files
			case f.Size < d.size:
				errs = append(errs, fmt.Errorf("the file of volume %s has %d bytes, want %d", d, f.Size, d.size))
			case d.thick && !modifying && f.Allocated < d.size:
				errs = append(errs, fmt.Errorf("thick volume %s has %d of %d bytes allocated", d, f.Allocated, d.size))
			}
		}
		for _, p := range w.snapshots {
			if f, ok := seen.Files["snapshots/"+p.id]; ok && f.Size != p.size {
				errs = append(errs, fmt.Errorf("the file of snapshot %s has %d bytes, want %d", p.name, f.Size, p.size))
			}
		}
	}
	return errors.Join(errs...)
}

// verifyPool checks that the pool has a file for every volume and snapshot, and
// no other. It waits for background copies, for at most the timeout of a call, and
// returns the last snapshot.
func (s *Instance) verifyPool(ctx context.Context) (site.Snapshot, error) {
	patience := time.NewTimer(s.config.Patience)
	defer patience.Stop()
	for {
		seen, err := s.machine.Look(ctx)
		if err != nil {
			return seen, err
		}
		err = s.poolMatches(ctx, seen)
		if err == nil {
			return seen, nil
		}
		select {
		case <-patience.C:
			return seen, err
		case <-ctx.Done():
			return seen, ctx.Err()
		case <-time.After(50 * time.Millisecond): // a background copy has no event to wait for
		}
	}
}

func (s *Instance) poolMatches(ctx context.Context, seen site.Snapshot) error {
	own, err := s.listed(ctx)
	if err != nil {
		return err
	}
	extra := 0 // ephemeral volumes are not listed
	for _, w := range s.workers {
		extra += len(w.inline)
		if w.open != nil && w.open.ephemeral {
			extra++
		}
	}
	var errs []error
	for name := range seen.Files {
		if own[name] {
			delete(own, name)
			continue
		}
		if extra--; extra < 0 {
			errs = append(errs, fmt.Errorf("the pool contains %s without an owner", name))
		}
	}
	for name := range own {
		errs = append(errs, fmt.Errorf("the pool lacks %s, which is listed", name))
	}
	return errors.Join(errs...)
}

// listed returns the files that correspond to the driver's lists.
func (s *Instance) listed(ctx context.Context) (map[string]bool, error) {
	volumes, err := s.controller().ListVolumes(ctx, &csi.ListVolumesRequest{})
	if err != nil {
		return nil, err
	}
	snapshots, err := s.controller().ListSnapshots(ctx, &csi.ListSnapshotsRequest{})
	if err != nil {
		return nil, err
	}
	own := map[string]bool{}
	for _, e := range volumes.GetEntries() {
		own["volumes/"+e.GetVolume().GetVolumeId()] = true
	}
	for _, e := range snapshots.GetEntries() {
		own["snapshots/"+e.GetSnapshot().GetSnapshotId()] = true
	}
	return own, nil
}

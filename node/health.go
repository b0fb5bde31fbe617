package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/fsinfo"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume"
)

// Health returns a volume's adverse conditions, from this node and its storage.
// NotFound: unknown to both.
func (m *Manager) Health(ctx context.Context, id volume.ID) ([]volume.Condition, error) {
	stage, staged, err := m.records.stage(ctx, id)
	if err != nil {
		return nil, err
	}
	publishes, err := m.records.publishesOf(ctx, id)
	if err != nil {
		return nil, err
	}
	var all conditions
	engine := id
	if staged && m.isExpected(id, stage.State, stage.mounted) {
		if err := m.checkStage(ctx, stage, &all); err != nil {
			return nil, err
		}
	}
	for _, p := range publishes {
		if p.Inline != nil && p.Inline.Volume != "" {
			engine = p.Inline.Volume
		}
		if m.isExpected(id, p.State, p.mounted) {
			if err := m.checkPublish(ctx, p, &all); err != nil {
				return nil, err
			}
		}
	}
	known := staged || len(publishes) > 0
	return m.withStorage(ctx, id, engine, known, all)
}

// isExpected: the record must have a mount, unless a call changes the volume,
// or after a reboot.
func (m *Manager) isExpected(id volume.ID, s state, on mounted) bool {
	return s == ready && on.Boot == m.boot && !m.isChanging(id)
}

func (m *Manager) withStorage(ctx context.Context, id, engine volume.ID, known bool, all conditions) ([]volume.Condition, error) {
	if m.config.Health == nil {
		if !known {
			return nil, errs.Errorf(errs.NotFound, "volume %s is not known on this node", id)
		}
		return all, nil
	}
	more, err := m.config.Health.VolumeHealth(ctx, engine)
	if err != nil && !(known && errors.Is(err, errs.NotFound)) {
		return nil, err
	}
	all.addAll(more)
	return all, nil
}

// StorageHealth returns the storage's adverse conditions, from this node and
// the storage.
func (m *Manager) StorageHealth(ctx context.Context) ([]volume.Condition, error) {
	all, err := m.storageHere(ctx)
	if err != nil || m.config.Health == nil {
		return all, err
	}
	more, err := m.config.Health.StorageHealth(ctx)
	all.addAll(more)
	return all, err
}

// storageHere returns what this node knows of the storage.
func (m *Manager) storageHere(ctx context.Context) (all conditions, err error) {
	for _, at := range m.config.Attachers {
		_, err := at.Held(ctx)
		switch {
		case errors.Is(err, errs.Unavailable):
			all.add(volume.Inaccessible, volume.ReasonStorageUnreachable, err.Error())
		case err != nil:
			return nil, err
		}
	}
	return all, m.checkInline(ctx, &all)
}

// checkInline reports an inline volume that exists although the directory of its
// target is gone: the orchestrator does not unpublish it, and no list has it.
// Its pod can still publish it again, so it is not deleted.
func (m *Manager) checkInline(ctx context.Context, all *conditions) error {
	volumes, err := m.records.all(ctx)
	if err != nil {
		return err
	}
	for _, id := range slices.Sorted(maps.Keys(volumes)) {
		for _, p := range volumes[id].publishes {
			if p.Inline == nil || p.State != ready || m.isChanging(id) {
				continue
			}
			if _, err := os.Lstat(filepath.Dir(p.Target)); !errors.Is(err, fs.ErrNotExist) {
				continue
			}
			s, _, err := m.sourceOf(ctx, p.publishRecord)
			if err != nil {
				return err
			}
			if info, err := s.inspect(ctx); err != nil || info.Presence == Missing {
				continue // deleted, or the storage's own condition
			}
			all.add(volume.Notice, volume.ReasonInlineVolumeLeft, fmt.Sprintf("cleat volume delete %s; the directory of its pod is gone", p.Inline.Volume))
		}
	}
	return nil
}

// conditions has the first condition per severity and reason.
type conditions []volume.Condition

func (c *conditions) add(s volume.Severity, reason, what string) {
	c.addAll([]volume.Condition{volume.NewCondition(s, reason, what)})
}

func (c *conditions) addAll(more []volume.Condition) {
	for _, n := range more {
		if !slices.ContainsFunc(*c, func(have volume.Condition) bool { return have.Severity == n.Severity && have.Reason == n.Reason }) {
			*c = append(*c, n)
		}
	}
}

func (m *Manager) checkStage(ctx context.Context, rec stageRecord, all *conditions) error {
	s, err := m.source(rec.Locator, rec.mounted)
	if err != nil {
		return err
	}
	v, err := s.inspect(ctx)
	if err != nil {
		return err
	}
	checkPresence(v, all)
	all.addAll(v.Conditions)
	if v.Device.IsZero() {
		all.add(volume.Inaccessible, volume.ReasonUnmounted, "its device is gone; it is staged at "+rec.Staging)
		return nil
	}
	if rec.Capability.Block {
		return nil
	}
	if err := checkMount(ctx, rec.Staging, v.Device, rec.ReadOnly, all); v.Presence == Lost {
		return nil // the kernel has no state of a file system whose disk it has removed
	} else if err != nil || rec.NotGrown == "" {
		return err
	}
	full, err := isFull(ctx, v.Device, v.Size)
	if err == nil && !full {
		all.add(volume.Degraded, volume.ReasonFileSystemNotGrown, fmt.Sprintf("the volume has %d bytes, its file system fewer: %s", v.Size, rec.NotGrown))
	}
	return err
}

func (m *Manager) checkPublish(ctx context.Context, p publication, all *conditions) error {
	if p.Inline != nil {
		s, _, err := m.sourceOf(ctx, p.publishRecord)
		if err != nil {
			return err
		}
		v, err := s.inspect(ctx)
		if err != nil {
			return err
		}
		checkPresence(v, all)
		if err := checkMount(ctx, p.Target, v.Device, p.ReadOnly, all); v.Presence != Lost {
			return err
		}
		return nil
	}
	there, err := m.isPublished(ctx, p.Target, p.publishRecord)
	if err == nil && !there {
		all.add(volume.Inaccessible, volume.ReasonUnmounted, "it is not mounted at its target "+p.Target)
	}
	return err
}

func checkPresence(v Info, all *conditions) {
	switch v.Presence {
	case Missing:
		all.add(volume.DataLoss, volume.ReasonFileMissing, fmt.Sprint(v.Problem))
	case Foreign:
		all.add(volume.DataLoss, volume.ReasonFileForeign, fmt.Sprint(v.Problem))
	case Truncated:
		all.add(volume.DataLoss, volume.ReasonFileTruncated, fmt.Sprint(v.Problem))
	case Replaced:
		all.add(volume.DataLoss, volume.ReasonFileDeleted, fmt.Sprint(v.Problem, "; its data exists until the volume is unstaged"))
	case Lost:
		all.add(volume.Inaccessible, volume.ReasonDeviceLost, fmt.Sprint(v.Problem))
	case Unreachable:
		all.add(volume.Inaccessible, volume.ReasonStorageUnreachable, fmt.Sprint(v.Problem))
	}
}

// checkMount checks a mounted file system's state in the kernel.
func checkMount(ctx context.Context, path string, d Device, readOnly bool, all *conditions) error {
	e, there, err := mountAt(ctx, path, d)
	if ignoreForeign(err) != nil {
		return err
	}
	if !there {
		all.add(volume.Inaccessible, volume.ReasonUnmounted, "it is not mounted at "+path)
		return nil
	}
	checkWritable(e, readOnly, all)
	if d.IsDirectory() {
		return nil
	}
	faults, err := fsinfo.Errors(ctx, path, mkfs.Type(e.FSType))
	if err != nil {
		return err
	}
	if faults.Shutdown {
		all.add(volume.Inaccessible, volume.ReasonFileSystemShutdown, "the file system shut down after an error")
	}
	if faults.Count > 0 {
		all.add(volume.Degraded, volume.ReasonFileSystemErrors, fmt.Sprintf("the kernel has counted %d errors of the file system", faults.Count))
	}
	return nil
}

// checkWritable: after an error, since Linux 6.12, ext4 sets the option
// emergency_ro instead of ro.
func checkWritable(e mount.Entry, readOnly bool, all *conditions) {
	if !readOnly && (e.ReadOnly() || slices.Contains(e.SuperOptions, "emergency_ro")) {
		all.add(volume.Degraded, volume.ReasonRemountedReadOnly, "the kernel has made the file system read-only")
	}
}

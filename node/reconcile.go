package node

import (
	"context"
	"fmt"
	"sync"

	"github.com/cleatproject/cleat/volume"
)

// reconciledAtOnce is how many volumes are reconciled at the same time. Each that
// is held by another process takes a second or two, spent on waiting.
const reconciledAtOnce = 32

// leftover is what is on record of a volume.
type leftover struct {
	stage     *stageRecord // nil: not staged
	publishes []placed
}

// Reconcile brings records and kernel together after a start: what was begun
// and never acknowledged is rolled back, what was being undone is finished,
// what stands is adopted, and devices that nobody owns are detached. Of an
// earlier boot of the machine only the records are left; they stay, so that
// what was made can be made again or cleaned up after, whichever the
// orchestrator asks for. What cannot be brought in order now is logged and left
// for the call that names it. Volumes are reconciled in parallel. Nothing else may
// run meanwhile.
func (m *Manager) Reconcile(ctx context.Context) error {
	volumes, err := m.leftovers(ctx)
	if err != nil {
		return err
	}
	inParallel(volumes, func(id volume.ID, l leftover) {
		for _, p := range l.publishes {
			if err := m.reconcilePublish(ctx, p); err != nil {
				m.report(ctx, "publish", p.Target, err)
			}
		}
		if l.stage == nil {
			return
		}
		if err := m.reconcileStage(ctx, id, *l.stage); err != nil {
			m.report(ctx, "stage", string(id), err)
		}
	})
	m.detachOrphans(ctx)
	return ctx.Err()
}

// leftovers returns all records by volume.
func (m *Manager) leftovers(ctx context.Context) (map[volume.ID]leftover, error) {
	stages, err := m.records.allStages(ctx)
	if err != nil {
		return nil, err
	}
	publishes, err := m.records.publishesOf(ctx, "")
	if err != nil {
		return nil, err
	}
	all := map[volume.ID]leftover{}
	for id, rec := range stages {
		all[id] = leftover{stage: &rec}
	}
	for _, p := range publishes {
		l := all[p.Volume]
		l.publishes = append(l.publishes, p)
		all[p.Volume] = l
	}
	return all, nil
}

// inParallel calls a function for each volume, for some at the same time, and
// returns when all have ended.
func inParallel[T any](volumes map[volume.ID]T, fn func(volume.ID, T)) {
	slots := make(chan struct{}, reconciledAtOnce)
	var running sync.WaitGroup
	for id, v := range volumes {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			fn(id, v)
		})
	}
	running.Wait()
}

func (m *Manager) report(ctx context.Context, what, which string, err error) {
	m.log.WarnContext(ctx, "start-up left something as it was", what, which, "error", err)
}

func (m *Manager) reconcilePublish(ctx context.Context, p placed) error {
	if p.State != settled {
		return m.unpublish(ctx, p.Target, p.publishRecord)
	}
	there, err := m.isPublished(ctx, p.Target, p.publishRecord)
	if err != nil {
		return err
	}
	if !there {
		m.log.InfoContext(ctx, "a published volume is not mounted any more", "volume", p.Volume, "target", p.Target, "rebooted", p.Boot != m.boot)
		return nil
	}
	d, err := m.deviceOf(ctx, p.publishRecord)
	if err != nil || p.Boot == m.boot && p.Device == d {
		return err
	}
	p.Boot, p.Device = m.boot, d
	return m.records.putPublish(ctx, p.Target, p.publishRecord)
}

func (m *Manager) reconcileStage(ctx context.Context, id volume.ID, rec stageRecord) error {
	if rec.State != settled {
		live, err := m.livePublishes(ctx, id)
		if err != nil {
			return err
		}
		if len(live) > 0 {
			return fmt.Errorf("the stage was interrupted while the volume is published at %s", live[0].Target)
		}
		return m.unstage(ctx, id, rec)
	}
	s, err := m.source(rec.Locator, rec.mounted)
	if err != nil {
		return err
	}
	v, err := s.look(ctx)
	if err != nil {
		return err
	}
	there, err := m.isStaged(ctx, rec)
	if err != nil {
		return err
	}
	if !there {
		m.log.InfoContext(ctx, "a staged volume is not there any more", "volume", id, "staging", rec.Staging, "rebooted", rec.Boot != m.boot)
		return nil
	}
	if rec.Boot == m.boot && rec.Device == v.Device {
		return nil
	}
	rec.Boot, rec.Device = m.boot, v.Device
	return m.records.putStage(ctx, id, rec)
}

// detachOrphans detaches the devices of our storage that no record owns and
// that nobody uses.
func (m *Manager) detachOrphans(ctx context.Context) {
	owned, err := m.ownedDevices(ctx)
	if err != nil {
		m.report(ctx, "step", "devices that nobody owns", err)
		return
	}
	for protocol, at := range m.config.Attachers {
		held, err := at.Held(ctx)
		if err != nil {
			m.report(ctx, "storage", protocol, err)
			continue
		}
		orphans := map[volume.ID][]Held{}
		for _, h := range held {
			if !owned[h.Device] {
				orphans[h.Volume] = append(orphans[h.Volume], h)
			}
		}
		inParallel(orphans, func(_ volume.ID, devices []Held) {
			for _, h := range devices {
				if err := m.detachOrphan(ctx, at, h); err != nil {
					m.report(ctx, "device", h.Device.Path, err)
				}
			}
		})
	}
}

func (m *Manager) ownedDevices(ctx context.Context) (map[Device]bool, error) {
	stages, err := m.records.allStages(ctx)
	if err != nil {
		return nil, err
	}
	publishes, err := m.records.publishesOf(ctx, "")
	if err != nil {
		return nil, err
	}
	owned := map[Device]bool{}
	for _, rec := range stages {
		s, err := m.source(rec.Locator, rec.mounted)
		if err != nil {
			return nil, err
		}
		v, err := s.look(ctx)
		if err != nil {
			return nil, err
		}
		owned[rec.Device], owned[v.Device] = true, true
	}
	for _, p := range publishes {
		d, err := m.deviceOf(ctx, p.publishRecord)
		if err != nil {
			return nil, err
		}
		owned[p.Device], owned[d] = true, true
	}
	return owned, nil
}

// detachOrphan detaches a device, unless it is mounted: that is somebody's work.
func (m *Manager) detachOrphan(ctx context.Context, at Attacher, h Held) error {
	mounts, err := mountsOf(ctx, h.Device)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("no record owns it, and it is mounted at %s", mounts[0].Target)
	}
	if err := at.Detach(ctx, Target{Locator: h.Locator, Device: h.Device}); err != nil {
		return err
	}
	m.log.InfoContext(ctx, "detached a device that nobody owned", "device", h.Device.Path, "volume", h.Volume)
	return nil
}

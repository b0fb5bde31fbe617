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

// Reconcile brings records and kernel together after a start: what is complete is
// adopted, what is not is undone, and devices without a record are detached.
// Records of an earlier boot of the machine stay, so that what they describe can
// be mounted again or removed, whichever the orchestrator asks for; inline
// volumes stay in any case. What cannot be undone now is logged and left to the
// call that names it. Volumes are reconciled in parallel. No call may be running.
func (m *Manager) Reconcile(ctx context.Context) error {
	volumes, err := m.records.all(ctx)
	if err != nil {
		return err
	}
	inParallel(volumes, func(id volume.ID, v volumeRecords) {
		for _, p := range v.publishes {
			if err := m.reconcilePublish(ctx, p); err != nil {
				m.report(ctx, "publish", p.Target, err)
			}
		}
		if v.stage == nil {
			return
		}
		if err := m.reconcileStage(ctx, id, *v.stage); err != nil {
			m.report(ctx, "stage", string(id), err)
		}
	})
	m.detachOrphans(ctx)
	return ctx.Err()
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
	m.log.WarnContext(ctx, "start-up could not adopt or undo", what, which, "error", err)
}

func (m *Manager) reconcilePublish(ctx context.Context, p publication) error {
	if p.State != ready {
		return m.unpublish(ctx, p.Target, p.publishRecord)
	}
	there, err := m.isPublished(ctx, p.Target, p.publishRecord)
	if err != nil {
		return err
	}
	if !there {
		keep := p.Inline != nil || p.Boot != m.boot
		m.log.InfoContext(ctx, "published volume is not mounted", "volume", p.Volume, "target", p.Target, "rebooted", p.Boot != m.boot, "undone", !keep)
		if keep {
			return nil
		}
		return m.unpublish(ctx, p.Target, p.publishRecord)
	}
	d, err := m.deviceOf(ctx, p.publishRecord)
	if err != nil || p.Boot == m.boot && p.Device == d {
		return err
	}
	p.Boot, p.Device = m.boot, d
	return m.records.putPublish(ctx, p.Target, p.publishRecord)
}

func (m *Manager) reconcileStage(ctx context.Context, id volume.ID, rec stageRecord) error {
	live, err := m.livePublishes(ctx, id)
	if err != nil {
		return err
	}
	if rec.State == ready {
		at, err := m.findStage(ctx, rec)
		if err != nil {
			return err
		}
		if at.live {
			return m.adoptStage(ctx, id, rec, at)
		}
		keep := rec.Boot != m.boot || at.info.Presence == Unreachable || len(live) > 0
		m.log.InfoContext(ctx, "volume is not staged", "volume", id, "staging", rec.Staging, "rebooted", rec.Boot != m.boot, "undone", !keep)
		if keep {
			return nil
		}
	}
	if len(live) > 0 {
		return fmt.Errorf("the stage was interrupted while the volume is published at %s", live[0].Target)
	}
	return m.unstage(ctx, id, rec)
}

// adoptStage commits what a complete stage is attached as, if that is news.
func (m *Manager) adoptStage(ctx context.Context, id volume.ID, rec stageRecord, at staged) error {
	if rec.Boot == m.boot && rec.Device == at.info.Device {
		return nil
	}
	rec.Boot, rec.Device, rec.FSType = m.boot, at.info.Device, at.entry.FSType
	return m.records.putStage(ctx, id, rec)
}

// detachOrphans detaches the devices of our storage that no record owns and
// that are not mounted.
func (m *Manager) detachOrphans(ctx context.Context) {
	owned, err := m.ownedDevices(ctx)
	if err != nil {
		m.report(ctx, "step", "detach devices without a record", err)
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

// ownedDevices returns the devices that records own.
func (m *Manager) ownedDevices(ctx context.Context) (map[Device]bool, error) {
	all, err := m.records.all(ctx)
	if err != nil {
		return nil, err
	}
	owned := map[Device]bool{}
	for _, v := range all {
		if v.stage != nil {
			s, err := m.source(v.stage.Locator, v.stage.mounted)
			if err != nil {
				return nil, err
			}
			info, err := s.inspect(ctx)
			if err != nil {
				return nil, err
			}
			owned[v.stage.Device], owned[info.Device] = true, true
		}
		for _, p := range v.publishes {
			d, err := m.deviceOf(ctx, p.publishRecord)
			if err != nil {
				return nil, err
			}
			owned[p.Device], owned[d] = true, true
		}
	}
	return owned, nil
}

// detachOrphan detaches a device, unless it is mounted: then somebody uses it.
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
	m.log.InfoContext(ctx, "detached a device without a record", "device", h.Device.Path, "volume", h.Volume)
	return nil
}

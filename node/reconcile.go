package node

import (
	"context"
	"fmt"
	"sync"

	"github.com/cleatproject/cleat/volume"
)

// maxReconciles is the parallelism. A volume of another process takes a second
// or two of waiting.
const maxReconciles = 32

// Reconcile compares records and kernel at start-up: complete stages and
// publishes are adopted, incomplete ones rolled back, and devices without a
// record detached. Records of an earlier boot, and of inline volumes, stay: the
// orchestrator mounts or removes those volumes. Failures are logged; the next
// call for the volume retries. No other call can be in flight.
func (m *Manager) Reconcile(ctx context.Context) error {
	volumes, err := m.records.all(ctx)
	if err != nil {
		return err
	}
	inParallel(volumes, func(id volume.ID, v volumeRecords) {
		locked, done, err := m.change(ctx, id)
		if err != nil {
			m.report(ctx, "volume", string(id), err)
			return
		}
		defer done()
		for _, p := range v.publishes {
			if err := m.reconcilePublish(locked, p); err != nil {
				m.report(ctx, "publish", p.Target, err)
			}
		}
		if v.stage == nil {
			return
		}
		if err := m.reconcileStage(locked, id, *v.stage); err != nil {
			m.report(ctx, "stage", string(id), err)
		}
	})
	m.detachOrphans(ctx)
	return ctx.Err()
}

func inParallel[T any](volumes map[volume.ID]T, fn func(volume.ID, T)) {
	slots := make(chan struct{}, maxReconciles)
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

func (m *Manager) report(ctx context.Context, key, value string, err error) {
	m.log.WarnContext(ctx, "startup reconciliation failed, left to the next call", key, value, "err", err)
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
		keepRecord := p.Inline != nil || p.Boot != m.boot
		m.log.InfoContext(ctx, "published volume is not mounted", "volume", p.Volume, "target", p.Target, "rebooted", p.Boot != m.boot, "removed", !keepRecord)
		if keepRecord {
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
		keepRecord := rec.Boot != m.boot || at.info.Presence == Unreachable || rec.Lost || len(live) > 0
		m.log.InfoContext(ctx, "volume is not staged", "volume", id, "path", rec.Staging, "rebooted", rec.Boot != m.boot, "removed", !keepRecord)
		if keepRecord {
			return nil
		}
	}
	if len(live) > 0 {
		return fmt.Errorf("the stage is incomplete, and the volume is still published at %s", live[0].Target)
	}
	return m.unstage(ctx, id, rec)
}

// adoptStage records a changed device of a complete stage.
func (m *Manager) adoptStage(ctx context.Context, id volume.ID, rec stageRecord, at staged) error {
	if rec.Boot == m.boot && rec.Device == at.info.Device && !rec.Lost {
		return nil
	}
	rec.Lost, rec.Boot, rec.Device, rec.FSType = false, m.boot, at.info.Device, at.entry.FSType
	return m.records.putStage(ctx, id, rec)
}

// Orphans are devices of the driver's storage without a record or mount.
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

// A mounted device is in use.
func (m *Manager) detachOrphan(ctx context.Context, at Attacher, h Held) error {
	mounts, err := mountsOf(ctx, h.Device)
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("the device has no record, but is mounted at %s", mounts[0].Target)
	}
	if err := at.Detach(ctx, Target{Locator: h.Locator, Device: h.Device}); err != nil {
		return err
	}
	m.log.InfoContext(ctx, "detached orphaned device", "device", h.Device.Path, "volume", h.Volume)
	return nil
}

package node

import (
	"context"
	"errors"
	"time"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Helpers that create the records of a crash in any state.

const (
	Creating = string(creating)
	Ready    = string(ready)
	Deleting = string(deleting)
)

func (m *Manager) PutStageRecord(ctx context.Context, r StageRequest, s, boot string, d Device) error {
	c, err := newStoredCapability(r.Capability)
	if err != nil {
		return err
	}
	return m.records.putStage(ctx, r.Volume, stageRecord{
		Locator: access.Encode(r.Locator), Staging: r.Staging, Capability: c, ReadOnly: requestsReadOnly(r.Capability),
		State: state(s), mounted: mounted{Device: d, Boot: boot, Since: time.Now()},
	})
}

func (m *Manager) PutPublishRecord(ctx context.Context, r PublishRequest, s, boot string, d Device) error {
	c, err := newStoredCapability(r.Capability)
	if err != nil {
		return err
	}
	rec := publishRecord{
		Volume: r.Volume, Staging: r.Staging, Capability: c, ReadOnly: r.readOnly(),
		State: state(s), mounted: mounted{Device: d, Boot: boot, Since: time.Now()},
	}
	if r.Inline != nil {
		rec.Inline = newInline(r.Volume, *r.Inline)
	}
	return m.records.putPublish(ctx, r.Target, rec)
}

// PutDamagedRecords adds a stage and a publish that cannot be decoded.
func (m *Manager) PutDamagedRecords(ctx context.Context) error {
	return m.records.store.Update(ctx, func(tx *store.Tx) error {
		return errors.Join(
			store.Bucket[string]{Name: m.records.stages.Name}.Put(tx, "vol-damaged", "-"),
			store.Bucket[string]{Name: m.records.publishes.Name}.Put(tx, "/damaged", "-"))
	})
}

// StageState is "" without a record.
func (m *Manager) StageState(ctx context.Context, id volume.ID) (string, error) {
	rec, _, err := m.records.stage(ctx, id)
	return string(rec.State), err
}

// PublishState is "" without a record.
func (m *Manager) PublishState(ctx context.Context, target string) (string, error) {
	rec, _, err := m.records.publish(ctx, target)
	return string(rec.State), err
}

// InlineName is the requested name.
func InlineName(id volume.ID) string { return newInline(id, InlineVolume{}).Name }

// Boot is the current boot.
func (m *Manager) Boot() string { return m.boot }

func IsSystemPath(path string) bool { _, ok := systemPath(path); return ok }

// Give and IsGiven are for VOLUME_MOUNT_GROUP.
func Give(ctx context.Context, dir string, gid int) error {
	_, err := applyGroup(ctx, dir, gid)
	return err
}

var IsGiven = isGroupApplied

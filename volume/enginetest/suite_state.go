package enginetest

import (
	"maps"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func testModify(t *trial) {
	v := t.create(t.request("tuned"))
	if t.Backend.Modifier == nil {
		t.Log("not supported: Modifier")
		return
	}
	for key, value := range t.Parameters {
		if got, mutable := v.Attributes[key]; mutable && got != value {
			t.Errorf("created with %s=%s, got %s", key, value, got)
		}
	}
	t.write(v, 1, 0)
	for _, change := range t.Changes {
		before := t.filled(v.ID)
		for range 2 {
			got, err := t.Backend.Modifier.Modify(t.ctx, v.ID, change)
			if err != nil {
				t.Fatalf("Modify(%v): %v", change, err)
			}
			want := maps.Clone(before.Attributes)
			maps.Copy(want, change)
			t.same("Attributes after Modify", got.Attributes, want)
		}
		t.same("Attributes from Get", t.filled(v.ID).Attributes, merged(before.Attributes, change))
	}
	t.holds(v, 1, 0)

	before := t.filled(v.ID)
	bad := maps.Clone(t.Changes[0]) // differs from the last change
	bad["noSuchKey"] = "1"
	_, err := t.Backend.Modifier.Modify(t.ctx, v.ID, bad)
	t.wantKind(err, "Modify with an unknown key", errs.Invalid)
	t.same("a volume after a refused Modify", t.filled(v.ID), before)
	if _, err := t.Backend.Modifier.Modify(t.ctx, v.ID, nil); err != nil {
		t.Errorf("Modify of nothing: %v", err)
	}
	t.same("a volume after a Modify of nothing", t.filled(v.ID), before)

	again, err := t.Backend.Engine.Create(t.ctx, t.request("tuned"))
	if err != nil || again.ID != v.ID {
		t.Errorf("the same Create after Modify: %s, %v; want %s", again.ID, err, v.ID)
	}
}

func merged(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

func testHealth(t *trial) {
	if t.Backend.Health == nil {
		t.Log("not supported: Health")
		return
	}
	v := t.create(t.request("healthy"))
	conditions, err := t.Backend.Health.VolumeHealth(t.ctx, v.ID)
	if err != nil || len(conditions) != 0 {
		t.Errorf("VolumeHealth of a new volume: %+v, %v", conditions, err)
	}
	storage, err := t.Backend.Health.StorageHealth(t.ctx)
	if err != nil {
		t.Fatalf("StorageHealth: %v", err)
	}
	checkConditions(t.T, storage)
}

func checkConditions(t *testing.T, conditions []volume.Condition) {
	t.Helper()
	seen := map[volume.Condition]bool{}
	for _, c := range conditions {
		key := volume.Condition{Severity: c.Severity, Reason: c.Reason}
		if seen[key] {
			t.Errorf("condition %s %s is reported twice", c.Severity, c.Reason)
		}
		seen[key] = true
		switch c.Severity {
		case volume.Notice, volume.Degraded, volume.Inaccessible, volume.DataLoss:
		default:
			t.Errorf("condition %+v has an unknown severity", c)
		}
		CheckMessage(t, c, "")
	}
}

// csiText is the longest text of a condition in CSI, in bytes.
const csiText = 128

// CheckMessage checks that the action and the object are in the part of a
// condition's message that CSI passes on. No object: the volume itself.
func CheckMessage(t testing.TB, c volume.Condition, object string) {
	t.Helper()
	action, what, ok := strings.Cut(errs.Clip(c.Message, csiText), ": ")
	if !ok || c.Reason == "" || action == "" || what == "" || strings.HasSuffix(action, "…") || !strings.Contains(strings.TrimSuffix(what, "…"), object) {
		t.Errorf("%s: of the message only %q is passed on; want ACTION: WHAT with %q", c.Reason, errs.Clip(c.Message, csiText), object)
	}
}

func testReopen(t *trial) {
	if t.Reopen == nil {
		t.Log("not in the harness: Reopen, so durability is not tested")
		return
	}
	v := t.create(t.request("stays"))
	t.write(v, 1, 0)
	deleted := t.create(t.request("deleted"))
	t.remove(deleted.ID)
	v = t.expand(v.ID, volume.SizeRange{Required: 2 * t.Size})
	if t.Backend.Modifier != nil {
		var err error
		if v, err = t.Backend.Modifier.Modify(t.ctx, v.ID, t.Changes[0]); err != nil {
			t.Fatalf("Modify: %v", err)
		}
	}
	before := t.everything()
	t.Backend = t.Reopen(t.T, t.Backend)
	t.same("objects after reopen", t.everything(), before)
	t.gone(deleted.ID)
	t.holds(v, 1, 0)
	if again := t.createEventually(t.request("stays")); again.ID != v.ID {
		t.Errorf("the same Create after reopen returned %s, want %s", again.ID, v.ID)
	}
	if t.Backend.Snapshots != nil {
		t.reopenSnapshots(v)
	}
}

func (t *trial) reopenSnapshots(v volume.Volume) {
	t.Helper()
	s := t.takeSnapshot("snapshot", v.ID)
	t.write(v, 2, 0)
	var g volume.Group
	if t.Backend.Groups != nil {
		g = t.group("group", v.ID)
	}
	clone := t.create(t.from("from snapshot", volume.Source{Snapshot: s.ID}))
	before := t.everything()
	t.Backend = t.Reopen(t.T, t.Backend)
	t.same("objects after reopen", t.everything(), before)
	t.holds(clone, 1, 0)
	t.snapshotHolds(s, map[int64]uint64{0: 1})
	if t.Backend.Groups != nil {
		t.same("the group after reopen", t.group("group", v.ID), g)
		t.snapshotHolds(g.Snapshots[0], map[int64]uint64{0: 2})
	}
}

type inventory struct {
	Volumes   []volume.Volume
	Snapshots []volume.Snapshot
}

func (t *trial) everything() (all inventory) {
	t.Helper()
	all.Volumes = t.list()
	if t.Backend.Snapshots != nil {
		all.Snapshots = t.snapshots(volume.SnapshotQuery{})
	}
	return all
}

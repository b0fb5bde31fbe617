package enginetest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func (m *model) takeSnapshot() {
	p, ok := m.drawVolume("volume")
	if !ok {
		return
	}
	name := rapid.SampledFrom([]string{"s", "t", "u"}).Draw(m.rt, "name")
	want, wantErr := m.reference.CreateSnapshot(m.trial.ctx, volume.SnapshotRequest{Name: name, Source: p.reference})
	got, err := m.trial.Backend.Snapshots.CreateSnapshot(m.trial.ctx, volume.SnapshotRequest{Name: m.prefix + name, Source: p.engine})
	if m.agree(fmt.Sprintf("CreateSnapshot(%q of %s)", name, p.reference), wantErr, err, errs.NotFound, errs.Exists) {
		m.recordSnapshot(want, m.trial.ready(got.ID))
	}
}

func (m *model) recordSnapshot(want, got volume.Snapshot) {
	i := slices.IndexFunc(m.snapshots, func(p pair[volume.SnapshotID]) bool { return p.reference == want.ID })
	if i < 0 {
		m.snapshots = append(m.snapshots, pair[volume.SnapshotID]{want.ID, got.ID})
	} else if m.snapshots[i].engine != got.ID {
		m.rt.Fatalf("snapshot %s had id %s and has id %s", want.ID, m.snapshots[i].engine, got.ID)
	}
	if got.Size != want.Size || got.Content != m.trial.Content || m.volumeOf(got.Source) != want.Source || (got.Group == "") != (want.Group == "") {
		m.rt.Fatalf("the reference has snapshot %+v, the engine %+v", want, got)
	}
}

func (m *model) deleteSnapshot() {
	if p, ok := m.drawSnapshot("snapshot"); ok {
		m.agree("DeleteSnapshot", m.reference.DeleteSnapshot(m.trial.ctx, p.reference), m.trial.Backend.Snapshots.DeleteSnapshot(m.trial.ctx, p.engine))
	}
}

func (m *model) getSnapshot() {
	p, ok := m.drawSnapshot("snapshot")
	if !ok {
		return
	}
	want, wantErr := m.reference.GetSnapshot(m.trial.ctx, p.reference)
	got, err := m.trial.Backend.Snapshots.GetSnapshot(m.trial.ctx, p.engine)
	if m.agree("GetSnapshot", wantErr, err) {
		m.recordSnapshot(want, got)
	}
}

func (m *model) listSnapshots() {
	source, _ := m.drawVolume("source") // zero: all
	want, wantErr := m.reference.ListSnapshots(m.trial.ctx, volume.SnapshotQuery{Source: source.reference})
	got, err := m.trial.Backend.Snapshots.ListSnapshots(m.trial.ctx, volume.SnapshotQuery{Source: source.engine})
	if !m.agree("ListSnapshots", wantErr, err) {
		return
	}
	ids := func(all []volume.Snapshot, id func(volume.Snapshot) volume.SnapshotID) (out []volume.SnapshotID) {
		for _, s := range all {
			out = append(out, id(s))
		}
		slices.Sort(out)
		return out
	}
	wantIDs := ids(want, func(s volume.Snapshot) volume.SnapshotID { return s.ID })
	gotIDs := ids(got, func(s volume.Snapshot) volume.SnapshotID { return m.snapshotOf(s.ID) })
	if !slices.Equal(wantIDs, gotIDs) {
		m.rt.Fatalf("ListSnapshots of %q: the reference has %q, the engine %q", source.reference, wantIDs, gotIDs)
	}
}

func (m *model) createGroup() {
	if len(m.volumes) == 0 {
		return
	}
	chosen := rapid.SliceOfNDistinct(rapid.SampledFrom(m.volumes), 1, min(3, len(m.volumes)),
		func(p pair[volume.ID]) volume.ID { return p.reference }).Draw(m.rt, "members")
	name := rapid.SampledFrom([]string{"g", "h"}).Draw(m.rt, "name")
	onReference, onEngine := volume.GroupRequest{Name: name}, volume.GroupRequest{Name: m.prefix + "group " + name}
	for _, p := range chosen {
		onReference.Sources = append(onReference.Sources, p.reference)
		onEngine.Sources = append(onEngine.Sources, p.engine)
	}
	want, wantErr := m.reference.CreateGroup(m.trial.ctx, onReference)
	got, err := m.trial.Backend.Groups.CreateGroup(m.trial.ctx, onEngine)
	if !m.agree(fmt.Sprintf("CreateGroup(%+v)", onReference), wantErr, err, errs.NotFound, errs.Exists) {
		return
	}
	if p := (pair[volume.GroupID]{want.ID, got.ID}); !slices.Contains(m.groups, p) {
		m.groups = append(m.groups, p)
	}
	if len(got.Snapshots) != len(want.Snapshots) {
		m.rt.Fatalf("CreateGroup: the reference has %+v, the engine %+v", want, got)
	}
	for _, s := range want.Snapshots {
		i := slices.IndexFunc(got.Snapshots, func(e volume.Snapshot) bool { return m.volumeOf(e.Source) == s.Source })
		if i < 0 {
			m.rt.Fatalf("CreateGroup: the engine has no member of %s: %+v", s.Source, got)
		}
		m.recordSnapshot(s, m.trial.ready(got.Snapshots[i].ID))
	}
}

func (m *model) deleteGroup() {
	if len(m.groups) > 0 {
		p := rapid.SampledFrom(m.groups).Draw(m.rt, "group")
		m.agree("DeleteGroup", m.reference.DeleteGroup(m.trial.ctx, p.reference), m.trial.Backend.Groups.DeleteGroup(m.trial.ctx, p.engine))
	}
}

func (m *model) delta() {
	base, ok := m.drawSnapshot("base")
	if !ok {
		return
	}
	target, _ := m.drawSnapshot("target")
	want, wantErr := m.reference.Delta(m.trial.ctx, base.reference, target.reference, 0)
	got, err := m.trial.Backend.Deltas.Delta(m.trial.ctx, base.engine, target.engine, 0)
	if errors.Is(err, errs.Precondition) || !m.agree("Delta", wantErr, err) {
		return
	}
	list := m.trial.collect(got, 0)
	if list.size != want.Size {
		m.rt.Fatalf("Delta: reference has size %d, engine %d", want.Size, list.size)
	}
	for r := range want.Ranges {
		for offset := r.Offset; offset < r.End(); offset += sparseBlock {
			if offset < list.size && !list.has(offset) {
				m.rt.Fatalf("Delta: the block at %d differs and is not in %v", offset, list.ranges)
			}
		}
	}
}

// compareAll restores snapshots to compare them.
func (m *model) compareAll() {
	volumes, _ := m.reference.List(m.trial.ctx, "", 0) // never fails
	for _, v := range volumes {
		i := slices.IndexFunc(m.volumes, func(p pair[volume.ID]) bool { return p.reference == v.ID })
		got, err := m.trial.Backend.Engine.Get(m.trial.ctx, m.volumes[i].engine)
		if err != nil {
			m.rt.Fatalf("volume %s: %v", v.Name, err)
		}
		d, err := m.reference.Open(v.ID)
		if err != nil {
			m.rt.Fatal(err)
		}
		m.compareBytes("volume "+v.Name, d, got)
	}
	snapshots, _ := m.reference.ListSnapshots(m.trial.ctx, volume.SnapshotQuery{})
	for n, s := range snapshots {
		i := slices.IndexFunc(m.snapshots, func(p pair[volume.SnapshotID]) bool { return p.reference == s.ID })
		req := m.trial.from(fmt.Sprintf("%slook %d", m.prefix, n), volume.Source{Snapshot: m.snapshots[i].engine})
		req.Size = volume.SizeRange{}
		restored, err := m.trial.Backend.Engine.Create(m.trial.ctx, req)
		if err != nil {
			m.rt.Fatalf("restoring snapshot %s: %v", s.Name, err)
		}
		r, err := m.reference.OpenSnapshot(s.ID)
		if err != nil {
			m.rt.Fatal(err)
		}
		m.compareBytes("snapshot "+s.Name, r, m.trial.filled(restored.ID))
		m.trial.remove(restored.ID)
	}
}

func (m *model) compareBytes(what string, want io.ReaderAt, v volume.Volume) {
	d := m.trial.open(v)
	defer closing(m.trial.T, d)
	for offset := range m.written {
		if offset < v.Size && !bytes.Equal(m.trial.block(want, offset), m.trial.block(d, offset)) {
			m.rt.Fatalf("%s: the block at %d is not what was written", what, offset)
		}
	}
}

func (m *model) clear() {
	b := m.trial.Backend
	if b.Groups != nil {
		for _, p := range m.groups {
			if err := b.Groups.DeleteGroup(m.trial.ctx, p.engine); err != nil {
				m.rt.Errorf("DeleteGroup: %v", err)
			}
		}
	}
	if b.Snapshots != nil {
		for _, s := range m.trial.snapshots(volume.SnapshotQuery{}) {
			m.trial.removeSnapshot(s.ID)
		}
	}
	for _, v := range m.trial.list() {
		m.trial.remove(v.ID)
	}
}

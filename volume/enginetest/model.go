package enginetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// testModel compares the engine and the reference with random requests.
func testModel(t *trial) {
	deadline := time.Now().Add(t.Budget)
	runs, failed := 0, false
	rapid.Check(t.T, func(rt *rapid.T) {
		if time.Now().After(deadline) && !failed {
			return // the budget is spent; shrinking continues
		}
		runs++
		m := &model{rt: rt, trial: t, reference: NewReference(), prefix: fmt.Sprintf("run %d ", runs)}
		defer m.clear()
		defer func() { failed = failed || rt.Failed() }()
		for range rapid.IntRange(1, 24).Draw(rt, "steps") {
			m.step()
		}
		m.compareAll()
	})
	t.Logf("%d random histories", runs)
}

// pair holds the ids of one object.
type pair[T ~string] struct{ reference, engine T }

// model is one random history. Deleted objects stay in the lists, so that later
// requests reuse their ids.
type model struct {
	rt        *rapid.T
	trial     *trial
	reference *Reference
	prefix    string
	volumes   []pair[volume.ID]
	snapshots []pair[volume.SnapshotID]
	groups    []pair[volume.GroupID]
	written   map[int64]bool
}

func (m *model) step() {
	steps := map[string]func(){
		"create": m.create, "delete": m.delete, "get": m.get, "list": m.list, "expand": m.expand, "write": m.write,
	}
	b := m.trial.Backend
	if b.Snapshots != nil {
		steps["create snapshot"], steps["delete snapshot"], steps["get snapshot"], steps["list snapshots"] = m.takeSnapshot, m.deleteSnapshot, m.getSnapshot, m.listSnapshots
	}
	if b.Groups != nil {
		steps["create group"], steps["delete group"] = m.createGroup, m.deleteGroup
	}
	if b.Deltas != nil {
		steps["delta"] = m.delta
	}
	names := make([]string, 0, len(steps))
	for name := range steps {
		names = append(names, name)
	}
	slices.Sort(names)
	steps[rapid.SampledFrom(names).Draw(m.rt, "step")]()
}

// agree reports whether the call succeeded. alsoOK are further kinds, if more
// than one thing is wrong.
func (m *model) agree(what string, reference, engine error, alsoOK ...errs.Kind) bool {
	if (reference == nil) != (engine == nil) {
		m.rt.Fatalf("%s: reference returned %v, engine %v", what, reference, engine)
	}
	if reference == nil {
		return true
	}
	if kind := errs.KindOf(engine); kind != errs.KindOf(reference) && !slices.Contains(alsoOK, kind) {
		m.rt.Fatalf("%s: reference returned %q (%v), engine %q (%v)", what, errs.KindOf(reference), reference, kind, engine)
	}
	return false
}

func (m *model) size(label string) volume.SizeRange {
	size := m.trial.Size
	return rapid.SampledFrom([]volume.SizeRange{
		{Required: size}, {Required: size, Limit: size}, {Required: size + mib}, {Required: size, Limit: 2 * size},
		{Required: 2 * size}, {Required: 2 * size, Limit: 2 * size}, {Required: 2 * size, Limit: size},
	}).Draw(m.rt, label)
}

func (m *model) create() {
	req := volume.CreateRequest{
		Name:    rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(m.rt, "name"),
		Size:    m.size("size"),
		Content: volume.Raw,
	}
	onEngine := req
	onEngine.Name, onEngine.Content, onEngine.Parameters = m.prefix+req.Name, m.trial.Content, m.trial.Parameters
	if p, ok := m.drawVolume("source volume"); ok && m.trial.Backend.Clones && rapid.Bool().Draw(m.rt, "clone") {
		req.Source.Volume, onEngine.Source.Volume = p.reference, p.engine
	} else if p, ok := m.drawSnapshot("source snapshot"); ok && rapid.Bool().Draw(m.rt, "restore") {
		req.Source.Snapshot, onEngine.Source.Snapshot = p.reference, p.engine
	}
	want, wantErr := m.reference.Create(m.trial.ctx, req)
	got, err := m.trial.Backend.Engine.Create(m.trial.ctx, onEngine)
	alsoOK := []errs.Kind{}
	if errors.Is(wantErr, errs.Exists) || errors.Is(wantErr, errs.NotFound) {
		alsoOK = append(alsoOK, errs.Exists, errs.NotFound, errs.OutOfRange)
	}
	if !m.agree(fmt.Sprintf("Create(%+v)", req), wantErr, err, alsoOK...) {
		return
	}
	i := slices.IndexFunc(m.volumes, func(p pair[volume.ID]) bool { return p.reference == want.ID })
	if i < 0 {
		m.volumes = append(m.volumes, pair[volume.ID]{want.ID, got.ID})
	} else if m.volumes[i].engine != got.ID {
		m.rt.Fatalf("Create(%+v) again returned %s, first %s", req, got.ID, m.volumes[i].engine)
	}
	m.compareVolume(want, m.trial.filled(got.ID))
}

func (m *model) compareVolume(want, got volume.Volume) {
	if got.Name != m.prefix+want.Name || got.Size != want.Size || got.Content != m.trial.Content || m.volumeOf(got.ID) != want.ID ||
		m.volumeOf(got.Source.Volume) != want.Source.Volume || m.snapshotOf(got.Source.Snapshot) != want.Source.Snapshot {
		m.rt.Fatalf("the reference has volume %+v, the engine %+v", want, got)
	}
}

func (m *model) delete() {
	if p, ok := m.drawVolume("volume"); ok {
		m.agree("Delete", m.reference.Delete(m.trial.ctx, p.reference), m.trial.Backend.Engine.Delete(m.trial.ctx, p.engine))
	}
}

func (m *model) get() {
	p, ok := m.drawVolume("volume")
	if !ok {
		return
	}
	want, wantErr := m.reference.Get(m.trial.ctx, p.reference)
	got, err := m.trial.Backend.Engine.Get(m.trial.ctx, p.engine)
	if m.agree("Get", wantErr, err) {
		m.compareVolume(want, got)
	}
}

func (m *model) list() {
	limit := rapid.IntRange(0, 3).Draw(m.rt, "limit")
	after, _ := m.drawVolume("after")
	want, wantErr := m.reference.List(m.trial.ctx, "", 0)
	got, err := m.trial.Backend.Engine.List(m.trial.ctx, "", 0)
	if !m.agree("List", wantErr, err) {
		return
	}
	if len(got) != len(want) {
		m.rt.Fatalf("List: the reference has %+v, the engine %+v", want, got)
	}
	for _, v := range got {
		i := slices.IndexFunc(want, func(w volume.Volume) bool { return w.ID == m.volumeOf(v.ID) })
		if i < 0 {
			m.rt.Fatalf("List: the engine has %+v, the reference only %+v", v, want)
		}
		m.compareVolume(want[i], v)
	}
	page, err := m.trial.Backend.Engine.List(m.trial.ctx, after.engine, limit)
	rest := slices.DeleteFunc(got, func(v volume.Volume) bool { return v.ID <= after.engine })
	if limit > 0 {
		rest = rest[:min(limit, len(rest))]
	}
	if err != nil || !slices.EqualFunc(page, rest, func(a, b volume.Volume) bool { return a.ID == b.ID }) {
		m.rt.Fatalf("List(%q, %d): %+v, %v; want %+v", after.engine, limit, page, err, rest)
	}
}

func (m *model) expand() {
	p, ok := m.drawVolume("volume")
	if !ok {
		return
	}
	size := m.size("size")
	want, wantErr := m.reference.Expand(m.trial.ctx, p.reference, size)
	got, err := m.trial.Backend.Engine.Expand(m.trial.ctx, p.engine, size)
	if m.agree(fmt.Sprintf("Expand(%+v)", size), wantErr, err, errs.NotFound, errs.Invalid) {
		m.compareVolume(want, got)
	}
}

func (m *model) write() {
	p, ok := m.drawVolume("volume")
	if !ok {
		return
	}
	v, err := m.trial.Backend.Engine.Get(m.trial.ctx, p.engine)
	if err != nil {
		return
	}
	offset := rapid.SampledFrom([]int64{0, sparseBlock, 3 * sparseBlock, mib, min(5*mib, v.Size-sparseBlock), v.Size - sparseBlock}).Draw(m.rt, "offset")
	seed := rapid.Uint64Range(0, 3).Draw(m.rt, "seed")
	d, err := m.reference.Open(p.reference)
	if err != nil {
		m.rt.Fatalf("the reference has no volume %s", p.reference)
	}
	if _, err := d.WriteAt(pattern(seed, offset), offset); err != nil {
		m.rt.Fatal(err)
	}
	m.trial.write(v, seed, offset)
	if m.written == nil {
		m.written = map[int64]bool{}
	}
	m.written[offset] = true
}

// drawVolume includes deleted volumes.
func (m *model) drawVolume(label string) (pair[volume.ID], bool) {
	if len(m.volumes) == 0 {
		return pair[volume.ID]{}, false
	}
	return rapid.SampledFrom(m.volumes).Draw(m.rt, label), true
}

func (m *model) drawSnapshot(label string) (pair[volume.SnapshotID], bool) {
	if len(m.snapshots) == 0 {
		return pair[volume.SnapshotID]{}, false
	}
	return rapid.SampledFrom(m.snapshots).Draw(m.rt, label), true
}

// volumeOf returns an unknown id as it is.
func (m *model) volumeOf(id volume.ID) volume.ID {
	for _, p := range m.volumes {
		if p.engine == id {
			return p.reference
		}
	}
	return id
}

func (m *model) snapshotOf(id volume.SnapshotID) volume.SnapshotID {
	for _, p := range m.snapshots {
		if p.engine == id {
			return p.reference
		}
	}
	return id
}

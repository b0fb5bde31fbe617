package enginetest

import (
	"errors"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func testDeltas(t *trial) {
	if t.Backend.Deltas == nil {
		t.Log("not supported: Deltas")
		return
	}
	v := t.create(t.request("origin"))
	last := v.Size - sparseBlock
	empty := t.takeSnapshot("empty", v.ID)
	t.write(v, 1, 0, sparseBlock, 5*mib, last)
	first := t.takeSnapshot("first", v.ID)
	t.write(v, 2, sparseBlock, 7*mib)
	second := t.takeSnapshot("second", v.ID)
	unchanged := t.takeSnapshot("unchanged", v.ID)
	grown := t.expand(v.ID, volume.SizeRange{Required: 2 * t.Size})
	t.write(grown, 3, v.Size, grown.Size-sparseBlock)
	larger := t.takeSnapshot("larger", v.ID)

	t.covers("Allocated of the empty snapshot", t.allocated(empty.ID, 0), v.Size)
	t.covers("Allocated", t.allocated(first.ID, 0), v.Size, 0, sparseBlock, 5*mib, last)
	t.covers("Allocated after 5 MiB", t.allocated(first.ID, 5*mib+1), v.Size, 5*mib, last)
	t.covers("Allocated at the end", t.allocated(first.ID, last), v.Size, last)

	t.covers("Delta from empty", t.delta(empty.ID, first.ID, 0), v.Size, 0, sparseBlock, 5*mib, last)
	t.covers("Delta", t.delta(first.ID, second.ID, 0), v.Size, sparseBlock, 7*mib)
	t.covers("Delta after 1 MiB", t.delta(first.ID, second.ID, mib), v.Size, 7*mib)
	t.covers("Delta over two snapshots", t.delta(empty.ID, second.ID, 0), v.Size, 0, sparseBlock, 5*mib, 7*mib, last)
	t.covers("Delta of a volume that grew", t.delta(second.ID, larger.ID, 0), grown.Size, v.Size, grown.Size-sparseBlock)
	if m := t.delta(second.ID, unchanged.ID, 0); len(m.ranges) != 0 {
		t.Errorf("Delta of two snapshots without writes between them: %v", m.ranges)
	}
	if m := t.delta(first.ID, first.ID, 0); len(m.ranges) != 0 {
		t.Errorf("Delta of a snapshot from itself: %v", m.ranges)
	}
	t.deltaByCompare(first, second)
	t.checkDeltaErrors(v, first, second)
}

type blockList struct {
	size   int64
	from   int64
	ranges []volume.Range
	cannot bool
}

func (t *trial) allocated(id volume.SnapshotID, from int64) blockList {
	t.Helper()
	m, err := t.Backend.Deltas.Allocated(t.ctx, id, from)
	if err != nil {
		t.Fatalf("Allocated(%s, %d): %v", id, from, err)
	}
	return t.collect(m, from)
}

// delta returns a delta. A backend is allowed to return Precondition.
func (t *trial) delta(base, target volume.SnapshotID, from int64) blockList {
	t.Helper()
	m, err := t.Backend.Deltas.Delta(t.ctx, base, target, from)
	if errors.Is(err, errs.Precondition) {
		t.Logf("backend has no delta of %s and %s: %v", base, target, err)
		return blockList{cannot: true}
	}
	if err != nil {
		t.Fatalf("Delta(%s, %s, %d): %v", base, target, from, err)
	}
	return t.collect(m, from)
}

// collect checks the order.
func (t *trial) collect(m volume.BlockMap, from int64) blockList {
	t.Helper()
	list := blockList{size: m.Size, from: from}
	for r, err := range m.Ranges {
		if err != nil {
			t.Fatalf("reading a block map: %v", err)
		}
		if r.Length <= 0 || r.Offset < 0 || r.End() > m.Size {
			t.Fatalf("range %v is outside the %d bytes of the volume", r, m.Size)
		}
		if n := len(list.ranges); n == 0 && r.End() <= from {
			t.Fatalf("the first range %v does not end after %d", r, from)
		} else if n > 0 && r.Offset <= list.ranges[n-1].End() {
			t.Fatalf("range %v comes after %v: they touch, overlap or are not in order", r, list.ranges[n-1])
		}
		list.ranges = append(list.ranges, r)
	}
	return list
}

func (l blockList) has(offset int64) bool {
	for _, r := range l.ranges {
		if r.Offset <= offset && offset < r.End() {
			return true
		}
	}
	return false
}

// covers also checks that the list is not much larger.
func (t *trial) covers(what string, list blockList, size int64, offsets ...int64) {
	t.Helper()
	if list.cannot {
		return
	}
	if list.size != size {
		t.Errorf("%s has size %d, want %d", what, list.size, size)
	}
	for _, offset := range offsets {
		if !list.has(offset) || !list.has(offset+sparseBlock-1) {
			t.Errorf("%s lacks the block at %d: %v", what, offset, list.ranges)
		}
	}
	var sum int64
	for _, r := range list.ranges {
		sum += r.Length
	}
	if sum > size/2 {
		t.Errorf("%s lists %d of %d bytes for %d blocks, want at most half", what, sum, size, len(offsets))
	}
}

// deltaByCompare compares two restored volumes.
func (t *trial) deltaByCompare(base, target volume.Snapshot) {
	t.Helper()
	list := t.delta(base.ID, target.ID, 0)
	if list.cannot {
		return
	}
	a := t.open(t.create(t.from("base", volume.Source{Snapshot: base.ID})))
	defer closing(t.T, a)
	b := t.open(t.create(t.from("target", volume.Source{Snapshot: target.ID})))
	defer closing(t.T, b)
	var falsePositives int
	for offset := int64(0); offset < target.Size; offset += sparseBlock {
		differ := string(t.block(a, offset)) != string(t.block(b, offset))
		if differ && !list.has(offset) {
			t.Errorf("the block at %d differs and is not in the delta %v", offset, list.ranges)
		}
		if !differ && list.has(offset) {
			falsePositives++
		}
	}
	t.Logf("equal blocks in the delta: %d", falsePositives)
}

func (t *trial) checkDeltaErrors(v volume.Volume, base, target volume.Snapshot) {
	t.Helper()
	other := t.create(t.request("other"))
	foreign := t.takeSnapshot("foreign", other.ID)
	deltas := t.Backend.Deltas
	_, err := deltas.Allocated(t.ctx, base.ID, -1)
	t.wantKind(err, "Allocated from a negative offset", errs.OutOfRange)
	_, err = deltas.Allocated(t.ctx, base.ID, v.Size+1)
	t.wantKind(err, "Allocated from beyond the end", errs.OutOfRange)
	_, err = deltas.Delta(t.ctx, base.ID, target.ID, -1)
	t.wantKind(err, "Delta from a negative offset", errs.OutOfRange)
	_, err = deltas.Delta(t.ctx, base.ID, target.ID, v.Size+1)
	t.wantKind(err, "Delta from beyond the end", errs.OutOfRange)
	_, err = deltas.Delta(t.ctx, base.ID, volume.NewSnapshotID(""), 0)
	t.wantKind(err, "Delta to a missing snapshot", errs.NotFound)
	_, err = deltas.Delta(t.ctx, foreign.ID, target.ID, 0)
	t.wantKind(err, "Delta of snapshots of two volumes", errs.Invalid, errs.Precondition)
}

package enginetest

import (
	"fmt"
	"slices"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func testList(t *trial) {
	if all := t.list(); len(all) != 0 {
		t.Fatalf("a new backend lists %+v", all)
	}
	var made []volume.Volume
	for i := range 5 {
		made = append(made, t.create(t.request(fmt.Sprintf("v%d", i))))
	}
	sorted := slices.IsSortedFunc(made, func(a, b volume.Volume) int { return compareIDs(a.ID, b.ID) })
	if !sorted {
		t.Log("ids do not sort by creation: allowed, lists are then not in the order of creation")
		slices.SortFunc(made, func(a, b volume.Volume) int { return compareIDs(a.ID, b.ID) })
	}
	t.same("List", t.list(), made)
	for limit := 1; limit <= 6; limit++ {
		t.same(fmt.Sprintf("pages of %d", limit), t.pages(limit, func([]volume.Volume) {}), made)
	}
	after, err := t.Backend.Engine.List(t.ctx, made[4].ID, 0)
	if err != nil || len(after) != 0 {
		t.Errorf("List after the last id: %+v, %v", after, err)
	}
}

func compareIDs(a, b volume.ID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (t *trial) pages(limit int, between func(page []volume.Volume)) (all []volume.Volume) {
	t.Helper()
	var after volume.ID
	for {
		page, err := t.Backend.Engine.List(t.ctx, after, limit)
		if err != nil {
			t.Fatalf("List(after %q, %d): %v", after, limit, err)
		}
		if len(page) > limit {
			t.Fatalf("List(after %q, %d) returned %d volumes", after, limit, len(page))
		}
		if len(page) == 0 {
			return all
		}
		all = append(all, page...)
		between(page)
		after = page[len(page)-1].ID
	}
}

// testListWhileDeleting deletes volumes before and after the current page,
// including the last volume of the page. Volumes that exist during the whole
// list must be listed exactly once.
func testListWhileDeleting(t *trial) {
	var made []volume.Volume
	for i := range 20 {
		made = append(made, t.create(t.request(fmt.Sprintf("v%02d", i))))
	}
	slices.SortFunc(made, func(a, b volume.Volume) int { return compareIDs(a.ID, b.ID) })
	deleted := map[volume.ID]bool{}
	next := len(made) - 1
	listed := t.pages(3, func(page []volume.Volume) {
		for _, id := range []volume.ID{page[len(page)-1].ID, made[next].ID} {
			t.remove(id)
			deleted[id] = true
		}
		next--
	})
	times := map[volume.ID]int{}
	for _, v := range listed {
		times[v.ID]++
	}
	for _, v := range made {
		if !deleted[v.ID] && times[v.ID] != 1 {
			t.Errorf("volume %s existed all the time and was listed %d times, want 1", v.ID, times[v.ID])
		}
		if times[v.ID] > 1 {
			t.Errorf("volume %s was listed %d times", v.ID, times[v.ID])
		}
	}
}

func testExpand(t *trial) {
	v := t.create(t.request("grows"))
	last := v.Size - sparseBlock
	t.write(v, 1, 0, last)
	grown := t.expand(v.ID, volume.SizeRange{Required: 2 * t.Size})
	if grown.Size < 2*t.Size {
		t.Fatalf("Expand to %d returned %d bytes", 2*t.Size, grown.Size)
	}
	t.same("Get after Expand", t.filled(v.ID), grown)
	t.sizeIs(grown, grown.Size)
	t.holds(grown, 1, 0, last)
	t.isZero(grown, volume.Range{Offset: v.Size, Length: grown.Size - v.Size})

	for _, enough := range []volume.SizeRange{{Required: 2 * t.Size}, {Required: t.Size}, {}, {Required: t.Size, Limit: grown.Size}} {
		t.same(fmt.Sprintf("Expand to %+v of a volume that is large enough", enough), t.expand(v.ID, enough), grown)
	}
	exact := volume.SizeRange{Required: 3 * t.Size, Limit: 3 * t.Size}
	if got := t.expand(v.ID, exact); got.Size != 3*t.Size {
		t.Errorf("Expand to exactly %d returned %d bytes", 3*t.Size, got.Size)
	}
	_, err := t.Backend.Engine.Expand(t.ctx, v.ID, volume.SizeRange{Limit: t.Size})
	t.wantKind(err, "Expand with a limit below the size", errs.OutOfRange)
	_, err = t.Backend.Engine.Expand(t.ctx, v.ID, volume.SizeRange{Required: 1 << 60})
	t.wantKind(err, "Expand to an exbibyte", errs.OutOfRange, errs.Exhausted)
	_, err = t.Backend.Engine.Expand(t.ctx, v.ID, volume.SizeRange{Required: -1})
	t.wantKind(err, "Expand to a negative size", errs.OutOfRange, errs.Invalid)
	if after := t.filled(v.ID); after.Size != 3*t.Size {
		t.Errorf("refused expansions changed the size to %d", after.Size)
	}
}

func (t *trial) expand(id volume.ID, size volume.SizeRange) volume.Volume {
	t.Helper()
	v, err := t.Backend.Engine.Expand(t.ctx, id, size)
	if err != nil {
		t.Fatalf("Expand(%+v): %v", size, err)
	}
	return v
}

func testCapacity(t *trial) {
	queries := []volume.CapacityQuery{{}, {Content: t.Content}, {Content: t.Content, Parameters: t.Parameters}}
	for _, fsType := range t.FSTypes {
		queries = append(queries, volume.CapacityQuery{Content: volume.Filesystem, FSType: fsType})
	}
	for _, query := range queries {
		c, err := t.Backend.Engine.Capacity(t.ctx, query)
		if err != nil {
			t.Errorf("Capacity(%+v): %v", query, err)
			continue
		}
		if c.Available < 0 || c.Maximum < 0 || c.Minimum < 0 || c.Minimum > c.Maximum {
			t.Errorf("Capacity(%+v) is inconsistent: %+v", query, c)
		}
		if query.Content == t.Content && (c.Available < t.Size || c.Minimum > t.Size || c.Maximum < t.Size) {
			t.Errorf("Capacity(%+v) is %+v: the suite needs volumes of %d bytes", query, c, t.Size)
		}
	}
	_, err := t.Backend.Engine.Capacity(t.ctx, volume.CapacityQuery{Parameters: map[string]string{"noSuchKey": "1"}})
	t.wantKind(err, "Capacity with an unknown parameter", errs.Invalid)
}

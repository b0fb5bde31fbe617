package workload

import "strings"

// choose picks a call that is possible now; every other time, if possible, one
// of the kind that the worker prefers.
func (w *worker) choose() func() error {
	c := &choice{lean: w.lean}
	w.addVolumes(c)
	w.addNode(c)
	w.addSnapshots(c)
	if len(c.leaning) > 0 && w.rand.IntN(2) == 0 {
		return c.leaning[w.rand.IntN(len(c.leaning))]
	}
	return c.all[w.rand.IntN(len(c.all))]
}

// choice is the list of calls that a worker can make now, each repeated by its
// weight.
type choice struct {
	lean    string
	all     []func() error
	leaning []func() error
}

// add adds a call with the kinds of crash points that it reaches: the part of
// their names before the dot.
func (c *choice) add(weight int, kinds string, do func() error) {
	for range weight {
		c.all = append(c.all, do)
	}
	for kind := range strings.FieldsSeq(kinds) {
		if kind == c.lean {
			c.leaning = append(c.leaning, do)
		}
	}
}

// most limits the volumes, and the snapshots, of a worker.
const most = 4

func (w *worker) addVolumes(c *choice) {
	if len(w.disks) < most {
		c.add(3, "create place", w.create)
		if len(w.snapshots) > 0 {
			c.add(2, "create place copy", w.restore)
		}
		if len(w.disks) > 0 {
			c.add(1, "create place copy clone", w.clone)
		}
	}
	if d := w.some(func(d *disk) bool { return !d.granted }); d != nil {
		c.add(3, "stage mount publish", func() error { return w.grant(d) })
		c.add(2, "delete", func() error { return w.remove(d) })
	}
	if d := w.some(func(*disk) bool { return true }); d != nil {
		c.add(1, "expand", func() error { return w.expand(d) })
		c.add(1, "modify", func() error { return w.modify(d) })
	}
}

func (w *worker) addNode(c *choice) {
	if len(w.inline) < 1 {
		c.add(1, "publish mount", w.publishInline)
	} else {
		c.add(1, "unpublish", w.unpublishInline)
	}
	if d := w.some(func(d *disk) bool { return d.granted && !d.staged }); d != nil {
		c.add(3, "stage mount publish", func() error { return w.stage(d) })
		c.add(1, "", func() error { return w.revoke(d) })
	}
	if d := w.some(func(d *disk) bool { return d.staged && !d.published }); d != nil {
		c.add(3, "publish", func() error { return w.publish(d) })
		c.add(1, "unstage", func() error { return w.unstage(d) })
	}
	if d := w.some(func(d *disk) bool { return d.published && !d.readOnly }); d != nil {
		c.add(4, "", func() error { return w.write(d) })
	}
	if d := w.some(func(d *disk) bool { return d.published }); d != nil {
		c.add(2, "unpublish", func() error { return w.unpublish(d) })
		c.add(1, "", func() error { return w.read(d) })
		c.add(1, "expand", func() error { return w.expandNode(d) })
	}
}

func (w *worker) addSnapshots(c *choice) {
	if d := w.some(func(*disk) bool { return true }); d != nil && len(w.snapshots) < most {
		c.add(2, "snapshot copy clone", func() error { return w.snapshot(d) })
	}
	if len(w.disks) >= 2 && len(w.groups) < 1 {
		c.add(1, "snapshot copy clone", w.group)
	}
	if p := w.ungroupedSnapshot(); p != nil {
		c.add(1, "delete-snapshot", func() error { return w.deleteSnapshot(p) })
	}
	if len(w.groups) > 0 {
		c.add(1, "delete-group delete-snapshot", w.deleteGroup)
	}
}

func (w *worker) some(fits func(*disk) bool) *disk {
	for _, i := range w.rand.Perm(len(w.disks)) {
		if fits(w.disks[i]) {
			return w.disks[i]
		}
	}
	return nil
}

func (w *worker) ungroupedSnapshot() *snapshotState {
	for _, i := range w.rand.Perm(len(w.snapshots)) {
		if w.snapshots[i].group == "" {
			return w.snapshots[i]
		}
	}
	return nil
}

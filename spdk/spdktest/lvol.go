package spdktest

import (
	"context"
	"maps"
	"slices"
)

type lvol struct {
	store      *lvstore
	name, uuid string
	content
	clear    string // method
	thin     bool
	locked   bool // being inflated
	deleting bool
	snapshot bool // false without clones when the store is opened
	readOnly bool
	sealed   bool  // read-only when the store is opened again
	lost     bool  // not opened with the store
	parent   *lvol // snapshot that it is a clone of
}

func lvolMethods() map[string]method {
	store := map[string]kind{"lvs_name": text, "uuid": text}
	name := needs(map[string]kind{"name": text}, "name")
	return map[string]method{
		"bdev_lvol_create_lvstore": {run: createStore, takes: needs(map[string]kind{
			"bdev_name": text, "lvs_name": text, "cluster_sz": number, "clear_method": text,
			"num_md_pages_per_cluster_ratio": number, "md_page_size": number,
		}, "bdev_name", "lvs_name")},
		"bdev_lvol_delete_lvstore": {run: deleteStore, takes: needs(store)},
		"bdev_lvol_get_lvstores":   {run: stores, takes: needs(store)},
		"bdev_lvol_create": {run: createLvol, takes: needs(map[string]kind{
			"lvs_name": text, "uuid": text, "lvol_name": text, "size_in_mib": number, "thin_provision": flag, "clear_method": text,
		}, "lvol_name", "size_in_mib")},
		"bdev_lvol_get_lvols":       {run: lvols, takes: needs(map[string]kind{"lvs_name": text, "lvs_uuid": text})},
		"bdev_lvol_snapshot":        {run: snapshot, takes: needs(map[string]kind{"lvol_name": text, "snapshot_name": text}, "lvol_name", "snapshot_name")},
		"bdev_lvol_clone":           {run: clone, takes: needs(map[string]kind{"snapshot_name": text, "clone_name": text}, "snapshot_name", "clone_name")},
		"bdev_lvol_resize":          {run: resize, takes: needs(map[string]kind{"name": text, "size_in_mib": number}, "name", "size_in_mib")},
		"bdev_lvol_delete":          {run: deleteLvol, takes: name},
		"bdev_lvol_rename":          {run: renameLvol, takes: needs(map[string]kind{"old_name": text, "new_name": text}, "old_name", "new_name")},
		"bdev_lvol_set_read_only":   {run: setReadOnly, takes: name},
		"bdev_lvol_inflate":         {run: inflate, takes: name},
		"bdev_lvol_decouple_parent": {run: decouple, takes: name},
	}
}

func (l *lvol) clones() []string {
	names := []string{}
	for _, other := range l.store.lvols {
		if other.parent == l {
			names = append(names, other.name)
		}
	}
	return names
}

// lvol returns nil if the bdev is no lvol.
func (p *Process) lvol(name string) *lvol {
	if b := p.bdev(name); b != nil {
		return b.lvol
	}
	return nil
}

func (p *Process) offer(l *lvol) {
	l.readOnly = l.readOnly || l.sealed
	p.add(&bdev{
		name: l.uuid, uuid: l.uuid, alias: l.store.name + "/" + l.name, kind: lvolDisk, lvol: l,
		blockSize: l.store.blockSize, blocks: l.clusters * l.store.cluster / uint64(l.store.blockSize),
	})
}

// createLvol allows thin lvols larger than their store, and of size 0.
func createLvol(p *Process, ctx context.Context, a args) (any, *Error) {
	s, e := p.oneStore(a)
	if e != nil {
		return nil, e
	}
	name := a.text("lvol_name")
	l := &lvol{store: s, name: name, uuid: newUUID(), content: content{clusters: s.clusters(a)}, clear: a.text("clear_method"), thin: a.flag("thin_provision")}
	switch {
	case !slices.Contains([]string{"", "none", "unmap", "write_zeroes"}, a.text("clear_method")):
		return nil, &Error{Code: internalError, Message: "spdk_json_decode_object failed"}
	case !validName(name):
		return nil, errno(eINVAL)
	case s.lvol(name) != nil, p.bdev(s.name+"/"+name) != nil:
		return nil, errno(eEXIST)
	case !l.thin && l.clusters > s.free():
		return nil, textError(invalidParams, eNOSPC)
	}
	if !l.thin {
		l.solidify(l.clusters)
	}
	return p.appear(ctx, l)
}

// HoldCreate keeps new lvols, also snapshots and clones, from being shown until
// ReleaseCreate. Their names are used.
func (p *Process) HoldCreate() { p.network.change(func() { p.creating = true }) }

// HoldDelete keeps bdev_lvol_delete from deleting until ReleaseDelete.
func (p *Process) HoldDelete() { p.network.change(func() { p.deletesHeld = true }) }

// ReleaseDelete continues what is held.
func (p *Process) ReleaseDelete() { p.network.change(func() { p.deletesHeld = false }) }

// ReleaseCreate continues what is held.
func (p *Process) ReleaseCreate() { p.network.change(func() { p.creating = false }) }

func (p *Process) appear(ctx context.Context, l *lvol) (any, *Error) {
	l.store.lvols = append(l.store.lvols, l)
	for p.creating {
		if !p.network.wait(ctx, forEver) {
			return nil, textError(invalidParams, eIO)
		}
	}
	p.offer(l)
	return l.uuid, nil
}

func lvols(p *Process, _ context.Context, a args) (any, *Error) {
	shown := p.lvstores
	if len(a) > 1 {
		return nil, errno(eINVAL)
	}
	if len(a) > 0 {
		s := p.store(a.text("lvs_name"), a.text("lvs_uuid"))
		if s == nil {
			return nil, errno(eNODEV)
		}
		shown = []*lvstore{s}
	}
	all := []map[string]any{}
	for _, s := range shown {
		for _, l := range s.lvols {
			if p.bdev(l.uuid) == nil {
				continue
			}
			all = append(all, map[string]any{
				"alias": s.name + "/" + l.name, "uuid": l.uuid, "name": l.name, "is_thin_provisioned": l.thin,
				"is_snapshot": l.snapshot, "is_clone": l.parent != nil, "is_esnap_clone": false, "is_degraded": false,
				"num_allocated_clusters": l.allocated(), "lvs": map[string]string{"name": s.name, "uuid": s.uuid},
			})
		}
	}
	return all, nil
}

func (l *lvol) show() map[string]any {
	shown := map[string]any{
		"lvol_store_uuid": l.store.uuid, "base_bdev": l.store.base.name, "thin_provision": l.thin,
		"num_allocated_clusters": l.allocated(), "snapshot": l.snapshot, "clone": l.parent != nil, "esnap_clone": false,
	}
	if l.parent != nil {
		shown["base_snapshot"] = l.parent.name
	}
	if clones := l.clones(); len(clones) > 0 {
		shown["clones"] = clones
	}
	return shown
}

// snapshot moves the lvol's clusters to the snapshot; the lvol becomes its
// clone.
func snapshot(p *Process, ctx context.Context, a args) (any, *Error) {
	l := p.lvol(a.text("lvol_name"))
	name := a.text("snapshot_name")
	switch {
	case l == nil:
		return nil, errno(eNODEV)
	case l.snapshot, !validName(name):
		return nil, textError(invalidParams, eINVAL)
	case l.store.lvol(name) != nil, p.bdev(l.store.name+"/"+name) != nil:
		return nil, textError(invalidParams, eEXIST)
	case l.locked:
		return nil, textError(invalidParams, eBUSY)
	}
	made := &lvol{
		store: l.store, name: name, uuid: newUUID(), content: l.content, clear: l.clear,
		thin: true, snapshot: true, readOnly: true, parent: l.parent,
	}
	l.parent, l.content, l.thin = made, content{clusters: l.clusters}, true
	return p.appear(ctx, made)
}

func clone(p *Process, ctx context.Context, a args) (any, *Error) {
	l := p.lvol(a.text("snapshot_name"))
	name := a.text("clone_name")
	switch {
	case l == nil:
		return nil, errno(eNODEV)
	case !l.readOnly, !validName(name):
		return nil, textError(invalidParams, eINVAL)
	case l.store.lvol(name) != nil, p.bdev(l.store.name+"/"+name) != nil:
		return nil, textError(invalidParams, eEXIST)
	}
	made := &lvol{store: l.store, name: name, uuid: newUUID(), content: content{clusters: l.clusters}, thin: true, parent: l}
	return p.appear(ctx, made)
}

// resize allows shrinking.
func resize(p *Process, _ context.Context, a args) (any, *Error) {
	l := p.lvol(a.text("name"))
	if l == nil {
		return nil, errno(eNODEV)
	}
	clusters := l.store.clusters(a)
	switch {
	case l.readOnly:
		return nil, textError(invalidParams, ePERM)
	case l.locked:
		return nil, textError(invalidParams, eBUSY)
	case !l.thin && clusters > l.allocated()+l.store.free():
		return nil, textError(invalidParams, eNOSPC)
	}
	l.release(l.content.resize(clusters)...)
	if !l.thin {
		l.solidify(clusters)
	}
	p.bdev(l.uuid).blocks = clusters * l.store.cluster / uint64(l.store.blockSize)
	return true, nil
}

// deleteLvol merges a snapshot into its only clone.
func deleteLvol(p *Process, ctx context.Context, a args) (any, *Error) {
	l := p.lvol(a.text("name"))
	if l == nil && p.isLoading(a.text("name")) {
		return nil, errno(ePERM)
	}
	if l == nil {
		return nil, errno(eNODEV)
	}
	clones := l.clones()
	switch {
	case len(clones) > 1:
		return nil, textError(internalError, ePERM)
	case len(clones) == 1 && l.store.lvol(clones[0]).locked:
		return nil, textError(internalError, eBUSY)
	case l.locked, slices.ContainsFunc(l.store.lvols, func(other *lvol) bool { return other.deleting && (other == l.parent || other.parent == l) }):
		p.remove(p.bdev(l.uuid)) // as measured, until the store is opened again
		return nil, textError(internalError, eBUSY)
	}
	l.deleting = true
	defer func() { l.deleting = false }()
	for p.deletesHeld {
		if !p.network.wait(ctx, forEver) {
			return nil, textError(internalError, eIO)
		}
	}
	switch {
	case len(clones) == 1:
		heir := l.store.lvol(clones[0])
		heir.parent = l.parent
		l.release(heir.merge(l.content)...)
	default:
		l.release(l.resize(0)...)
	}
	p.remove(p.bdev(l.uuid))
	l.store.lvols = slices.DeleteFunc(l.store.lvols, func(x *lvol) bool { return x == l })
	return true, nil
}

// renameLvol accepts an empty name and more than 63 bytes. If it fails, also for
// a read-only lvol, the alias of the bdev changes nevertheless, until a restart.
func renameLvol(p *Process, _ context.Context, a args) (any, *Error) {
	l, name := p.lvol(a.text("old_name")), a.text("new_name")
	if l == nil {
		return nil, errno(eNODEV)
	}
	alias := l.store.name + "/" + name
	b := p.bdev(l.uuid)
	if p.bdev(alias) != nil {
		return nil, textError(invalidParams, eEXIST)
	}
	delete(p.bdevOf, b.alias)
	b.alias, p.bdevOf[alias] = alias, b
	switch {
	case l.name == name:
		return true, nil
	case l.store.lvol(name) != nil:
		return nil, textError(invalidParams, eEXIST)
	case l.readOnly || l.sealed:
		return nil, textError(invalidParams, ePERM)
	}
	l.name = name[:min(len(name), 63)]
	return true, nil
}

// setReadOnly is in effect when the store is opened again.
func setReadOnly(p *Process, _ context.Context, a args) (any, *Error) {
	l := p.lvol(a.text("name"))
	if l == nil {
		return nil, errno(eNODEV)
	}
	l.sealed = true
	return true, nil
}

// HoldInflate keeps bdev_lvol_inflate, also after restarts, from allocating more
// than the first clusters of an lvol, until ReleaseInflate. One of at most as many
// clusters is shown as thick, but does not survive a restart as such: it is lost if
// its parent is deleted.
func (p *Process) HoldInflate(clusters uint64) {
	p.network.change(func() { p.inflated = &clusters })
}

// ReleaseInflate continues what is held.
func (p *Process) ReleaseInflate() {
	p.network.change(func() { p.inflated = nil })
}

// inflate allocates one cluster after the other. A process that ends leaves those
// that it has allocated.
func inflate(p *Process, ctx context.Context, a args) (any, *Error) {
	l := p.lvol(a.text("name"))
	switch {
	case l == nil:
		return nil, errno(eNODEV)
	case l.locked:
		return nil, textError(invalidParams, eBUSY)
	case !l.thin:
		return true, nil
	case l.clusters > l.allocated()+l.store.free():
		return nil, textError(invalidParams, eNOSPC)
	}
	if slices.ContainsFunc(l.store.lvols, func(other *lvol) bool { return other.locked }) {
		l.lost = true // 26.09-pre does not load half of such lvols after a kill
	}
	l.locked = true
	defer func() { l.locked = false }()
	for i := range l.clusters {
		for p.inflated != nil && i >= *p.inflated {
			if !p.network.wait(ctx, forEver) {
				return nil, textError(invalidParams, eIO)
			}
		}
		if !l.own(i) {
			return nil, textError(invalidParams, eNOSPC)
		}
	}
	// SPDK shows a thick lvol before the disk has it.
	parent := l.parent
	l.thin, l.parent = false, nil
	for p.inflated != nil && *p.inflated >= l.clusters {
		if !p.network.wait(ctx, forEver) {
			l.thin, l.parent = true, parent
			l.lost = parent != nil && l.store.lvol(parent.name) != parent
			return nil, textError(invalidParams, eIO)
		}
	}
	return true, nil
}

// decouple copies what the parent has itself; the parent's parent becomes that
// of the lvol.
func decouple(p *Process, _ context.Context, a args) (any, *Error) {
	l := p.lvol(a.text("name"))
	switch {
	case l == nil:
		return nil, errno(eNODEV)
	case l.parent == nil:
		return nil, textError(invalidParams, eINVAL)
	}
	copied := content{clusters: l.clusters, solid: l.solid, written: maps.Clone(l.written)}
	copied.merge(l.parent.content)
	if copied.allocated() > l.allocated()+l.store.free() {
		return nil, textError(invalidParams, eNOSPC)
	}
	for i, data := range copied.written {
		if !l.has(i) {
			copied.written[i] = slices.Clone(data)
		}
	}
	l.content, l.parent = copied, l.parent.parent
	return true, nil
}

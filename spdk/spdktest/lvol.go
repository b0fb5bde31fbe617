package spdktest

import (
	"context"
	"slices"
)

// lvstore belongs to the file of its bdev, if any, and then survives the
// process.
type lvstore struct {
	name, uuid string
	base       *bdev
	cluster    uint64
	total      uint64 // clusters
	blockSize  uint32
	lvols      []*lvol
}

type lvol struct {
	store      *lvstore
	name, uuid string
	clusters   uint64 // size
	allocated  uint64
	thin       bool
	snapshot   bool
	readOnly   bool
	parent     *lvol // snapshot that it is a clone of
}

// metadataClusters at the start of a store.
const metadataClusters = 2

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
		"bdev_lvol_get_lvols":     {run: lvols, takes: needs(map[string]kind{"lvs_name": text, "lvs_uuid": text})},
		"bdev_lvol_snapshot":      {run: snapshot, takes: needs(map[string]kind{"lvol_name": text, "snapshot_name": text, "xattrs": object}, "lvol_name", "snapshot_name")},
		"bdev_lvol_clone":         {run: clone, takes: needs(map[string]kind{"snapshot_name": text, "clone_name": text}, "snapshot_name", "clone_name")},
		"bdev_lvol_resize":        {run: resize, takes: needs(map[string]kind{"name": text, "size_in_mib": number}, "name", "size_in_mib")},
		"bdev_lvol_delete":        {run: deleteLvol, takes: name},
		"bdev_lvol_rename":        {run: renameLvol, takes: needs(map[string]kind{"old_name": text, "new_name": text}, "old_name", "new_name")},
		"bdev_lvol_set_read_only": {run: setReadOnly, takes: name},
		"bdev_lvol_inflate":       {run: inflate, takes: name},
	}
}

func (s *lvstore) free() uint64 {
	free := s.total
	for _, l := range s.lvols {
		free -= min(l.allocated, free)
	}
	return free
}

func (s *lvstore) lvol(name string) *lvol {
	for _, l := range s.lvols {
		if l.name == name {
			return l
		}
	}
	return nil
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

func (p *Process) store(name, id string) *lvstore {
	for _, s := range p.lvstores {
		if name != "" && s.name == name || id != "" && s.uuid == id {
			return s
		}
	}
	return nil
}

// lvol returns nil if the bdev is no lvol.
func (p *Process) lvol(name string) *lvol {
	if b := p.bdev(name); b != nil {
		return b.lvol
	}
	return nil
}

func createStore(p *Process, _ context.Context, a args) (any, *Error) {
	b := p.bdev(a.text("bdev_name"))
	cluster := uint64(4 << 20)
	if a.has("cluster_sz") {
		cluster = a.number("cluster_sz")
	}
	switch {
	case b == nil:
		return nil, errno(eNODEV)
	case b.claims > 0:
		return nil, errno(ePERM)
	case p.store(a.text("lvs_name"), "") != nil:
		return nil, errno(eEXIST)
	case !validName(a.text("lvs_name")), cluster < 8192 || cluster%uint64(b.blockSize) != 0:
		return nil, errno(eINVAL)
	}
	total := b.blocks * uint64(b.blockSize) / cluster
	if total <= metadataClusters {
		return nil, errno(eNOMEM)
	}
	s := &lvstore{name: a.text("lvs_name"), uuid: newUUID(), cluster: cluster, total: total - metadataClusters, blockSize: b.blockSize}
	p.openStore(s, b)
	if b.kind == aioDisk {
		p.network.stores[p.config.Root+"\x00"+b.file.Filename] = s
	}
	return s.uuid, nil
}

func validName(name string) bool { return len(name) > 0 && len(name) < 64 }

func (p *Process) openStore(s *lvstore, b *bdev) {
	s.base = b
	b.claims++
	p.lvstores = append(p.lvstores, s)
	for _, l := range s.lvols {
		p.offer(l)
	}
}

// examine opens the store that a file contains.
func (p *Process) examine(b *bdev) {
	s := p.network.stores[p.config.Root+"\x00"+b.file.Filename]
	if s != nil && p.store(s.name, s.uuid) == nil {
		p.openStore(s, b)
	}
}

// closeStore: the file keeps the store.
func (p *Process) closeStore(s *lvstore) {
	p.lvstores = slices.DeleteFunc(p.lvstores, func(x *lvstore) bool { return x == s })
	for _, l := range s.lvols {
		if b := p.bdev(l.uuid); b != nil {
			p.remove(b)
		}
	}
	s.base.claims--
}

func (p *Process) offer(l *lvol) {
	p.add(&bdev{
		name: l.uuid, uuid: l.uuid, alias: l.store.name + "/" + l.name, kind: lvolDisk, lvol: l,
		blockSize: l.store.blockSize, blocks: l.clusters * l.store.cluster / uint64(l.store.blockSize),
	})
}

func deleteStore(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.oneStore(a)
	if e != nil {
		return nil, e
	}
	file := s.base.file.Filename
	p.closeStore(s)
	delete(p.network.stores, p.config.Root+"\x00"+file)
	return true, nil
}

// oneStore requires exactly one of name and uuid.
func (p *Process) oneStore(a args) (*lvstore, *Error) {
	if a.has("lvs_name") == a.has("uuid") {
		return nil, errno(eINVAL)
	}
	s := p.store(a.text("lvs_name"), a.text("uuid"))
	if s == nil {
		return nil, errno(eNODEV)
	}
	return s, nil
}

func stores(p *Process, _ context.Context, a args) (any, *Error) {
	shown := p.lvstores
	if len(a) > 0 {
		s, e := p.oneStore(a)
		if e != nil {
			return nil, e
		}
		shown = []*lvstore{s}
	}
	all := []map[string]any{}
	for _, s := range shown {
		all = append(all, map[string]any{
			"uuid": s.uuid, "name": s.name, "base_bdev": s.base.name, "total_data_clusters": s.total, "free_clusters": s.free(),
			// Maximum for the metadata of the recorded store.
			"block_size": s.blockSize, "cluster_size": s.cluster, "max_growable_size": 32728 * s.cluster,
		})
	}
	return all, nil
}

// createLvol allows thin lvols larger than their store, and of size 0.
func createLvol(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.oneStore(a)
	if e != nil {
		return nil, e
	}
	name := a.text("lvol_name")
	l := &lvol{store: s, name: name, uuid: newUUID(), clusters: s.clusters(a), thin: a.flag("thin_provision")}
	switch {
	case !validName(name):
		return nil, errno(eINVAL)
	case s.lvol(name) != nil:
		return nil, errno(eEXIST)
	case !l.thin && l.clusters > s.free():
		return nil, textError(invalidParams, eNOSPC)
	}
	if !l.thin {
		l.allocated = l.clusters
	}
	s.lvols = append(s.lvols, l)
	p.offer(l)
	return l.uuid, nil
}

func (s *lvstore) clusters(a args) uint64 {
	return (a.number("size_in_mib")<<20 + s.cluster - 1) / s.cluster
}

func lvols(p *Process, _ context.Context, a args) (any, *Error) {
	shown := p.lvstores
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
			all = append(all, map[string]any{
				"alias": s.name + "/" + l.name, "uuid": l.uuid, "name": l.name, "is_thin_provisioned": l.thin,
				"is_snapshot": l.snapshot, "is_clone": l.parent != nil, "is_esnap_clone": false, "is_degraded": false,
				"num_allocated_clusters": l.allocated, "lvs": map[string]string{"name": s.name, "uuid": s.uuid},
			})
		}
	}
	return all, nil
}

func (l *lvol) show() map[string]any {
	shown := map[string]any{
		"lvol_store_uuid": l.store.uuid, "base_bdev": l.store.base.name, "thin_provision": l.thin,
		"num_allocated_clusters": l.allocated, "snapshot": l.snapshot, "clone": l.parent != nil, "esnap_clone": false,
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
func snapshot(p *Process, _ context.Context, a args) (any, *Error) {
	l := p.lvol(a.text("lvol_name"))
	name := a.text("snapshot_name")
	switch {
	case l == nil:
		return nil, errno(eNODEV)
	case l.snapshot, !validName(name):
		return nil, textError(invalidParams, eINVAL)
	case l.store.lvol(name) != nil:
		return nil, textError(invalidParams, eEXIST)
	}
	made := &lvol{
		store: l.store, name: name, uuid: newUUID(), clusters: l.clusters, allocated: l.allocated,
		thin: true, snapshot: true, readOnly: true, parent: l.parent,
	}
	l.parent, l.allocated, l.thin = made, 0, true
	l.store.lvols = append(l.store.lvols, made)
	p.offer(made)
	return made.uuid, nil
}

func clone(p *Process, _ context.Context, a args) (any, *Error) {
	l := p.lvol(a.text("snapshot_name"))
	name := a.text("clone_name")
	switch {
	case l == nil:
		return nil, errno(eNODEV)
	case !l.readOnly, !validName(name):
		return nil, textError(invalidParams, eINVAL)
	case l.store.lvol(name) != nil:
		return nil, textError(invalidParams, eEXIST)
	}
	made := &lvol{store: l.store, name: name, uuid: newUUID(), clusters: l.clusters, thin: true, parent: l}
	l.store.lvols = append(l.store.lvols, made)
	p.offer(made)
	return made.uuid, nil
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
	case !l.thin && clusters > l.allocated+l.store.free():
		return nil, textError(invalidParams, eNOSPC)
	}
	l.clusters = clusters
	l.allocated = min(l.allocated, clusters)
	if !l.thin {
		l.allocated = clusters
	}
	p.bdev(l.uuid).blocks = clusters * l.store.cluster / uint64(l.store.blockSize)
	return true, nil
}

// deleteLvol merges a snapshot into its only clone.
func deleteLvol(p *Process, _ context.Context, a args) (any, *Error) {
	l := p.lvol(a.text("name"))
	if l == nil {
		return nil, errno(eNODEV)
	}
	clones := l.clones()
	if len(clones) > 1 {
		return nil, textError(internalError, ePERM)
	}
	if len(clones) == 1 {
		heir := l.store.lvol(clones[0])
		heir.parent = l.parent
		heir.allocated = min(heir.allocated+l.allocated, heir.clusters)
	}
	p.remove(p.bdev(l.uuid))
	l.store.lvols = slices.DeleteFunc(l.store.lvols, func(x *lvol) bool { return x == l })
	return true, nil
}

func renameLvol(p *Process, _ context.Context, a args) (any, *Error) {
	l := p.lvol(a.text("old_name"))
	name := a.text("new_name")
	switch {
	case l == nil:
		return nil, errno(eNODEV)
	case !validName(name):
		return nil, errno(eINVAL)
	case l.store.lvol(name) != nil && l.name != name:
		return nil, errno(eEXIST)
	}
	l.name = name
	b := p.bdev(l.uuid)
	delete(p.bdevOf, b.alias)
	b.alias = l.store.name + "/" + name
	p.bdevOf[b.alias] = b
	return true, nil
}

func setReadOnly(p *Process, _ context.Context, a args) (any, *Error) {
	l := p.lvol(a.text("name"))
	if l == nil {
		return nil, errno(eNODEV)
	}
	l.readOnly = true
	return true, nil
}

func inflate(p *Process, _ context.Context, a args) (any, *Error) {
	l := p.lvol(a.text("name"))
	switch {
	case l == nil:
		return nil, errno(eNODEV)
	case l.clusters > l.allocated+l.store.free():
		return nil, textError(invalidParams, eNOSPC)
	}
	l.allocated, l.thin, l.parent = l.clusters, false, nil
	return true, nil
}

// Write allocates clusters of a thin lvol, as writes would. It returns false if
// the lvol does not exist or space is short.
func (p *Process) Write(name string, clusters uint64) bool {
	written := false
	p.network.change(func() {
		l := p.lvol(name)
		if l != nil && l.allocated+clusters <= l.clusters && clusters <= l.store.free() {
			l.allocated += clusters
			written = true
		}
	})
	return written
}

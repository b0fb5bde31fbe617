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
	taken      uint64 // clusters, by Fill
	blockSize  uint32
	lvols      []*lvol
	dirty      []cluster // data in free clusters
	loading    bool      // the lvols have no bdevs yet
}

// metadata is the number of clusters at the start of a store: a superblock,
// three masks, and a page for each cluster.
func metadata(clusters, size uint64) uint64 {
	const page = 4096
	mask := (clusters/8 + 5 + page) / page
	return ((1+3*mask+clusters)*page + size - 1) / size
}

func (s *lvstore) free() uint64 {
	free := s.total - s.taken
	for _, l := range s.lvols {
		free -= min(l.allocated(), free)
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

func (s *lvstore) clusters(a args) uint64 {
	return (a.number("size_in_mib")<<20 + s.cluster - 1) / s.cluster
}

func (p *Process) store(name, id string) *lvstore {
	for _, s := range p.lvstores {
		if name != "" && s.name == name || id != "" && s.uuid == id {
			return s
		}
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
	if total <= metadata(total, cluster) {
		return nil, errno(eNOMEM)
	}
	s := &lvstore{name: a.text("lvs_name"), uuid: newUUID(), cluster: cluster, total: total - metadata(total, cluster), blockSize: b.blockSize}
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
	b.shared = true
	p.lvstores = append(p.lvstores, s)
	if s.loading = p.loading; !s.loading {
		p.offerAll(s)
	}
}

// offerAll shows the lvols of a store, except those that are lost.
func (p *Process) offerAll(s *lvstore) {
	for _, l := range s.lvols {
		l.snapshot = len(l.clones()) > 0
		if !l.lost {
			p.offer(l)
		}
	}
}

// HoldExamine keeps the process, also after restarts, from opening the lvols of
// a store that a bdev brings back, until ReleaseExamine. Meanwhile the store is
// listed, its lvols do not exist, bdev_lvol_delete answers "Operation not
// permitted", and bdev_wait_for_examine waits, like in the measured process.
func (p *Process) HoldExamine() {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	p.loading = true
}

// ReleaseExamine opens the lvols.
func (p *Process) ReleaseExamine() {
	p.network.change(func() {
		p.loading = false
		for _, s := range p.lvstores {
			if s.loading {
				s.loading = false
				p.offerAll(s)
			}
		}
	})
}

// Lose keeps an lvol, which the next restarts do not open, as after "Snapshot
// fail" in SPDK's log. It returns false if the lvol does not exist.
func (p *Process) Lose(name string) bool {
	p.network.mu.Lock()
	defer p.network.mu.Unlock()
	l := p.lvol(name)
	if l != nil {
		l.lost = true
	}
	return l != nil
}

// isLoading reports whether an lvol of this uuid or alias will be opened.
func (p *Process) isLoading(name string) bool {
	for _, s := range p.lvstores {
		for _, l := range s.lvols {
			if s.loading && (l.uuid == name || s.name+"/"+l.name == name) {
				return true
			}
		}
	}
	return false
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
	s.base.shared = false
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

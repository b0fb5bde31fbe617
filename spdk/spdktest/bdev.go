package spdktest

import (
	"context"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"
)

const forEver = time.Duration(math.MaxInt64)

type bdev struct {
	name, alias string // in addition to the uuid
	uuid        string
	kind        bdevKind
	blockSize   uint32
	blocks      uint64
	claims      int  // holders: namespaces, an lvstore
	shared      bool // the claim is that of an lvstore
	readOnly    bool // namespace of a read-only bdev
	limits      limits
	file        aioFile
	lvol        *lvol
	controller  *controller
	namespace   uint32 // of the controller
	image       rbdDevice
}

type bdevKind string

const (
	mallocDisk bdevKind = "Malloc disk"
	aioDisk    bdevKind = "AIO disk"
	lvolDisk   bdevKind = "Logical Volume"
	nvmeDisk   bdevKind = "NVMe disk"
	rbdDisk    bdevKind = "Ceph Rbd Disk"
)

type limits struct {
	IOs    uint64 `json:"rw_ios_per_sec"`
	MB     uint64 `json:"rw_mbytes_per_sec"`
	Reads  uint64 `json:"r_mbytes_per_sec"`
	Writes uint64 `json:"w_mbytes_per_sec"`
}

type aioFile struct {
	Filename          string `json:"filename"`
	BlockSizeOverride bool   `json:"block_size_override"`
	ReadOnly          bool   `json:"readonly"`
	Fallocate         bool   `json:"fallocate"`
	NoWait            bool   `json:"nowait"`
}

func bdevMethods() map[string]method {
	name := map[string]kind{"name": text}
	return map[string]method{
		"bdev_get_bdevs": {run: getBdevs, takes: needs(map[string]kind{"name": text, "timeout": number})},
		"bdev_malloc_create": {run: mallocCreate, takes: needs(map[string]kind{
			"name": text, "uuid": text, "num_blocks": number, "block_size": number, "optimal_io_boundary": number,
			"md_size": number, "md_interleave": flag, "physical_block_size": number,
		}, "num_blocks", "block_size")},
		"bdev_malloc_delete": {run: deleteKind(mallocDisk), takes: needs(name, "name")},
		"bdev_aio_create": {run: aioCreate, takes: needs(map[string]kind{
			"name": text, "filename": text, "block_size": number, "readonly": flag, "fallocate": flag, "uuid": text, "nowait": flag,
		}, "name", "filename")},
		"bdev_aio_delete": {run: deleteKind(aioDisk), takes: needs(name, "name")},
		"bdev_set_qos_limit": {run: setQoS, takes: needs(map[string]kind{
			"name": text, "rw_ios_per_sec": number, "rw_mbytes_per_sec": number,
			"r_mbytes_per_sec": number, "w_mbytes_per_sec": number,
		}, "name")},
		"bdev_get_iostat": {run: getIOStat, takes: needs(map[string]kind{
			"name": text, "per_channel": flag, "reset_mode": text,
		})},
	}
}

func (p *Process) bdev(name string) *bdev {
	return p.bdevOf[name]
}

func (b *bdev) names() []string {
	names := []string{b.name, b.uuid}
	if b.alias != "" {
		names = append(names, b.alias)
	}
	return names
}

// add returns false if a name or the uuid is in use.
func (p *Process) add(b *bdev) bool {
	for _, name := range b.names() {
		if p.bdev(name) != nil {
			return false
		}
	}
	p.bdevs = append(p.bdevs, b)
	for _, name := range b.names() {
		p.bdevOf[name] = b
	}
	return true
}

// remove also removes the namespaces and lvstores on a bdev.
func (p *Process) remove(b *bdev) {
	p.bdevs = slices.DeleteFunc(p.bdevs, func(x *bdev) bool { return x == b })
	for _, name := range b.names() {
		delete(p.bdevOf, name)
	}
	if c := b.controller; c != nil {
		c.bdevs = slices.DeleteFunc(c.bdevs, func(x *bdev) bool { return x == b })
	}
	for _, s := range p.network.subsystems {
		s.namespaces = slices.DeleteFunc(s.namespaces, func(n *namespace) bool { return n.bdev == b })
	}
	p.snap.forget(b)
	for _, s := range slices.Clone(p.lvstores) {
		if s.base == b {
			p.closeStore(s)
		}
	}
}

func getBdevs(p *Process, ctx context.Context, a args) (any, *Error) {
	if !a.has("name") {
		all := []map[string]any{}
		for _, b := range p.bdevs {
			all = append(all, b.show())
		}
		return all, nil
	}
	name := a.text("name")
	b := p.bdev(name)
	if b == nil && a.number("timeout") == 0 {
		return nil, errno(eNODEV)
	}
	n := p.network
	end := n.now().Add(time.Duration(a.number("timeout")) * time.Millisecond)
	defer n.until(&end)()
	for b == nil {
		// A namespace can appear without another request.
		if !n.now().Before(end) || !n.wait(ctx, 2*tick) {
			return nil, errno(eTIMEDOUT)
		}
		n.catchUp()
		b = p.bdev(name)
	}
	return []map[string]any{b.show()}, nil
}

func mallocCreate(p *Process, _ context.Context, a args) (any, *Error) {
	size, blocks := a.number("block_size"), a.number("num_blocks")
	name := a.text("name")
	switch {
	case size == 0 || size%512 != 0 || blocks == 0:
		return nil, errno(eINVAL)
	case name != "" && p.bdev(name) != nil:
		return nil, errno(eEXIST)
	case blocks > maxMemory/size:
		return nil, errno(eNOMEM)
	}
	for name == "" {
		name = "Malloc" + strconv.Itoa(p.nextMalloc)
		p.nextMalloc++
	}
	b := &bdev{name: name, uuid: orElse(a.text("uuid"), newUUID()), kind: mallocDisk, blockSize: uint32(size), blocks: blocks}
	if !p.add(b) {
		return nil, errno(eEXIST)
	}
	return name, nil
}

// maxMemory of all malloc bdevs, as in a small SPDK process.
const maxMemory = 1 << 30

func aioCreate(p *Process, _ context.Context, a args) (any, *Error) {
	name, file := a.text("name"), a.text("filename")
	if p.bdev(name) != nil {
		return nil, errno(eEXIST)
	}
	fi, err := os.Stat(filepath.Join(p.config.Root, file))
	if err != nil {
		return nil, errno(eNOENT)
	}
	size := a.number("block_size")
	if size < 512 || size&(size-1) != 0 || fi.Size() == 0 && fi.Mode().IsRegular() || fi.IsDir() {
		return nil, errno(eINVAL)
	}
	b := &bdev{
		name: name, uuid: orElse(a.text("uuid"), newUUID()), kind: aioDisk, blockSize: uint32(size), blocks: uint64(fi.Size()) / size,
		file: aioFile{file, true, a.flag("readonly"), a.flag("fallocate"), a.flag("nowait")},
	}
	if !p.add(b) {
		return nil, errno(eEXIST)
	}
	p.examine(b)
	return name, nil
}

func deleteKind(k bdevKind) func(*Process, context.Context, args) (any, *Error) {
	return func(p *Process, _ context.Context, a args) (any, *Error) {
		b := p.bdev(a.text("name"))
		if b == nil || b.kind != k {
			return nil, errno(eNODEV)
		}
		p.remove(b)
		return true, nil
	}
}

// setQoS fails for a bdev that has limits and no holder, like the recorded
// process.
func setQoS(p *Process, _ context.Context, a args) (any, *Error) {
	b := p.bdev(a.text("name"))
	if b == nil {
		return nil, errno(eNODEV)
	}
	if len(a) == 1 {
		return nil, &Error{Code: -eINVAL, Message: "No rate limits specified"}
	}
	if b.claims == 0 && b.limits != (limits{}) {
		return nil, &Error{Code: invalidParams, Message: "Failed to configure rate limit: " + strerror(eAGAIN)}
	}
	for name, limit := range map[string]*uint64{
		"rw_ios_per_sec": &b.limits.IOs, "rw_mbytes_per_sec": &b.limits.MB,
		"r_mbytes_per_sec": &b.limits.Reads, "w_mbytes_per_sec": &b.limits.Writes,
	} {
		if a.has(name) {
			*limit = a.number(name)
		}
	}
	// Rounded up.
	b.limits.IOs = (b.limits.IOs + 999) / 1000 * 1000
	return true, nil
}

// getIOStat returns zeros, since the double has no I/O [R].
func getIOStat(p *Process, _ context.Context, a args) (any, *Error) {
	shown := p.bdevs
	if a.has("name") {
		b := p.bdev(a.text("name"))
		if b == nil {
			return nil, errno(eNODEV)
		}
		shown = []*bdev{b}
	}
	all := []map[string]any{}
	for _, b := range shown {
		all = append(all, map[string]any{
			"name": b.name, "bytes_read": 0, "num_read_ops": 0, "bytes_written": 0, "num_write_ops": 0,
			"bytes_unmapped": 0, "num_unmap_ops": 0, "read_latency_ticks": 0, "write_latency_ticks": 0,
			"unmap_latency_ticks": 0,
		})
	}
	return map[string]any{"tick_rate": uint64(time.Second), "ticks": uint64(p.network.now().UnixNano()), "bdevs": all}, nil
}

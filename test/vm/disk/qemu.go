package disk

import (
	"fmt"
	"strings"
)

// Args returns the arguments that give QEMU (7.2 or later) the disk as a
// virtio-blk device with a volatile write cache. id names the device, and in
// the guest is its serial number (/sys/block/vd*/serial); it has at most 20
// letters, digits, '-' and '_', beginning with a letter.
//
// The guest's flushes must come through: write-cache=on has the device announce
// a cache, so that the guest sends them (queue/write_cache is "write back"),
// and without cache.no-flush QEMU passes them on. QEMU itself caches nothing of
// an NBD disk. An error that the disk answers is told to the guest, rather than
// stopping it (werror's default for ENOSPC).
func (d *Disk) Args(id string) []string {
	blockdev := []string{
		"driver=nbd", "node-name=" + id, "server.type=unix", "server.path=" + strings.ReplaceAll(d.Socket(), ",", ",,"),
		"cache.direct=off", "cache.no-flush=off", "discard=unmap", "detect-zeroes=off",
	}
	device := []string{
		"virtio-blk-pci", "drive=" + id, "id=" + id + "-device", "serial=" + id, "write-cache=on",
		fmt.Sprintf("logical_block_size=%d", sector), fmt.Sprintf("physical_block_size=%d", d.spec.Block),
		"rerror=report", "werror=report",
	}
	return []string{"-blockdev", strings.Join(blockdev, ","), "-device", strings.Join(device, ",")}
}

package disk

import (
	"fmt"
	"strings"
)

// Args returns the arguments that give QEMU (7.2 or later) the disk as a
// virtio-blk device with a volatile write cache. id names the device and is its
// serial number in the guest (/sys/block/vd*/serial): at most 20 letters,
// digits, '-' and '_', starting with a letter.
//
// The guest's flushes must reach this disk: write-cache=on makes the guest send
// them (queue/write_cache is "write back"), and without cache.no-flush QEMU
// forwards them. QEMU caches nothing of an NBD disk. rerror and werror=report
// pass errors to the guest instead of stopping it (the default for ENOSPC).
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

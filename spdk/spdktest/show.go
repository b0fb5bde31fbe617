package spdktest

import "slices"

func ioTypes() []string {
	return []string{
		"read", "write", "unmap", "flush", "reset", "nvme_admin", "nvme_io", "nvme_io_md", "write_zeroes", "zcopy",
		"get_zone_info", "zone_management", "zone_append", "compare", "compare_and_write", "abort", "seek_hole", "seek_data",
		"copy", "nvme_iov_md", "nvme_nssr", "write_uncorrectable",
	}
}

func (b *bdev) does() []string {
	switch b.kind {
	case mallocDisk:
		return []string{"read", "write", "unmap", "flush", "reset", "write_zeroes", "zcopy", "compare", "abort", "copy"}
	case aioDisk:
		if b.file.Fallocate {
			return []string{"read", "write", "unmap", "flush", "reset", "write_zeroes"}
		}
		return []string{"read", "write", "flush", "reset", "write_zeroes"}
	case lvolDisk:
		if b.lvol.readOnly {
			return []string{"read", "reset", "seek_hole", "seek_data"}
		}
		return []string{"read", "write", "unmap", "reset", "write_zeroes", "seek_hole", "seek_data"}
	case nvmeDisk:
		if b.readOnly {
			return []string{"read", "write", "flush", "reset", "nvme_admin", "nvme_io", "write_zeroes", "compare", "compare_and_write", "abort", "copy"}
		}
		return []string{"read", "write", "unmap", "flush", "reset", "nvme_admin", "nvme_io", "write_zeroes", "compare", "compare_and_write", "abort", "copy"}
	case rbdDisk:
		return []string{"read", "write", "unmap", "flush", "reset", "write_zeroes", "compare_and_write"}
	}
	return nil
}

func (b *bdev) can(what string) bool { return slices.Contains(b.does(), what) }

func (b *bdev) show() map[string]any {
	types := map[string]bool{}
	for _, t := range ioTypes() {
		types[t] = b.can(t)
	}
	alignment, write := 0, 0
	if b.kind == nvmeDisk {
		alignment, write = 1, int(131072/b.blockSize)
	}
	shown := map[string]any{
		"name": b.name, "aliases": []string{orElse(b.alias, b.uuid)}, "uuid": b.uuid, "product_name": string(b.kind),
		"block_size": b.blockSize, "num_blocks": b.blocks,
		"preferred_write_alignment": alignment, "preferred_write_granularity": alignment, "optimal_write_size": write,
		"preferred_unmap_alignment": alignment, "preferred_unmap_granularity": alignment,
		"assigned_rate_limits": b.limits, "claimed": b.claims > 0, "zoned": false,
		"supported_io_types": types, "driver_specific": b.driver(),
	}
	if b.claims > 0 {
		shown["claim_type"] = "exclusive_write"
		if b.shared {
			shown["claim_type"] = "read_many_write_one"
		}
	}
	if b.kind == mallocDisk || b.kind == nvmeDisk {
		shown["numa_id"] = -1
	}
	if b.kind == nvmeDisk {
		shown["memory_domains"] = []map[string]string{{"dma_device_type": "DMA"}}
	}
	return shown
}

func (b *bdev) driver() map[string]any {
	switch b.kind {
	case aioDisk:
		return map[string]any{"aio": b.file}
	case lvolDisk:
		return map[string]any{"lvol": b.lvol.show()}
	case nvmeDisk:
		return map[string]any{"nvme": b.controller.showNamespace(b.namespace), "mp_policy": "active_passive"}
	case rbdDisk:
		rbd := map[string]any{"pool_name": b.image.Pool, "rbd_name": b.image.Name}
		if b.image.Namespace != "" {
			rbd["namespace_name"] = b.image.Namespace
		}
		if b.image.cluster != "" {
			rbd["cluster_name"] = b.image.cluster
		}
		if b.image.user != "" {
			rbd["user_id"] = b.image.user
		}
		return map[string]any{"rbd": rbd}
	}
	return map[string]any{}
}

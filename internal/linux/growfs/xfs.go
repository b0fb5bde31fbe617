package growfs

import (
	"context"
	"fmt"
	"os"

	"github.com/cleatproject/cleat/internal/linux/blockdev"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

const (
	xfsGeometry = 0x8100587e // XFS_IOC_FSGEOMETRY, _IOR('X', 126, struct xfs_fsop_geom), kernel 5.2
	xfsGrowData = 0x4010586e // XFS_IOC_FSGROWFSDATA, _IOW('X', 110, struct xfs_growfs_data)
	// xfsLeastGroup is XFS_MIN_AG_BLOCKS; a smaller rest stays unused.
	xfsLeastGroup = 64
)

type geometry struct {
	BlockSize, RealtimeExtent     uint32
	GroupBlocks, Groups, LogBlock uint32
	SectorSize, InodeSize         uint32
	MaxInodePercent               uint32
	DataBlocks                    uint64
	_                             [208]byte
}

type growData struct {
	Blocks          uint64
	MaxInodePercent uint32
	_               uint32
}

func growXFS(ctx context.Context, dir *os.File) (int64, error) {
	device, err := openDevice(dir)
	if err != nil {
		return 0, err
	}
	defer device.Close()
	space, err := blockdev.Size(device)
	if err != nil {
		return 0, err
	}
	g, err := readGeometry(ctx, dir)
	if err != nil {
		return 0, err
	}
	if target := g.target(space); target > g.DataBlocks {
		if _, err := kernelcall.Ioctl(ctx, dir, xfsGrowData, &growData{Blocks: target, MaxInodePercent: g.MaxInodePercent}); err != nil {
			return 0, fmt.Errorf("from %d to %d blocks: %w", g.DataBlocks, target, err)
		}
		if g, err = readGeometry(ctx, dir); err != nil {
			return 0, err
		}
	}
	return int64(g.DataBlocks * uint64(g.BlockSize)), nil
}

func readGeometry(ctx context.Context, dir *os.File) (geometry, error) {
	var g geometry
	if _, err := kernelcall.Ioctl(ctx, dir, xfsGeometry, &g); err != nil {
		return g, fmt.Errorf("geometry: %w", err)
	}
	if g.BlockSize == 0 || g.GroupBlocks == 0 {
		return g, fmt.Errorf("invalid geometry from the kernel: %d blocks per group of %d bytes each", g.GroupBlocks, g.BlockSize)
	}
	return g, nil
}

// target omits a last group that would be too small.
func (g geometry) target(space int64) uint64 {
	blocks := uint64(space) / uint64(g.BlockSize)
	if rest := blocks % uint64(g.GroupBlocks); rest < xfsLeastGroup {
		blocks -= rest
	}
	return blocks
}

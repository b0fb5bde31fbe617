package mkfs

import (
	"context"
	"io"
	"os"
	"slices"
)

const (
	// sampledEnds is checked at both ends of a device.
	sampledEnds = 4 * mib
	// samples of sampleSize bytes are checked at even distances.
	samples    = 1024
	sampleSize = 64 << 10
)

type extent struct{ from, to int64 }

// checkSampled is checkBlank for a device of any size, on which holes cannot be
// found. It reads all places where a file system keeps a superblock, and enough
// others to find content of any other kind.
func checkSampled(ctx context.Context, f *os.File, size int64) error {
	for _, e := range sampled(size) {
		if err := checkZeros(ctx, f, e.from, e.to); err != nil {
			return err
		}
	}
	return nil
}

// sampled returns ascending extents that do not overlap.
func sampled(size int64) []extent {
	all := []extent{{0, sampledEnds}, {size - sampledEnds, size}}
	for _, at := range superblocks(size) {
		all = append(all, extent{at, at + sampleSize})
	}
	for i := range int64(samples) {
		at := size / samples * i
		all = append(all, extent{at, at + sampleSize})
	}
	slices.SortFunc(all, func(a, b extent) int { return int(min(max(a.from-b.from, -1), 1)) })
	var merged []extent
	for _, e := range all {
		e.from, e.to = max(e.from, 0), min(e.to, size)
		switch last := len(merged) - 1; {
		case e.from >= e.to:
		case last >= 0 && e.from <= merged[last].to:
			merged[last].to = max(merged[last].to, e.to)
		default:
			merged = append(merged, e)
		}
	}
	return merged
}

// superblocks returns where copies of superblocks are: of ext4 in groups 0, 1
// and powers of 3, 5 and 7, or in group 1 and the last one (sparse_super2); of
// btrfs at fixed places; of XFS at the start of its groups, as mkfs.xfs divides
// a device.
func superblocks(size int64) []int64 {
	all := []int64{64 << 10, 64 * mib, 256 << 30, 1 << 50}
	for blockSize := int64(1024); blockSize <= 64<<10; blockSize *= 2 {
		group := 8 * blockSize * blockSize
		all = append(all, group, (size-1)/group*group)
		for _, base := range []int64{3, 5, 7} {
			for n := base; n <= size/group; n *= base {
				all = append(all, n*group)
			}
		}
	}
	const blockSize, largestGroup = 4096, 1 << 40
	for _, groups := range []int64{4, 8, 16, 32} {
		group := (size/blockSize + groups - 1) / groups * blockSize
		for i := int64(1); i < groups; i++ {
			all = append(all, i*group)
		}
	}
	for i := int64(1); i*largestGroup < size; i++ {
		all = append(all, i*largestGroup, i*(largestGroup-blockSize))
	}
	return all
}

// FindCopy returns the type and place of a copy of a superblock other than the
// first, or an empty type.
func FindCopy(ctx context.Context, r io.ReaderAt, size int64) (Type, int64, error) {
	for _, at := range superblocks(size) {
		if err := ctx.Err(); err != nil {
			return "", 0, err
		}
		if at < headBlock || at > size-headBlock || at == btrfsSuperOffset {
			continue
		}
		b := make([]byte, headBlock)
		if err := readPage(r, b, at); err != nil {
			return "", 0, err
		}
		head := make([]byte, extSuperOffset, extSuperOffset+headBlock) // ext4 has its copies at the start of a block
		if _, found, err := readExt(append(head, b...)); found && err == nil {
			return Ext4, at, nil
		}
		if _, found, err := parseXFS(b); found && err == nil {
			return XFS, at, nil
		}
		if isBtrfs(b) && checkBtrfs(b, at) == nil {
			return Btrfs, at, nil
		}
	}
	return "", 0, nil
}

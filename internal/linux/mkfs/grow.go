package mkfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// ErrNotGrown: the file system was not grown, and is as it was. The error says
// why.
var ErrNotGrown = errors.New("the ext4 was not grown")

// GrowRequest describes an unmounted ext4.
type GrowRequest struct {
	Device string
	// Scratch is the path of a sparse file, which CheckAndGrow creates and
	// removes. Existing content is lost.
	Scratch string
}

// CheckAndGrow is Tools.CheckAndGrow with the installed tools.
func CheckAndGrow(ctx context.Context, r GrowRequest) error { return Tools{}.CheckAndGrow(ctx, r) }

// CheckAndGrow prepares an ext4 for a mount in which it is written: it undoes
// an interrupted growth, repairs with "e2fsck -p" what the kernel has marked
// as damaged, and grows the file system to its device's size. If there is
// nothing to do, this costs one read.
//
// resize2fs fails on some file systems, and leaves them damaged. It works on a
// sparse copy of the metadata. Only if e2fsck accepts the result, the changed
// blocks are written to the device, with a log that undoes this after a
// failure, a kill or a loss of power, on any node.
//
// Errors: ErrNotGrown, after which the file system can be mounted;
// ErrDamaged; errs.Busy while an earlier call's check runs; errs.Precondition
// if e2fsck needs manual decisions; ErrNoTool.
func (t Tools) CheckAndGrow(ctx context.Context, r GrowRequest) error {
	f, err := os.OpenFile(r.Device, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("check ext4: %w", err)
	}
	defer f.Close()
	if err := lockForTools(f); err != nil {
		return err
	}
	if err := t.undoOrCheck(ctx, f); err != nil {
		return err
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("size of %s: %w", f.Name(), err)
	}
	s, err := openExt4(f)
	if err != nil {
		return err
	}
	full := s.full(size)
	if !full || s.needsCheck() {
		err := t.checkExt4(ctx, f, full)
		if err != nil && errs.KindOf(err) == errs.Internal && !s.needsCheck() { // such as a pool without space
			err = fmt.Errorf("%w: %w", ErrNotGrown, err)
		}
		if err != nil {
			return err
		}
	}
	if full {
		return nil
	}
	if s, err = openExt4(f); err != nil { // e2fsck can have changed it
		return err
	}
	return t.growExt4(ctx, f, s, size, r.Scratch)
}

// undoOrCheck undoes an interrupted growth. If that is not possible, the file
// system must pass a check as it is.
func (t Tools) undoOrCheck(ctx context.Context, f *os.File) error {
	err := undoGrowth(growTarget{f, ctx})
	if !errors.Is(err, errLogUnusable) {
		return err
	}
	if checkErr := t.checkExt4(ctx, f, false); checkErr != nil {
		return fmt.Errorf("%w; %w", err, checkErr)
	}
	return writeBoot(growTarget{f, ctx}, make([]byte, extSuperOffset))
}

// IsLockedByTool reports whether a check that CheckAndGrow began still runs.
func IsLockedByTool(device string) (bool, error) {
	f, err := os.OpenFile(device, os.O_RDWR, 0)
	if err != nil {
		return false, fmt.Errorf("find a running check: %w", err)
	}
	defer f.Close()
	if err := lockForTools(f); !errors.Is(err, errs.Busy) {
		return false, err
	}
	return true, nil
}

// lockForTools takes a lock that the tools inherit and that lasts until the
// last of them exits. It is an open file description lock, not flock, which
// callers can hold.
func lockForTools(f *os.File) error {
	lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart}
	err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &lock)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return errs.Errorf(errs.Busy, "the file system on %s is being checked or grown; try again", f.Name())
	}
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	return nil
}

func openExt4(f *os.File) (extSuper, error) {
	head := make([]byte, reach)
	if n, err := f.ReadAt(head, 0); n < len(head) {
		return extSuper{}, fmt.Errorf("read the superblock of %s: %w", f.Name(), err)
	}
	info, err := Probe(f)
	switch {
	case errors.Is(err, ErrDamaged):
		return extSuper{}, fmt.Errorf("%s: %w; try \"e2fsck -f %[1]s\" on a copy of the volume", f.Name(), err)
	case err != nil:
		return extSuper{}, fmt.Errorf("%s: %w", f.Name(), err)
	case info.Type != Ext4:
		return extSuper{}, errs.Errorf(errs.Precondition, "%s does not contain ext4 but %s", f.Name(), describe(f, 0))
	}
	s, _, err := readExt(head)
	return s, err
}

// growExt4 has resize2fs grow a copy, and copies the result. The file system
// has been checked.
func (t Tools) growExt4(ctx context.Context, f *os.File, s extSuper, size int64, scratch string) (err error) {
	if err := s.checkGrowth(size); err != nil {
		return fmt.Errorf("%w: %w", ErrNotGrown, err)
	}
	if err := s.checkScratch(filepath.Dir(scratch)); err != nil {
		return fmt.Errorf("%w: %w", ErrNotGrown, err)
	}
	defer os.Remove(scratch)
	if err := t.growCopy(ctx, f.Name(), scratch, size); err != nil {
		return fmt.Errorf("%w from %d to %d bytes: %w", ErrNotGrown, s.blocks*s.blockSize, size, err)
	}
	image, err := os.Open(scratch)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotGrown, err)
	}
	defer image.Close()
	g, err := newGrowth(ctx, f, image, int64(s.blocks*s.blockSize), size)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotGrown, err)
	}
	if err := g.apply(growTarget{f, ctx}); err != nil {
		if undoErr := undoGrowth(growTarget{f, ctx}); undoErr != nil {
			return errors.Join(err, undoErr)
		}
		return fmt.Errorf("%w: %w", ErrNotGrown, err)
	}
	return nil
}

// checkGrowth refuses what would move blocks of files, whose content the copy
// does not have (resize2fs: blocks_to_move), and what the copy does not show:
// without checksums of groups, resize2fs zeroes inode tables.
func (s extSuper) checkGrowth(size int64) error {
	if s.roCompat&(extChecksums|extGroupChecksums) == 0 || s.compat&extSparseSuper2 != 0 {
		return errs.Errorf(errs.Precondition, "an ext4 without metadata_csum or uninit_bg, or with sparse_super2, grows only while it is mounted")
	}
	if s.incompat&extMetaGroups != 0 {
		return nil
	}
	perBlock := s.blockSize / max(s.descriptorSize, 1)
	ceil := func(a, b uint64) uint64 { return (a + b - 1) / max(b, 1) }
	groups := ceil(s.blocks-s.firstBlock, s.blocksPerGroup)
	most := (ceil(groups, perBlock)+s.reservedGDT)*perBlock*s.blocksPerGroup + s.firstBlock
	if uint64(size)/s.blockSize > most {
		return errs.Errorf(errs.Precondition, "its group descriptors have space for at most %d bytes, the volume has %d; larger it grows only while it is mounted, or copy the data to a new volume", most*s.blockSize, size)
	}
	return nil
}

// checkScratch refuses a copy of the metadata that could fill the directory's
// file system. The copy also has directories and extents, which are not known:
// half of the space is for them and for others.
func (s extSuper) checkScratch(dir string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return fmt.Errorf("free space of %s: %w", dir, err)
	}
	need, free := 2*s.metadata(), st.Bavail*uint64(st.Bsize)
	if need > free {
		return errs.Errorf(errs.Precondition, "the copy of its metadata needs %d bytes in %s, which has %d: free %d bytes, and stage the volume again; or it grows while it is mounted", need, dir, free, need-free)
	}
	return nil
}

// growCopy copies the metadata to a sparse file and grows the file system in
// it.
func (t Tools) growCopy(ctx context.Context, device, scratch string, size int64) error {
	if err := os.Remove(scratch); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	steps := []command{
		{tool: "e2image", args: []string{"-r", "--", device, scratch}},
		{tool: "resize2fs", args: []string{"--", scratch}},
		{tool: "e2fsck", args: []string{"-f", "-n", "--", scratch}},
	}
	for i, step := range steps {
		res, err := t.run(ctx, step)
		if err != nil {
			return err
		}
		if res.code != 0 {
			return errs.Errorf(errs.Internal, "%s failed with exit code %d on a copy of the file system%s", step.tool, res.code, quoteOutput(res.output))
		}
		if i > 0 {
			continue
		}
		if err := os.Truncate(scratch, size); err != nil {
			return fmt.Errorf("enlarge the copy of the metadata: %w", err)
		}
	}
	return nil
}

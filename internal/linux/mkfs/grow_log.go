package mkfs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

// A growth writes new blocks behind the old end of the file system, where
// nothing is in use, and a log of the old content of all other blocks that it
// changes. Then a marker in the boot block (1024 bytes), which ext4 does not use,
// names the log, and the blocks are changed. The log is on the device, so that
// another node can undo the growth.
//
// The log has the new superblock, and for each page its offset and content. The
// first page includes the boot block.
const (
	growMarker = "cleat: an interrupted growth of ext4 is undone from the log of"
	growFormat = growMarker + " %d bytes at byte %d, SHA-256 %x\n"
	// resizeMarker is what releases before this log left in the boot block after
	// a failed or interrupted resize2fs.
	resizeMarker = "cleat: resize2fs began here\n"

	growPage = 4096
	growItem = 8 + growPage
	// mostLog bounds the log in memory.
	mostLog = 64 * mib
)

type growDevice interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
}

// growTarget is a device whose flushes can wait for storage.
type growTarget struct {
	*os.File
	ctx context.Context // of the call
}

func (d growTarget) Sync() error { return kernelcall.Sync(d.ctx, d.File) }

// growth is what changes on a device. Offsets are multiples of growPage.
type growth struct {
	image io.ReaderAt // the file system as it will be
	fresh []int64     // pages behind the old end
	old   []int64     // other pages; the first is 0
	log   []byte
	logAt int64
}

// newGrowth compares an image without the content of files to the device.
func newGrowth(ctx context.Context, dev io.ReaderAt, image *os.File, oldSize, size int64) (*growth, error) {
	g := &growth{image: image, old: []int64{0}}
	now, then := make([]byte, growPage), make([]byte, growPage)
	for at := int64(growPage); at < size; at += growPage {
		start, _, err := nextData(image, at, size)
		if err != nil {
			return nil, err
		}
		if at = start / growPage * growPage; at >= size {
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := errors.Join(readPage(image, then, at), readPage(dev, now, at)); err != nil {
			return nil, err
		}
		switch {
		case bytes.Equal(now, then):
		case at >= oldSize:
			g.fresh = append(g.fresh, at)
		default:
			g.old = append(g.old, at)
		}
	}
	return g, g.placeLog(dev, oldSize, size)
}

// placeLog puts the log at the highest place behind the old end that no page
// uses.
func (g *growth) placeLog(dev io.ReaderAt, oldSize, size int64) error {
	length := int64(extSuperSize + len(g.old)*growItem)
	if length > mostLog {
		return errs.Errorf(errs.Precondition, "the growth would change %d blocks in use, which is too many to undo", len(g.old))
	}
	g.logAt = (size - length) / growPage * growPage
	for _, page := range slices.Backward(g.fresh) {
		if page+growPage > g.logAt && page < g.logAt+length {
			g.logAt = (page - length) / growPage * growPage
		}
	}
	if g.logAt < oldSize {
		return errs.Errorf(errs.Precondition, "the volume is larger by %d bytes, which have no space for the %d bytes of the log that undoes a failed growth; grow it by more", size-oldSize, length)
	}
	g.log = make([]byte, length)
	if _, err := g.image.ReadAt(g.log[:extSuperSize], extSuperOffset); err != nil {
		return fmt.Errorf("read the grown superblock: %w", err)
	}
	for i, at := range g.old {
		item := g.log[extSuperSize+i*growItem:][:growItem]
		binary.LittleEndian.PutUint64(item, uint64(at))
		if err := readPage(dev, item[8:], at); err != nil {
			return err
		}
	}
	return nil
}

// apply writes the growth. After an error, undoGrowth restores the device.
func (g *growth) apply(dev growDevice) error {
	if err := g.copyPages(dev, g.fresh); err != nil {
		return err
	}
	if _, err := dev.WriteAt(g.log, g.logAt); err != nil {
		return fmt.Errorf("write the log of the growth: %w", err)
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("flush the log of the growth: %w", err)
	}
	marker := make([]byte, extSuperOffset)
	copy(marker, fmt.Sprintf(growFormat, len(g.log), g.logAt, sha256.Sum256(g.log)))
	if err := writeBoot(dev, marker); err != nil {
		return err
	}
	crashpoint.Hit("mount.growth-marked")
	if err := g.copyPages(dev, g.old); err != nil {
		return err
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("flush the grown file system: %w", err)
	}
	crashpoint.Hit("mount.growth-written")
	return writeBoot(dev, bootBlock(g.log[extSuperSize+8:]))
}

func (g *growth) copyPages(dev io.WriterAt, pages []int64) error {
	b := make([]byte, growPage)
	for _, at := range pages {
		if err := readPage(g.image, b, at); err != nil {
			return err
		}
		if err := writePage(dev, b, at); err != nil {
			return fmt.Errorf("write the grown file system at byte %d: %w", at, err)
		}
	}
	return nil
}

// errLogUnusable: the file system was changed after the interrupted growth by a
// program that does not know the log.
var errLogUnusable = errors.New("the log of an interrupted growth does not fit the file system")

// undoGrowth restores what an incomplete growth changed. It is idempotent, and
// without a marker a no-op. After errLogUnusable nothing was changed.
//
// It reads the device, not the page cache, in which the pages of a failed write
// or undo are not marked as changed.
func undoGrowth(dev growTarget) error {
	if err := unix.Fadvise(int(dev.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return fmt.Errorf("drop the cached pages of %s: %w", dev.Name(), err)
	}
	boot := make([]byte, extSuperOffset)
	if _, err := dev.ReadAt(boot, 0); err != nil {
		return fmt.Errorf("read the first block: %w", err)
	}
	if !bytes.HasPrefix(boot, []byte(growMarker)) {
		return nil
	}
	log, err := readLog(dev, boot)
	if err != nil {
		return err
	}
	first := log[extSuperSize+8:][:growPage]
	if err := checkStale(dev, log[:extSuperSize], first[extSuperOffset:][:extSuperSize]); err != nil {
		return err
	}
	b := make([]byte, growPage)
	for item := range slices.Chunk(log[extSuperSize:], growItem) {
		at, old := int64(binary.LittleEndian.Uint64(item)), item[8:]
		if err := readPage(dev, b, at); err != nil {
			return err
		}
		if bytes.Equal(b, old) { // a page that was not changed needs no space
			continue
		}
		if err := writePage(dev, old, at); err != nil {
			return fmt.Errorf("undo the growth at byte %d: %w", at, err)
		}
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("flush the undone growth: %w", err)
	}
	return writeBoot(dev, bootBlock(first))
}

func readLog(dev io.ReaderAt, boot []byte) ([]byte, error) {
	var length, at int64
	var sum []byte
	if _, err := fmt.Sscanf(string(boot), growFormat, &length, &at, &sum); err != nil {
		return nil, fmt.Errorf("%w: its marker is damaged: %w", errLogUnusable, err)
	}
	if length < extSuperSize+growItem || length > mostLog || (length-extSuperSize)%growItem != 0 {
		return nil, fmt.Errorf("%w: its marker names %d bytes", errLogUnusable, length)
	}
	log := make([]byte, length)
	if _, err := dev.ReadAt(log, at); err != nil {
		return nil, fmt.Errorf("read the log: %w", err)
	}
	if found := sha256.Sum256(log); !bytes.Equal(found[:], sum) {
		return nil, fmt.Errorf("%w: SHA-256 of the log is %x, not %x", errLogUnusable, found, sum)
	}
	return log, nil
}

// checkStale: another program has changed the file system since, such as an
// older release of this driver. Each sector of the superblock is old, new, or
// torn.
func checkStale(dev io.ReaderAt, grown, old []byte) error {
	head := make([]byte, reach)
	if _, err := dev.ReadAt(head, 0); err != nil {
		return fmt.Errorf("read the superblock: %w", err)
	}
	if _, found, err := readExt(head); !found || err != nil {
		return nil
	}
	const sector = 512
	for at := 0; at < extSuperSize; at += sector {
		now := head[extSuperOffset+at:][:sector]
		if !bytes.Equal(now, old[at:][:sector]) && !bytes.Equal(now, grown[at:][:sector]) {
			return fmt.Errorf("%w: the superblock has changed", errLogUnusable)
		}
	}
	return nil
}

// bootBlock of a page, without what an older release left there.
func bootBlock(first []byte) []byte {
	if bytes.HasPrefix(first, []byte(resizeMarker)) {
		return make([]byte, extSuperOffset)
	}
	return first[:extSuperOffset]
}

func writeBoot(dev growDevice, b []byte) error {
	if _, err := dev.WriteAt(b, 0); err != nil {
		return fmt.Errorf("write the first block: %w", err)
	}
	if err := dev.Sync(); err != nil {
		return fmt.Errorf("flush the first block: %w", err)
	}
	return nil
}

// readPage reads zeros behind the end of a device.
func readPage(r io.ReaderAt, b []byte, at int64) error {
	n, err := r.ReadAt(b, at)
	clear(b[n:])
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read at byte %d: %w", at, err)
	}
	return nil
}

// writePage leaves the boot block to writeBoot.
func writePage(w io.WriterAt, b []byte, at int64) error {
	if at == 0 {
		b, at = b[extSuperOffset:], extSuperOffset
	}
	_, err := w.WriteAt(b, at)
	return err
}

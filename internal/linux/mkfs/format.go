package mkfs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
)

// formatMarker is at the start of a device while Format writes to it. The UUID
// of the file system and a line feed follow.
const formatMarker = "cleat: mkfs is not complete, UUID "

// headBlock is written at once, and last: the superblock of ext4 and XFS is in
// it, and that of btrfs is of no use while the marker is there.
const headBlock = 4096

// FormatRequest describes the file system of a block device.
type FormatRequest struct {
	Device string
	Type   Type
	// UUID derives from the volume, so that what a killed call left on the
	// device is known to be of the same volume.
	UUID string
	// Scratch is the path of a sparse file of the device's size, which Format
	// creates and removes. Existing content is lost.
	Scratch string
}

// Format is Tools.Format with the installed tools.
func Format(ctx context.Context, r FormatRequest) error { return Tools{}.Format(ctx, r) }

// Format creates a file system on a block device that is blank, or that an
// earlier call with the same UUID left incomplete. After a kill or a loss of power the device is
// blank, has the marker, or is complete: the tool, whose order of writes is
// unknown, works on a file that is then copied to the device, without zeros.
//
// Errors: those of Make; ErrNotBlank.
func (t Tools) Format(ctx context.Context, r FormatRequest) error {
	dev, err := os.OpenFile(r.Device, os.O_RDWR|unix.O_EXCL, 0)
	if err != nil {
		return fmt.Errorf("format with %s: %w", r.Type, err)
	}
	defer dev.Close()
	size, err := dev.Seek(0, io.SeekEnd)
	if err != nil {
		return fmt.Errorf("size of %s: %w", r.Device, err)
	}
	unfinished, err := r.isUnfinished(dev)
	if err != nil {
		return err
	}
	if unfinished {
		// Before the tool runs: mkfs.btrfs refuses a UUID that another device has.
		err = zero(ctx, dev, headBlock, size)
	} else {
		err = checkSampled(ctx, dev, size)
	}
	if err != nil {
		return err
	}
	image, err := t.makeImage(ctx, r, size)
	if err != nil {
		return err
	}
	defer os.Remove(r.Scratch)
	defer image.Close()
	crashpoint.Hit("stage.formatting/made")
	if err := writeSynced(ctx, dev, r.marker()); err != nil {
		return err
	}
	crashpoint.Hit("stage.formatting/marked")
	if err := copyData(ctx, dev, image, size); err != nil {
		return err
	}
	crashpoint.Hit("stage.formatting/copied")
	head := make([]byte, headBlock)
	if _, err := image.ReadAt(head, 0); err != nil {
		return fmt.Errorf("read %s: %w", image.Name(), err)
	}
	if err := writeSynced(ctx, dev, head); err != nil {
		return err
	}
	crashpoint.Hit("stage.formatting/complete")
	return Request{Path: r.Device, Type: r.Type, UUID: r.UUID}.verify(dev)
}

func (r FormatRequest) marker() []byte {
	b := make([]byte, headBlock)
	copy(b, formatMarker+r.UUID+"\n")
	return b
}

func (r FormatRequest) isUnfinished(f io.ReaderAt) (bool, error) {
	head := make([]byte, headBlock)
	if _, err := f.ReadAt(head, 0); err != nil {
		return false, fmt.Errorf("read %s: %w", r.Device, err)
	}
	return bytes.Equal(head, r.marker()), nil
}

// makeImage creates the file system in the scratch file.
func (t Tools) makeImage(ctx context.Context, r FormatRequest, size int64) (image *os.File, err error) {
	if err := os.RemoveAll(r.Scratch); err != nil {
		return nil, fmt.Errorf("remove an earlier file system image: %w", err)
	}
	image, err = os.OpenFile(r.Scratch, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create the file system image: %w", err)
	}
	if err = image.Truncate(size); err == nil {
		err = t.Make(ctx, Request{Path: r.Scratch, Type: r.Type, UUID: r.UUID})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make the image of a file system of %d bytes: %w", size, err), image.Close(), os.Remove(r.Scratch))
	}
	return image, nil
}

// zero makes a range of a device read as zeros: it deallocates if the device
// can.
func zero(ctx context.Context, dev *os.File, from, to int64) error {
	const piece = 1 << 30
	for ; from < to; from += piece {
		if err := ctx.Err(); err != nil {
			return err
		}
		length := min(piece, to-from)
		err := kernelcall.Fallocate(ctx, dev, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, length)
		if errors.Is(err, unix.EOPNOTSUPP) {
			err = kernelcall.Fallocate(ctx, dev, unix.FALLOC_FL_ZERO_RANGE|unix.FALLOC_FL_KEEP_SIZE, from, length)
		}
		if err != nil {
			return fmt.Errorf("zero %s at byte %d: %w", dev.Name(), from, err)
		}
	}
	return nil
}

// copyData copies the image's blocks that are not zero, except for the first,
// and flushes them.
func copyData(ctx context.Context, dev, image *os.File, size int64) error {
	buf, zeros := make([]byte, mib), make([]byte, headBlock)
	for at := int64(headBlock); at < size; {
		start, end, err := nextData(image, at, size)
		if err != nil {
			return err
		}
		for at = start; at < end; {
			if err := ctx.Err(); err != nil {
				return err
			}
			n, err := image.ReadAt(buf[:min(int64(len(buf)), end-at)], at)
			if err != nil && (!errors.Is(err, io.EOF) || n == 0) {
				return fmt.Errorf("read %s at byte %d: %w", image.Name(), at, err)
			}
			for from := 0; from < n; from += headBlock {
				block := buf[from:min(from+headBlock, n)]
				if bytes.Equal(block, zeros[:len(block)]) {
					continue
				}
				if _, err := dev.WriteAt(block, at+int64(from)); err != nil {
					return fmt.Errorf("write the file system to %s: %w", dev.Name(), err)
				}
			}
			at += int64(n)
		}
		at = end
	}
	if err := kernelcall.Sync(ctx, dev); err != nil {
		return fmt.Errorf("flush %s: %w", dev.Name(), err)
	}
	return nil
}

func writeSynced(ctx context.Context, dev *os.File, head []byte) error {
	_, err := dev.WriteAt(head, 0)
	if err == nil {
		err = kernelcall.Sync(ctx, dev)
	}
	if err != nil {
		return fmt.Errorf("write the first block of %s: %w", dev.Name(), err)
	}
	return nil
}

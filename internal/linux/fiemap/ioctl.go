package fiemap

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// ErrUnsupported means that the file system does not tell its extents.
var ErrUnsupported = errors.New("the file system does not tell where its extents lie")

const (
	// ioctlFiemap is FS_IOC_FIEMAP, _IOWR('f', 11, struct fiemap), in the
	// encoding that all architectures but MIPS, PowerPC and SPARC share.
	ioctlFiemap = 0xC020660B
	flagSync    = 1 // FIEMAP_FLAG_SYNC: write back before answering

	headerSize = 32
	extentSize = 56
	// pageExtents is how many extents one call fetches (56 KiB).
	pageExtents = 1024
)

// Extents lists the extents of f that touch the length bytes from `from` on,
// cut to that range, ascending and without overlap; holes are left out. Dirty
// data is written back first. The list comes in pages: a file that is written
// to meanwhile may show a mixture. An error ends the list. Errors:
// ErrUnsupported, the context's.
func Extents(ctx context.Context, f *os.File, from, length int64) iter.Seq2[Extent, error] {
	return func(yield func(Extent, error) bool) {
		if from < 0 || length < 0 {
			yield(Extent{}, errs.Errorf(errs.OutOfRange, "list extents of %s: offset %d and length %d must not be negative", f.Name(), from, length))
			return
		}
		start, end := uint64(from), uint64(from)+uint64(min(length, math.MaxInt64-from))
		buf := make([]byte, headerSize+pageExtents*extentSize)
		for start < end {
			if ctx.Err() != nil {
				yield(Extent{}, fmt.Errorf("list extents of %s: %w", f.Name(), context.Cause(ctx)))
				return
			}
			page, err := fetch(f, buf, start, end)
			if err != nil {
				yield(Extent{}, fmt.Errorf("list extents of %s from byte %d: %w", f.Name(), start, err))
				return
			}
			asked := start
			for _, e := range page {
				if e, ok := e.clip(start, end); ok {
					if !yield(e, nil) {
						return
					}
					start = e.End()
				}
			}
			if len(page) < pageExtents || page[len(page)-1].Flags&FlagLast != 0 {
				return
			}
			if start == asked {
				yield(Extent{}, errs.Errorf(errs.Internal, "list extents of %s: %d extents from byte %d on, and all lie before it", f.Name(), len(page), start))
				return
			}
		}
	}
}

// fetch asks the kernel for one page.
func fetch(f *os.File, buf []byte, start, end uint64) ([]Extent, error) {
	clear(buf[:headerSize])
	binary.NativeEndian.PutUint64(buf[0:], start)
	binary.NativeEndian.PutUint64(buf[8:], end-start)
	binary.NativeEndian.PutUint32(buf[16:], flagSync)
	binary.NativeEndian.PutUint32(buf[24:], uint32((len(buf)-headerSize)/extentSize))
	for {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), ioctlFiemap, uintptr(unsafe.Pointer(&buf[0])))
		runtime.KeepAlive(f)
		switch errno {
		case 0:
			return parse(buf)
		case unix.EINTR:
		case unix.EFBIG: // behind the largest file that this file system can hold
			return nil, nil
		case unix.EOPNOTSUPP, unix.ENOTTY:
			return nil, errs.Errorf(errs.Unsupported, "%w (%w)", ErrUnsupported, errno)
		default:
			return nil, errno
		}
	}
}

// parse reads the kernel's answer and checks what the rest of the package
// relies on: ascending, no overlap, no overflow.
func parse(buf []byte) ([]Extent, error) {
	if len(buf) < headerSize {
		return nil, errs.Errorf(errs.Internal, "an extent map of %d bytes has no room for its header of %d", len(buf), headerSize)
	}
	mapped := uint64(binary.NativeEndian.Uint32(buf[20:]))
	if room := uint64(len(buf)-headerSize) / extentSize; mapped > room {
		return nil, errs.Errorf(errs.Internal, "the kernel tells of %d extents where there is room for %d", mapped, room)
	}
	page := make([]Extent, 0, mapped)
	behind := uint64(0)
	for rest := buf[headerSize:]; mapped > 0; mapped, rest = mapped-1, rest[extentSize:] {
		e := Extent{
			Logical:  binary.NativeEndian.Uint64(rest[0:]),
			Physical: binary.NativeEndian.Uint64(rest[8:]),
			Length:   binary.NativeEndian.Uint64(rest[16:]),
			Flags:    binary.NativeEndian.Uint32(rest[40:]),
		}
		switch {
		case e.Length == 0 || e.Logical > math.MaxInt64 || e.Length > math.MaxInt64-e.Logical+1:
			return nil, errs.Errorf(errs.Internal, "extent at %d with length %d lies outside any file", e.Logical, e.Length)
		case e.Logical < behind:
			return nil, errs.Errorf(errs.Internal, "extent at %d begins before the end %d of the one before it", e.Logical, behind)
		}
		behind = e.End()
		page = append(page, e)
	}
	return page, nil
}

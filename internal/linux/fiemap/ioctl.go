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

// ErrUnsupported: the file system does not support FIEMAP.
var ErrUnsupported = errors.New("the file system cannot list extents (FIEMAP)")

const (
	// FS_IOC_FIEMAP, _IOWR('f', 11, struct fiemap), except on MIPS, PowerPC and
	// SPARC.
	ioctlFiemap = 0xC020660B
	flagSync    = 1 // FIEMAP_FLAG_SYNC: write back before answering

	headerSize = 32
	extentSize = 56
	// pageExtents is extents fetched by one call (56 KiB).
	pageExtents = 1024
)

// Extents lists the extents of f in [from, from+length), truncated to it,
// ascending and without holes. Dirty data is written back first. The list is
// inconsistent if the file is written to meanwhile. It ends at an error, such
// as ErrUnsupported.
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
				yield(Extent{}, errs.Errorf(errs.Internal, "list extents of %s: all %d extents reported from byte %d on lie before it", f.Name(), len(page), start))
				return
			}
		}
	}
}

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
		case unix.EFBIG: // beyond the file system's largest file
			return nil, nil
		case unix.EOPNOTSUPP, unix.ENOTTY:
			return nil, errs.Errorf(errs.Unsupported, "%w (%w)", ErrUnsupported, errno)
		default:
			return nil, errno
		}
	}
}

// parse also checks the invariants: ascending, no overlap, no overflow.
func parse(buf []byte) ([]Extent, error) {
	if len(buf) < headerSize {
		return nil, errs.Errorf(errs.Internal, "extent map of %d bytes is shorter than its header of %d bytes", len(buf), headerSize)
	}
	mapped := uint64(binary.NativeEndian.Uint32(buf[20:]))
	if capacity := uint64(len(buf)-headerSize) / extentSize; mapped > capacity {
		return nil, errs.Errorf(errs.Internal, "the kernel reports %d extents in a buffer for %d", mapped, capacity)
	}
	page := make([]Extent, 0, mapped)
	end := uint64(0)
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
		case e.Logical < end:
			return nil, errs.Errorf(errs.Internal, "extent at %d begins before the end %d of the previous one", e.Logical, end)
		}
		end = e.End()
		page = append(page, e)
	}
	return page, nil
}

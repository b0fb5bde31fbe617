package reflink

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

const (
	// chunk bounds the delay of a cancellation, and the work repeated by a
	// resumed copy.
	chunk = 16 << 20
	// punchChunk is larger: the cost depends on extents, not bytes.
	punchChunk = 1 << 30
	buffer     = 1 << 20
)

// CopySparse copies src to dst starting at offset from. Holes in src become
// holes in dst, but preallocated space is kept. src must not change meanwhile.
//
// After each step progress (optional) receives the offset up to which dst
// equals src, not yet durable; its error ends the copy and is returned
// unwrapped. Errors: errs.Exhausted, errs.Invalid, the context's cause.
func CopySparse(ctx context.Context, dst, src *os.File, from int64, progress func(done int64) error) error {
	c, err := newCopier(dst, src)
	if err != nil {
		return err
	}
	if from < 0 {
		return errs.Errorf(errs.Invalid, "copy %s: offset %d is negative", src.Name(), from)
	}
	for at := from; at < c.size; {
		if err := ctx.Err(); err != nil {
			return c.fail(context.Cause(ctx))
		}
		if at, err = c.step(at); err != nil {
			return err
		}
		if progress != nil {
			if err := progress(at); err != nil {
				return err
			}
		}
	}
	if err := dst.Truncate(c.size); err != nil {
		return c.fail(err)
	}
	return nil
}

type copier struct {
	dst, src *os.File
	size     int64 // of src
	buf      []byte
	// the last data range found in src
	dataFrom, dataTo int64
}

func newCopier(dst, src *os.File) (*copier, error) {
	c := &copier{dst: dst, src: src}
	from, err := src.Stat()
	if err != nil {
		return nil, c.fail(err)
	}
	to, err := dst.Stat()
	if err != nil {
		return nil, c.fail(err)
	}
	if os.SameFile(from, to) {
		return nil, errs.Errorf(errs.Invalid, "copy %s to %s: they are the same file", src.Name(), dst.Name())
	}
	if !from.Mode().IsRegular() || !to.Mode().IsRegular() {
		return nil, errs.Errorf(errs.Invalid, "copy %s to %s: both must be regular files", src.Name(), dst.Name())
	}
	c.size = from.Size()
	return c, nil
}

func (c *copier) fail(err error) error { return explain("copy", c.dst, c.src, err) }

func (c *copier) step(at int64) (int64, error) {
	if at >= c.dataTo {
		var err error
		if c.dataFrom, c.dataTo, err = nextData(c.src, at, c.size); err != nil {
			return at, c.fail(err)
		}
	}
	if at < c.dataFrom {
		return c.hole(at, c.dataFrom)
	}
	return c.data(at, min(c.dataTo, at+chunk))
}

// nextData returns size twice if only a hole follows.
func nextData(f *os.File, at, size int64) (from, to int64, err error) {
	from, err = f.Seek(at, unix.SEEK_DATA)
	if errors.Is(err, unix.ENXIO) {
		return size, size, nil
	}
	if errors.Is(err, unix.EINVAL) { // no SEEK_DATA support: all is data
		return at, size, nil
	}
	if err != nil {
		return 0, 0, err
	}
	to, err = f.Seek(from, unix.SEEK_HOLE)
	if err != nil {
		return 0, 0, err
	}
	return min(from, size), min(to, size), nil
}

// hole makes dst read as zeros from at to end. Preallocated unwritten space
// already counts as a hole.
func (c *copier) hole(at, end int64) (int64, error) {
	info, err := c.dst.Stat()
	if err != nil {
		return at, c.fail(err)
	}
	if at >= info.Size() {
		return end, nil
	}
	from, _, err := nextData(c.dst, at, info.Size())
	if err != nil {
		return at, c.fail(err)
	}
	if from = max(from, at); from >= end {
		return end, nil
	}
	to := min(end, from+punchChunk)
	err = unix.Fallocate(int(c.dst.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, from, to-from)
	runtime.KeepAlive(c.dst)
	switch {
	case err == unix.EINTR:
		return at, nil
	case err == unix.EOPNOTSUPP, err == unix.ENOSYS:
		return c.zero(from, min(to, from+chunk))
	case err != nil:
		return at, c.fail(err)
	}
	return to, nil
}

func (c *copier) zero(at, end int64) (int64, error) {
	zeros := make([]byte, buffer)
	for at < end {
		n, err := c.dst.WriteAt(zeros[:min(end-at, buffer)], at)
		at += int64(n)
		if err != nil {
			return at, c.fail(err)
		}
	}
	return at, nil
}

func (c *copier) data(at, end int64) (int64, error) {
	for at < end && c.buf == nil {
		in, out := at, at
		n, err := unix.CopyFileRange(int(c.src.Fd()), &in, int(c.dst.Fd()), &out, int(end-at), 0)
		runtime.KeepAlive(c)
		switch {
		case err == unix.EINTR, err == unix.EAGAIN:
		case err == unix.EXDEV, err == unix.EINVAL, err == unix.ENOSYS, err == unix.EOPNOTSUPP,
			err == nil && n == 0:
			c.buf = make([]byte, buffer)
		case err != nil:
			return at, c.fail(err)
		}
		at += int64(max(n, 0))
	}
	for at < end {
		n, err := c.src.ReadAt(c.buf[:min(end-at, buffer)], at)
		if n == 0 {
			if err == io.EOF {
				err = errs.Errorf(errs.Internal, "the source ends at %d, not at %d: it changed during the copy", at, c.size)
			}
			return at, c.fail(err)
		}
		if _, err := c.dst.WriteAt(c.buf[:n], at); err != nil {
			return at, c.fail(err)
		}
		at += int64(n)
	}
	return at, nil
}

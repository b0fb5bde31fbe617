package local

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/poolfile"
)

// allocationStep bounds one fallocate call, so that a long allocation can be
// cancelled in between.
const allocationStep = 256 << 20

func allocate(ctx context.Context, f *os.File, from, to int64) error {
	return inSteps(ctx, from, to, func(offset, length int64) error {
		err := fallocate(f, unix.FALLOC_FL_KEEP_SIZE, offset, length)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return errs.Errorf(errs.Unsupported, "the pool's file system cannot reserve blocks, so %s=%s is not possible: %w", keyProvisioning, thick, err)
		}
		return err
	})
}

// unshare copies blocks shared with other files, so that writes need no new
// ones.
func unshare(ctx context.Context, f *os.File, size int64) error {
	return inSteps(ctx, 0, size, func(offset, length int64) error {
		err := fallocate(f, unix.FALLOC_FL_UNSHARE_RANGE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return nil // no shared blocks
		}
		return err
	})
}

func punch(f *os.File, offset, length int64) error {
	return fallocate(f, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, offset, length)
}

func inSteps(ctx context.Context, from, to int64, do func(offset, length int64) error) error {
	for offset := from; offset < to; offset += allocationStep {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := do(offset, min(allocationStep, to-offset)); err != nil {
			return err
		}
	}
	return nil
}

func fallocate(f *os.File, mode uint32, offset, length int64) error {
	for {
		err := unix.Fallocate(int(f.Fd()), mode, offset, length)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("fallocate %d bytes at %d: %w", length, offset, err)
		}
		return nil
	}
}

// explain sets the kind of an error. Tools such as mkfs report only a failure;
// in a full pool the likely cause is space.
func (e *Engine) explain(err error) error {
	kind := errs.KindOf(err)
	switch {
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return errs.Errorf(errs.Exhausted, "pool %s is full: %w", e.pool.path, err)
	case errors.Is(err, unix.EFBIG):
		return errs.Errorf(errs.OutOfRange, "the file system does not support a file of this size: %w", err)
	case errors.Is(err, unix.EROFS):
		return errs.Errorf(errs.Precondition, "pool %s has become read-only: %w", e.pool.path, err)
	case errors.Is(err, unix.EIO):
		return errs.Errorf(errs.Unavailable, "the disk of pool %s returns I/O errors; check the kernel log: %w", e.pool.path, err)
	case kind == errs.Internal:
		if lost := e.pool.checkPresent(); lost != nil {
			return fmt.Errorf("%w: %w", lost, err)
		}
		return poolfile.ExplainFull(e.pool.path, err)
	}
	return err
}

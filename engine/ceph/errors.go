package ceph

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/cleatproject/cleat/errs"
)

// plain replaces an error of librados or librbd by its number, which prints as
// text and which callers compare with errors.Is.
func plain(err error) error {
	if e, ok := errors.AsType[interface {
		error
		ErrorCode() int // negative
	}](err); ok && e.ErrorCode() < 0 {
		return syscall.Errno(-e.ErrorCode())
	}
	return err
}

// is reports whether the number of an error is one of those given.
func is(err error, numbers ...syscall.Errno) bool {
	err = plain(err)
	for _, n := range numbers {
		if errors.Is(err, n) {
			return true
		}
	}
	return false
}

// explain gives an error of the cluster its kind, and says what to do.
func explain(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	kind, advice := errs.Kind(""), ""
	err = plain(err)
	number, ok := errors.AsType[syscall.Errno](err)
	if _, hasKind := errors.AsType[errs.Kind](err); !ok || hasKind {
		return fmt.Errorf("%s: %w", what, err)
	}
	switch number {
	case syscall.ETIMEDOUT, syscall.ENOTCONN, syscall.EAGAIN:
		kind, advice = errs.Unavailable, "the Ceph cluster does not answer; check its monitors and OSDs"
	case syscall.ESHUTDOWN:
		kind, advice = errs.Unavailable, "this client is on the blocklist of the Ceph cluster: its node is fenced, or a later controller has started; run one controller, and restart it when its node is no longer fenced"
	case syscall.ENOSPC, syscall.EDQUOT:
		kind, advice = errs.Exhausted, "the pool or its quota is full; delete volumes, raise the quota or add OSDs"
	case syscall.EACCES, syscall.EPERM:
		kind, advice = errs.Denied, "the Ceph user of the controller lacks a capability; docs/ceph.md has those that it needs"
	case syscall.EROFS:
		kind, advice = errs.Precondition, "the image cannot be changed: it is the copy of a mirrored image that is not promoted, or the source of a migration"
	case syscall.ENOENT:
		return errs.Errorf(errs.NotFound, "%s: %w", what, err)
	default:
		return fmt.Errorf("%s: %w", what, err)
	}
	return errs.Errorf(kind, "%s: %w: %s", what, err, advice)
}

// late is the error of a call whose context ended before the cluster answered.
func late(ctx context.Context, what string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errs.Errorf(errs.Unavailable, "%s: the Ceph cluster did not answer before the deadline; a repeat continues: %w", what, ctx.Err())
	}
	return fmt.Errorf("%s: %w", what, ctx.Err())
}

package ceph

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// explain gives an error of the cluster its kind, and says what to do.
func explain(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	if _, ok := errors.AsType[errno](err); !ok {
		return fmt.Errorf("%s: %w", what, err)
	}
	switch {
	case hasCode(err, int(unix.ETIMEDOUT), int(unix.ENOTCONN), int(unix.EAGAIN)):
		return errs.Errorf(errs.Unavailable, "%s: the Ceph cluster did not answer in time; check its monitors and OSDs: %w", what, err)
	case hasCode(err, int(unix.ESHUTDOWN)):
		return errs.Errorf(errs.Unavailable, "%s: this client is on the blocklist of the Ceph cluster; restart the controller once its node is no longer fenced: %w", what, err)
	case hasCode(err, int(unix.ENOSPC), int(unix.EDQUOT)):
		return errs.Errorf(errs.Exhausted, "%s: the pool or its quota is full; delete volumes, raise the quota, or add OSDs: %w", what, err)
	case hasCode(err, int(unix.EACCES), int(unix.EPERM)):
		return errs.Errorf(errs.Denied, "%s: the Ceph user is not allowed to; its capabilities must include profile rbd for mon, and profile rbd with the pool for osd and mgr: %w", what, err)
	case hasCode(err, int(unix.ENOENT)):
		return errs.Errorf(errs.NotFound, "%s: %w", what, err)
	case hasCode(err, int(unix.EBUSY)):
		return errs.Errorf(errs.Precondition, "%s: the image is open elsewhere: %w", what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// late is the error of a call whose context ended before the cluster answered.
func late(ctx context.Context, what string) error {
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return errs.Errorf(errs.Unavailable, "%s: no answer of the Ceph cluster before the deadline; a repeat continues the work: %w", what, ctx.Err())
	}
	return fmt.Errorf("%s: %w", what, ctx.Err())
}

package errs_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/errs"
)

func TestCodes(t *testing.T) {
	for _, c := range []struct {
		err  error
		want codes.Code
	}{
		{nil, codes.OK},
		{errs.Invalid, codes.InvalidArgument},
		{errs.NotFound, codes.NotFound},
		{errs.Exists, codes.AlreadyExists},
		{errs.OutOfRange, codes.OutOfRange},
		{errs.Exhausted, codes.ResourceExhausted},
		{errs.Precondition, codes.FailedPrecondition},
		{errs.Busy, codes.Aborted},
		{errs.BadToken, codes.Aborted},
		{errs.Unsupported, codes.Unimplemented},
		{errs.Denied, codes.PermissionDenied},
		{errs.Unauthenticated, codes.Unauthenticated},
		{errs.Unavailable, codes.Unavailable},
		{errs.Internal, codes.Internal},
		{errs.Kind("of tomorrow"), codes.Internal},
		{errors.New("plain"), codes.Internal},
		{fmt.Errorf("while waiting: %w", context.DeadlineExceeded), codes.DeadlineExceeded},
		{fmt.Errorf("while waiting: %w", context.Canceled), codes.Canceled},
		{errs.Errorf(errs.Busy, "interrupted: %w", context.Canceled), codes.Aborted},
		{fmt.Errorf("outside: %w", errs.Errorf(errs.NotFound, "inside")), codes.NotFound},
		{fmt.Errorf("from grpc: %w", status.Error(codes.Unimplemented, "x")), codes.Unimplemented},
		{errs.Errorf(errs.Unavailable, "peer: %w", status.Error(codes.PermissionDenied, "x")), codes.Unavailable},
		{fmt.Errorf("store: %w", syscall.ENOSPC), codes.ResourceExhausted},
		{fmt.Errorf("store: %w", syscall.EDQUOT), codes.ResourceExhausted},
		{fmt.Errorf("store: %w", syscall.EIO), codes.Internal},
	} {
		if got := errs.Code(c.err); got != c.want {
			t.Errorf("%v: got %v, want %v", c.err, got, c.want)
		}
	}
}

package service

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/dpu/plugin"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
)

// Code is the one table that turns errors of a Server into the codes of the
// contract. It has one code for all that cannot be done, bad input included.
func Code(err error) codes.Code {
	switch {
	case err == nil:
		return codes.OK
	case errors.Is(err, plugin.ErrAbsent):
		return codes.NotFound
	case errors.Is(err, plugin.ErrUnserved):
		return codes.Unimplemented
	case errors.Is(err, request.ErrToken):
		return codes.Aborted
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	}
	return codes.FailedPrecondition
}

// only leaves of an error what its call may tell apart: one particular answer,
// or none, and that the caller is gone. All else is a failure as any other: a
// device that is missing below DeleteDevice, a deadline of the plugin's own.
func only(ctx context.Context, particular, err error) error {
	if err == nil || particular != nil && errors.Is(err, particular) {
		return err
	}
	if gone := ctx.Err(); gone != nil && errors.Is(err, gone) {
		return fmt.Errorf("%v: the caller is gone (%w)", err, gone)
	}
	return errs.Errorf(errs.Precondition, "%v", err)
}

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

// Code maps errors to the contract's codes: FAILED_PRECONDITION for all other
// failures, including bad input.
func Code(err error) codes.Code {
	switch {
	case err == nil:
		return codes.OK
	case errors.Is(err, plugin.ErrNotFound):
		return codes.NotFound
	case errors.Is(err, plugin.ErrUnsupported):
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

// only converts an error to FAILED_PRECONDITION, unless it is particular, the
// special error of the call, or the caller has cancelled. An ErrNotFound below
// DeleteDevice, or a deadline of the plugin, must not reach Code unconverted.
func only(ctx context.Context, particular, err error) error {
	if err == nil || particular != nil && errors.Is(err, particular) {
		return err
	}
	if gone := ctx.Err(); gone != nil && errors.Is(err, gone) {
		return fmt.Errorf("%v: call ended by the caller (%w)", err, gone)
	}
	return errs.Errorf(errs.Precondition, "%v", err)
}

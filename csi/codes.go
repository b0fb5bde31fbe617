// Package csi is the Container Storage Interface 1.13 as this plugin speaks
// it: which error is which code, what is announced to an orchestrator, and the
// Identity service. The other services are rooms below it.
package csi

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/volume"
)

// Code is the one table that turns errors into CSI's codes.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	if s, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok {
		return s.GRPCStatus().Code()
	}
	switch volume.KindOf(err) {
	case volume.Invalid:
		return codes.InvalidArgument
	case volume.NotFound:
		return codes.NotFound
	case volume.Exists:
		return codes.AlreadyExists
	case volume.OutOfRange:
		return codes.OutOfRange
	case volume.Exhausted:
		return codes.ResourceExhausted
	case volume.Precondition:
		return codes.FailedPrecondition
	case volume.Busy, volume.BadToken:
		return codes.Aborted
	case volume.Unsupported:
		return codes.Unimplemented
	case volume.Denied:
		return codes.PermissionDenied
	case volume.Unauthenticated:
		return codes.Unauthenticated
	case volume.Unavailable:
		return codes.Unavailable
	}
	// The end of the caller's context has no kind of its own.
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	}
	return codes.Internal
}

// Refused gives an error for want of room another kind; other errors stay as
// they are. Orchestrators take RESOURCE_EXHAUSTED to mean that the work may be
// under way still: they repeat what they asked for, whatever their user has
// asked for instead since. A volume that exists would never get less than the
// size, or another thing than the parameters, that it cannot have.
func Refused(err error, kind volume.Kind) error {
	if err == nil || volume.KindOf(err) != volume.Exhausted {
		return err
	}
	return volume.Errorf(kind, "%w", err)
}

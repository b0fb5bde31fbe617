package errs

import (
	"context"
	"errors"
	"syscall"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Code maps an error to the gRPC code of CSI and CSI-Addons: by its kind, else
// by the gRPC status in its chain, else DEADLINE_EXCEEDED or CANCELED for
// context errors, RESOURCE_EXHAUSTED for a full disk, and INTERNAL.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	kind, hasKind := kindOf(err)
	switch kind {
	case Invalid:
		return codes.InvalidArgument
	case NotFound:
		return codes.NotFound
	case Exists:
		return codes.AlreadyExists
	case OutOfRange:
		return codes.OutOfRange
	case Exhausted:
		return codes.ResourceExhausted
	case Precondition:
		return codes.FailedPrecondition
	case Busy, BadToken:
		return codes.Aborted
	case Unsupported:
		return codes.Unimplemented
	case Denied:
		return codes.PermissionDenied
	case Unauthenticated:
		return codes.Unauthenticated
	case Unavailable:
		return codes.Unavailable
	}
	if s, ok := errors.AsType[interface {
		error
		GRPCStatus() *status.Status
	}](err); ok && !hasKind {
		return s.GRPCStatus().Code()
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return codes.ResourceExhausted
	}
	return codes.Internal
}

// Package errs has the error kinds of all contracts, their gRPC codes, and the
// quoting of untrusted strings.
package errs

import (
	"errors"
	"fmt"
)

// Kind classifies errors by what the caller can do. A Kind is itself an error:
// errors.Is(err, errs.NotFound). Each contract maps kinds to its codes.
type Kind string

func (k Kind) Error() string { return string(k) }

const (
	// Invalid: the request can never succeed unchanged; nothing was done.
	Invalid Kind = "invalid request"
	// NotFound: an object of the request does not exist.
	NotFound Kind = "not found"
	// Exists: an object with that name exists and does not match the request.
	Exists Kind = "already exists"
	// OutOfRange: an unsupported size or offset.
	OutOfRange Kind = "out of range"
	// Exhausted: no space, or no capacity that matches the topology.
	Exhausted Kind = "exhausted"
	// Precondition: the current state forbids the request; the message says
	// what to change.
	Precondition Kind = "precondition failed"
	// Busy: another operation on the object is in progress; retry.
	Busy Kind = "busy"
	// Unsupported: this backend or deployment does not support the request.
	Unsupported Kind = "unsupported"
	// Denied: the caller has no permission.
	Denied Kind = "permission denied"
	// Unauthenticated: credentials are missing or wrong.
	Unauthenticated Kind = "unauthenticated"
	// BadToken: a continuation token that this server did not issue.
	BadToken Kind = "bad token"
	// Unavailable: a peer or the storage does not respond; retry.
	Unavailable Kind = "unavailable"
	// Internal: a failure of this program or of the kernel.
	Internal Kind = "internal"
)

type kindError struct {
	kind Kind
	err  error
}

func (e *kindError) Error() string { return e.err.Error() }

func (e *kindError) Unwrap() []error { return []error{e.kind, e.err} }

// Errorf returns an error of a kind; %w wraps a cause as in fmt.Errorf.
func Errorf(kind Kind, format string, args ...any) error {
	return &kindError{kind: kind, err: fmt.Errorf(format, args...)}
}

// KindOf returns the outermost kind of an error, or Internal.
func KindOf(err error) Kind {
	if kind, ok := kindOf(err); ok {
		return kind
	}
	return Internal
}

func kindOf(err error) (Kind, bool) {
	if e, ok := errors.AsType[*kindError](err); ok {
		return e.kind, true
	}
	return errors.AsType[Kind](err)
}

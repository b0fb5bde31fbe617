// Package errs has the kinds of errors that every contract knows, their gRPC
// codes, and the quoting of untrusted strings in messages.
package errs

import (
	"errors"
	"fmt"
)

// Kind sorts errors by what the caller can do about them. A Kind is itself an
// error, so errors.Is(err, errs.NotFound) asks for it. One table per
// contract turns kinds into that contract's codes.
type Kind string

func (k Kind) Error() string { return string(k) }

const (
	// Invalid: the request can never succeed as it stands; nothing was done.
	Invalid Kind = "invalid request"
	// NotFound: an object that the request names does not exist.
	NotFound Kind = "not found"
	// Exists: an object of that name exists and differs from the request.
	Exists Kind = "already exists"
	// OutOfRange: a size or an offset that cannot be had.
	OutOfRange Kind = "out of range"
	// Exhausted: no room, or no place that fits the topology.
	Exhausted Kind = "exhausted"
	// Precondition: the state forbids it now; the message says what to change.
	Precondition Kind = "precondition failed"
	// Busy: another operation runs on the object; try again.
	Busy Kind = "busy"
	// Unsupported: this backend or deployment cannot do it at all.
	Unsupported Kind = "unsupported"
	// Denied: the caller may not.
	Denied Kind = "permission denied"
	// Unauthenticated: credentials are missing or wrong.
	Unauthenticated Kind = "unauthenticated"
	// BadToken: a continuation token that this server never gave out.
	BadToken Kind = "bad token"
	// Unavailable: a peer or the storage does not answer now.
	Unavailable Kind = "unavailable"
	// Internal: a fault of this program or of the kernel under it.
	Internal Kind = "internal"
)

type kindError struct {
	kind Kind
	err  error
}

func (e *kindError) Error() string { return e.err.Error() }

func (e *kindError) Unwrap() []error { return []error{e.kind, e.err} }

// Errorf makes an error of a kind; %w wraps a cause as in fmt.Errorf.
func Errorf(kind Kind, format string, args ...any) error {
	return &kindError{kind: kind, err: fmt.Errorf(format, args...)}
}

// KindOf returns the outermost kind of an error, Internal when it has none.
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

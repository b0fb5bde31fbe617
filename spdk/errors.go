package spdk

import (
	"fmt"

	"github.com/cleatproject/cleat/errs"
)

// Error is an error response of a process.
type Error struct {
	Method  string
	Code    int    // JSON-RPC code below -32000, else a negative errno
	Status  string // of SNAP 5, which has no codes
	Message string // with secrets redacted
	means   []Meaning
}

func (e *Error) Error() string {
	if e.Status != "" {
		return fmt.Sprintf("%s: %s (%s)", e.Method, e.Message, e.Status)
	}
	return fmt.Sprintf("%s: %s (code %d)", e.Method, e.Message, e.Code)
}

// Unwrap returns the meanings of the error and, last, its kind, for errors.Is
// and errs.KindOf.
func (e *Error) Unwrap() []error {
	means := e.means
	if means == nil {
		means = meanings(e.Method, e.Code, e.Message)
	}
	all := make([]error, 0, len(means)+1)
	kind := errs.Internal
	for i, m := range means {
		all = append(all, m)
		if i == 0 {
			kind = m.kind()
		}
	}
	return append(all, kind)
}

// Meaning classifies error responses, whose codes are ambiguous: errors.Is(err,
// spdk.NotFound).
type Meaning string

func (m Meaning) Error() string { return string(m) }

const (
	// NotFound: the object of the call does not exist.
	NotFound Meaning = "not found"
	// Exists: the object exists, possibly with other properties.
	Exists Meaning = "exists"
	// SamePath comes with Exists: a controller of that name has that path, to
	// any subsystem.
	SamePath Meaning = "a controller of that name has that path"
	// OtherName comes with Exists: the subsystem is attached under another name.
	OtherName Meaning = "the subsystem is attached under another name"
	// NoPath comes with NotFound: the controller exists, but not the path.
	NoPath Meaning = "the controller has no such path"
	// NoFile: a file or directory of the call does not exist.
	NoFile Meaning = "no such file or directory"
	// NoKey: the keyring has no key of that name.
	NoKey Meaning = "no such key"
	// NoTransport: this process does not have the transport.
	NoTransport Meaning = "no such transport"
	// Unreachable: the target does not respond, lacks the subsystem, or refuses
	// this host. The process does not distinguish these.
	Unreachable Meaning = "unreachable"
	// TimedOut: in the process.
	TimedOut Meaning = "timed out"
	// UnknownMethod: this release does not have the method.
	UnknownMethod Meaning = "unknown method"
	// BadParams: a parameter is unknown to this release, missing or wrong.
	BadParams Meaning = "bad parameters"
	// WrongState: not allowed in the current state of the process.
	WrongState Meaning = "wrong state"
	// NotReady comes with WrongState: the process is initialising.
	NotReady Meaning = "not initialised"
	// Denied: the process has no permission.
	Denied Meaning = "denied"
	// NoSpace: storage or memory is exhausted.
	NoSpace Meaning = "no space"
	// TooMany: the subsystem has more namespaces than the call allows.
	TooMany Meaning = "too many"
	// Busy: the object is in use, or another operation is in progress.
	Busy Meaning = "busy"
	// Unsupported: this process does not support the operation.
	Unsupported Meaning = "unsupported"
)

// Unanswered: no response arrived to a request that was or might have been
// sent. It might have been or might still be executed, so check the state
// before a retry.
const Unanswered Meaning = "the process did not respond"

func (m Meaning) kind() errs.Kind {
	switch m {
	case NotFound:
		return errs.NotFound
	case Exists:
		return errs.Exists
	case BadParams:
		return errs.Invalid
	case UnknownMethod, NoTransport, Unsupported:
		return errs.Unsupported
	case Unreachable, TimedOut, NotReady, Unanswered:
		return errs.Unavailable
	case NoFile, NoKey, WrongState:
		return errs.Precondition
	case Denied:
		return errs.Denied
	case NoSpace, TooMany:
		return errs.Exhausted
	case Busy:
		return errs.Busy
	}
	return errs.Internal
}

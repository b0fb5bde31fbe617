package spdk

import (
	"fmt"

	"github.com/cleatproject/cleat/errs"
)

// Error is a process's refusal of a call, as it was worded.
type Error struct {
	Method  string
	Code    int    // JSON-RPC's own below -32000, else an errno with a minus
	Status  string // of SNAP 5, which has no codes; else empty
	Message string // without the secrets of the call
	means   []Meaning
}

func (e *Error) Error() string {
	if e.Status != "" {
		return fmt.Sprintf("%s: %s (%s)", e.Method, e.Message, e.Status)
	}
	return fmt.Sprintf("%s: %s (code %d)", e.Method, e.Message, e.Code)
}

// Unwrap returns what the refusal means and, last, the kind of package volume,
// so that errors.Is and errs.KindOf know.
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

// Meaning is what an error of the process says, which codes alone do not:
// errors.Is(err, spdk.NotFound) asks for it.
type Meaning string

func (m Meaning) Error() string { return string(m) }

const (
	// NotFound: what the call names is not there.
	NotFound Meaning = "not found"
	// Exists: what the call would make is there already, with the same
	// properties or others.
	Exists Meaning = "exists"
	// SamePath comes with Exists: a controller of that name has that path, to
	// whatever subsystem.
	SamePath Meaning = "a controller of that name has that path"
	// OtherName comes with Exists: the subsystem is attached under another name.
	OtherName Meaning = "the subsystem is attached under another name"
	// NoPath comes with NotFound: the controller is there, the path is not.
	NoPath Meaning = "the controller has no such path"
	// NoFile: a file or directory that the call names is not there.
	NoFile Meaning = "no such file or directory"
	// NoKey: the keyring of the process has no key of that name.
	NoKey Meaning = "no such key"
	// NoTransport: this process has no such transport.
	NoTransport Meaning = "no such transport"
	// Unreachable: the target does not answer, or has no such subsystem, or
	// does not admit this host. The process does not tell which.
	Unreachable Meaning = "unreachable"
	// TimedOut: the process gave up waiting.
	TimedOut Meaning = "timed out"
	// UnknownMethod: this release has no such method.
	UnknownMethod Meaning = "unknown method"
	// BadParams: a parameter is unknown to this release, missing or wrong.
	BadParams Meaning = "bad parameters"
	// WrongState: not in the state that the process is in.
	WrongState Meaning = "wrong state"
	// NotReady comes with WrongState: the process still initialises.
	NotReady Meaning = "not initialised"
	// Denied: the process may not.
	Denied Meaning = "denied"
	// NoSpace: storage or memory is used up.
	NoSpace Meaning = "no space"
	// TooMany: more namespaces than the call allows.
	TooMany Meaning = "too many"
	// Busy: in use, or something else is going on with it.
	Busy Meaning = "busy"
	// Unsupported: this process cannot do that at all.
	Unsupported Meaning = "unsupported"
)

// Unanswered is of no process: the request was sent, or may have been, and no
// answer came. It may have been carried out, or may yet be, so look at the
// state before it is sent again.
const Unanswered Meaning = "the process did not answer"

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

package ceph

import (
	"errors"

	"github.com/cleatproject/cleat/errs"
)

// Watcher is a client that has an image open for writing.
type Watcher struct {
	Addr string // as "10.0.0.1:0/123": address and nonce of the client instance
	ID   uint64 // of the client
}

// ErrChanged is returned by WriteState if the state has another generation.
var ErrChanged = errs.Errorf(errs.Busy, "the recorded state was changed by another controller")

// stateObject holds the state of the controller: its omap has the entries, its
// data the generation.
const stateObject = "cleat-state"

// errno is implemented by errors of librados and librbd: negative numbers.
type errno interface {
	error
	ErrorCode() int
}

func hasCode(err error, codes ...int) bool {
	e, ok := errors.AsType[errno](err)
	if !ok {
		return false
	}
	for _, c := range codes {
		if e.ErrorCode() == -c {
			return true
		}
	}
	return false
}

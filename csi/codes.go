// Package csi is the Container Storage Interface 1.13 as this plugin speaks
// it: which error is which code, what is announced to an orchestrator, and the
// Identity service. The other services are rooms below it.
package csi

import (
	"github.com/cleatproject/cleat/errs"
)

// Refused replaces errs.Exhausted by another kind for calls on existing volumes;
// other errors are returned as they are. Sidecars treat RESOURCE_EXHAUSTED as
// "may still be in progress" and repeat the old request for ever, although its
// user asks for a smaller size or other parameters by now.
func Refused(err error, kind errs.Kind) error {
	if err == nil || errs.KindOf(err) != errs.Exhausted {
		return err
	}
	return errs.Errorf(kind, "%w", err)
}

package testkit

import (
	"errors"
	"strings"

	"github.com/cleatproject/cleat/errs"
)

// WantError reports an error of the test unless err matches want and contains
// the words: nil matches any error, an errs.Kind the errors of that kind, any
// other error what errors.Is finds. what names the call. The test goes on.
func WantError(t interface {
	Helper()
	Errorf(format string, args ...any)
}, what string, err, want error, words ...string) {
	t.Helper()
	kind, isKind := want.(errs.Kind)
	switch {
	case err == nil:
		t.Errorf("%s: no error, want one (%v, with %q)", what, want, words)
	case isKind && errs.KindOf(err) != kind:
		t.Errorf("%s: %v of kind %q, want kind %q", what, err, errs.KindOf(err), kind)
	case want != nil && !isKind && !errors.Is(err, want):
		t.Errorf("%s: %v, want %v", what, err, want)
	default:
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%s: %v, want an error with %q", what, err, word)
			}
		}
	}
}

// Err returns the error of a call:
//
//	testkit.WantError(t, "open", testkit.Err(os.Open(path)), os.ErrNotExist)
func Err[V any](_ V, err error) error { return err }

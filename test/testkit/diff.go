package testkit

import "github.com/google/go-cmp/cmp"

// Diff reports an error with the difference if two values differ. It does not
// end the test.
func Diff(t interface {
	Helper()
	Errorf(format string, args ...any)
}, what string, want, got any, options ...cmp.Option) {
	t.Helper()
	if diff := cmp.Diff(want, got, options...); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

package testkit

import (
	"errors"
	"io"
	"os"
	"testing"
)

// T is the part of testing.TB that Must needs; *rapid.T has it too.
type T interface {
	Helper()
	Fatal(args ...any)
}

// Must fails the test if any error is not nil.
func Must(t T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// Value returns the first result of a call whose error must be nil:
//
//	s := testkit.Value(store.Open(ctx, path))(t)
func Value[V any](v V, err error) func(T) V {
	return func(t T) V {
		t.Helper()
		Must(t, err)
		return v
	}
}

// Open is Value for an io.Closer that is closed, without error, when the test
// ends.
func Open[C io.Closer](c C, err error) func(testing.TB) C {
	return func(t testing.TB) C {
		t.Helper()
		Must(t, err)
		t.Cleanup(func() {
			if err := c.Close(); err != nil {
				t.Errorf("close %T: %v", c, err)
			}
		})
		return c
	}
}

// Dir returns a directory that is removed when the test ends. Its path is
// shorter than that of t.TempDir, for UNIX sockets (at most 107 bytes).
func Dir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "t")
	Must(t, err)
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

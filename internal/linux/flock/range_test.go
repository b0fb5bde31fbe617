package flock

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestLockByte(t *testing.T) {
	path := filepath.Join(t.TempDir(), "locks")
	create := func() *os.File {
		f := testkit.Value(os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600))(t)
		t.Cleanup(func() { _ = f.Close() })
		return f
	}
	one, two := create(), create()
	const far = 1<<62 + 1
	testkit.Must(t, LockByte(t.Context(), one, far), LockByte(t.Context(), two, far+1))
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := LockByte(ctx, two, far); !errors.Is(err, ErrHeld) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a held byte: %v", err)
	}
	got := make(chan error, 1)
	go func() { got <- LockByte(t.Context(), two, far) }()
	testkit.Must(t, one.Close(), <-got)
	if err := LockByte(t.Context(), one, 0); err == nil || errors.Is(err, ErrHeld) {
		t.Errorf("a closed file: %v", err)
	}
}

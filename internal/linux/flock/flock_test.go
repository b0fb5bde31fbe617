package flock

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f := testkit.Value(os.Open(path))(t)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestLockOfADirectory(t *testing.T) {
	dir := t.TempDir()
	one, two := open(t, dir), open(t, dir)
	testkit.Must(t, Lock(t.Context(), one))
	testkit.WantError(t, "Try of a held lock", Try(two), ErrHeld)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := Lock(ctx, two); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrHeld) {
		t.Errorf("Lock of a held lock: %v", err)
	}
	got := make(chan error, 1)
	go func() { got <- Lock(t.Context(), two) }()
	testkit.Must(t, Unlock(one))
	if err := <-got; err != nil {
		t.Errorf("after Unlock: %v", err)
	}
	_ = two.Close()
	if err := Try(one); err != nil {
		t.Errorf("after Close: %v", err)
	}
	if err := Lock(t.Context(), two); err == nil || errors.Is(err, ErrHeld) {
		t.Errorf("Lock of a closed file: %v", err)
	}
}

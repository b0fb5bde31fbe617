package flock

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"
)

func open(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func TestLockOfADirectory(t *testing.T) {
	dir := t.TempDir()
	one, two := open(t, dir), open(t, dir)
	if err := Lock(t.Context(), one); err != nil {
		t.Fatal(err)
	}
	if err := Try(two); !errors.Is(err, ErrHeld) {
		t.Errorf("Try of a held lock: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := Lock(ctx, two); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrHeld) {
		t.Errorf("Lock of a held lock: %v", err)
	}
	got := make(chan error, 1)
	go func() { got <- Lock(t.Context(), two) }()
	if err := Unlock(one); err != nil {
		t.Fatal(err)
	}
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

package store

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// What is in use at the new place is never replaced, and a move that was cut short
// is ended. Kills between the steps are in test/dpu.
func TestMove(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	o := Options{Role: "test", Version: 1, Preallocate: 1 << 20}
	create := func(path string) {
		t.Helper()
		s, err := Open(t.Context(), path, o)
		if err == nil {
			err = s.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	move := func(want bool) {
		t.Helper()
		if moved, err := Move(t.Context(), from, to, o); moved != want || err != nil {
			t.Errorf("moved %v, %v, want %v", moved, err, want)
		}
	}
	left := func(path string, want bool) {
		t.Helper()
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) == want {
			t.Errorf("%s: %v, want it there: %v", path, err, want)
		}
	}
	move(false)
	create(from)
	move(true)
	left(from, false)
	create(to)
	move(false)
	left(to, true)

	// Cut short after the copy: both are the same.
	data, err := os.ReadFile(to)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(from, data, 0o600); err != nil {
		t.Fatal(err)
	}
	move(true)
	left(from, false)

	// Both are in use.
	if err := os.WriteFile(from, append(data, make([]byte, 4096)...), 0o600); err != nil {
		t.Fatal(err)
	}
	move(false)
	left(from, true)

	// Somebody has it open, or it is another role's.
	if err := os.Remove(to); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), from, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Move(t.Context(), from, to, o); !errors.Is(err, ErrHeld) {
		t.Errorf("%v, want ErrHeld", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := Move(t.Context(), from, to, Options{Role: "another", Version: 1}); !errors.Is(err, ErrRole) {
		t.Errorf("%v, want ErrRole", err)
	}
	left(to, false)
}

package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/test/vm/image"
)

// seatCount is how many guests run on one machine at a time, of all tests
// together: each needs most of a core.
const seatCount = 2

// Seats are leave to run guests. Each is a locked file which QEMU inherits, so
// a seat is taken for exactly as long as something uses it.
type Seats struct {
	mu   sync.Mutex
	free []*os.File
}

// Reserve waits for leave to run n guests at once. A test that boots a second
// guest while its first one runs must reserve two, or it and another such test
// could wait for each other.
func Reserve(t testing.TB, n int) *Seats {
	t.Helper()
	dir, err := image.DefaultDir()
	if err != nil {
		t.Fatal(err)
	}
	seats, err := reserve(t.Context(), dir, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(seats.close)
	return seats
}

// reserve takes n seats. Whoever waits for seats holds the door, so that
// nobody takes one of several that another waits for.
func reserve(ctx context.Context, dir string, n int) (*Seats, error) {
	if n < 1 || n > seatCount {
		return nil, fmt.Errorf("%d guests at once; this machine runs 1 to %d", n, seatCount)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	door, err := openLock(filepath.Join(dir, "seats"))
	if err != nil {
		return nil, err
	}
	defer door.Close()
	if err := flock.Lock(ctx, door); err != nil {
		return nil, fmt.Errorf("wait for a seat to run a guest: %w", err)
	}
	s := &Seats{}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if err := s.fill(dir, n); err != nil {
			s.close()
			return nil, err
		}
		if len(s.free) == n {
			return s, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			s.close()
			return nil, fmt.Errorf("wait for a seat to run a guest: %w", ctx.Err())
		}
	}
}

// fill takes what is free of the seats, up to n.
func (s *Seats) fill(dir string, n int) error {
	for i := 0; i < seatCount && len(s.free) < n; i++ {
		f, err := openLock(filepath.Join(dir, fmt.Sprintf("seat-%d", i)))
		if err != nil {
			return err
		}
		switch err := flock.Try(f); {
		case errors.Is(err, flock.ErrHeld):
			f.Close()
		case err != nil:
			f.Close()
			return err
		default:
			s.free = append(s.free, f)
		}
	}
	return nil
}

func openLock(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
}

// take hands one of the seats to a guest, which gives it back or closes it.
func (s *Seats) take() (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 {
		return nil, errors.New("all reserved seats are taken: reserve one for each guest that runs at a time")
	}
	f := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return f, nil
}

// give takes a seat back from a guest that has ended.
func (s *Seats) give(f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, f)
}

func (s *Seats) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.free {
		f.Close()
	}
	s.free = nil
}

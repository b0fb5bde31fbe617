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

// seatCount is how many guests run at the same time on one machine, over all
// tests: each needs most of a core.
const seatCount = 2

// Seats are permits to run guests. Each is a locked file that QEMU inherits, so
// the kernel releases it when the last user exits.
type Seats struct {
	mu   sync.Mutex
	free []*os.File
}

// Reserve waits for n slots. A test that boots a second guest while its first
// one runs must reserve both, or two such tests could deadlock.
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

// reserve acquires n slots. Waiters hold the queue lock, so that they cannot
// each hold a part of the slots.
func reserve(ctx context.Context, dir string, n int) (*Seats, error) {
	if n < 1 || n > seatCount {
		return nil, fmt.Errorf("%d guests at once; the range is 1 to %d", n, seatCount)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	queue, err := openLock(filepath.Join(dir, "slots"))
	if err != nil {
		return nil, err
	}
	defer queue.Close()
	if err := flock.Lock(ctx, queue); err != nil {
		return nil, fmt.Errorf("wait for the guest slot queue: %w", err)
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
			return nil, fmt.Errorf("wait for a guest slot: %w", ctx.Err())
		}
	}
}

// fill acquires free slots, up to n in total.
func (s *Seats) fill(dir string, n int) error {
	for i := 0; i < seatCount && len(s.free) < n; i++ {
		f, err := openLock(filepath.Join(dir, fmt.Sprintf("slot-%d", i)))
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

// take removes one of the reserved slots; the caller returns it with give or
// closes it.
func (s *Seats) take() (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 {
		return nil, errors.New("all reserved slots are in use; reserve one for each concurrent guest")
	}
	f := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return f, nil
}

// give returns the slot of a guest that has ended.
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

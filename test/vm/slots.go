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

// slotCount is how many guests run at the same time on one machine, over all
// tests: each needs most of a core.
const slotCount = 2

// Slots are permits to run guests. Each is a locked file that QEMU inherits, so
// the kernel releases it when the last user exits.
type Slots struct {
	mu   sync.Mutex
	free []*os.File
}

// ReserveSlots waits for n slots. A test that boots a second guest while its first
// one runs must reserve both, or two such tests could deadlock.
func ReserveSlots(t testing.TB, n int) *Slots {
	t.Helper()
	dir, err := image.DefaultDir()
	if err != nil {
		t.Fatal(err)
	}
	slots, err := reserveSlots(t.Context(), dir, n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(slots.close)
	return slots
}

// reserveSlots acquires n slots. Waiters hold the queue lock, so that they cannot
// each hold a part of the slots.
func reserveSlots(ctx context.Context, dir string, n int) (*Slots, error) {
	if n < 1 || n > slotCount {
		return nil, fmt.Errorf("%d guests at once; the range is 1 to %d", n, slotCount)
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
	s := &Slots{}
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
func (s *Slots) fill(dir string, n int) error {
	for i := 0; i < slotCount && len(s.free) < n; i++ {
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

// take removes one of the reserved slots; the caller returns it with release or
// closes it.
func (s *Slots) take() (*os.File, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free) == 0 {
		return nil, errors.New("all reserved slots are in use; reserve one for each concurrent guest")
	}
	f := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	return f, nil
}

// release returns the slot of a guest that has ended.
func (s *Slots) release(f *os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, f)
}

func (s *Slots) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.free {
		f.Close()
	}
	s.free = nil
}

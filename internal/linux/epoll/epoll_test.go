package epoll

import (
	"context"
	"errors"
	"math"
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is a connection in the set, and its other end.
func pair(t *testing.T, s *Set, token uint64) (ours, theirs net.Conn) {
	t.Helper()
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if ours, err = net.Dial("unix", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if theirs, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	raw, err := ours.(*net.UnixConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if failed := raw.Control(func(fd uintptr) { err = s.Add(int(fd), token) }); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	return ours, theirs
}

func newSet(t *testing.T) *Set {
	t.Helper()
	s, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestWait(t *testing.T) {
	s := newSet(t)
	const high = math.MaxUint64 - 5
	ours, theirs := pair(t, s, high)
	_, quiet := pair(t, s, 1)
	for range 2 { // told until it is read
		if _, err := theirs.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if got, err := s.Wait(t.Context(), nil); err != nil || !slices.Equal(got, []uint64{high}) {
				t.Fatalf("got %v, %v", got, err)
			}
		}
		if _, err := ours.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
	}
	go quiet.Close()
	if got, err := s.Wait(t.Context(), []uint64{7}); err != nil || !slices.Equal(got, []uint64{7, 1}) {
		t.Errorf("hung up: %v, %v", got, err)
	}
}

// A closed descriptor is out of the set, also while it had something to say.
func TestClosedDescriptor(t *testing.T) {
	s := newSet(t)
	ours, theirs := pair(t, s, 1)
	_, later := pair(t, s, 2)
	if _, err := theirs.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	_ = ours.Close()
	go later.Close()
	if got, err := s.Wait(t.Context(), nil); err != nil || !slices.Equal(got, []uint64{2}) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestWaitEnds(t *testing.T) {
	s := newSet(t)
	pair(t, s, 1)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(t.Context())
	go cancel(cause)
	for range 2 {
		if _, err := s.Wait(ctx, nil); !errors.Is(err, cause) {
			t.Errorf("cancelled: %v", err)
		}
	}
	go s.Close()
	if _, err := s.Wait(t.Context(), nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	if err := s.Add(0, 1); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Add after Close: %v", err)
	}
}

func TestAddRefuses(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := newSet(t).Add(int(file.Fd()), 1); err == nil {
		t.Error("a regular file was taken, which is never readable or not")
	}
}

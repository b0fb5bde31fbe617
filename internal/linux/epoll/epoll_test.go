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

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair is a connection in the set, and its other end.
func pair(t *testing.T, s *Set, token uint64) (ours, theirs net.Conn) {
	t.Helper()
	l := testkit.Value(net.Listen("unix", filepath.Join(t.TempDir(), "s")))(t)
	defer l.Close()
	ours = testkit.Value(net.Dial("unix", l.Addr().String()))(t)
	theirs = testkit.Value(l.Accept())(t)
	t.Cleanup(func() { _, _ = ours.Close(), theirs.Close() })
	raw, err := ours.(*net.UnixConn).SyscallConn()
	testkit.Must(t, err)
	if failed := raw.Control(func(fd uintptr) { err = s.Add(int(fd), token) }); failed != nil || err != nil {
		t.Fatal(failed, err)
	}
	return ours, theirs
}

func newSet(t *testing.T) *Set {
	t.Helper()
	s := testkit.Value(New())(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestWait(t *testing.T) {
	s := newSet(t)
	const high = math.MaxUint64 - 5
	ours, theirs := pair(t, s, high)
	_, quiet := pair(t, s, 1)
	for range 2 { // told until it is read
		testkit.Value(theirs.Write([]byte("x")))(t)
		for range 2 {
			if got, err := s.Wait(t.Context(), nil); err != nil || !slices.Equal(got, []uint64{high}) {
				t.Fatalf("got %v, %v", got, err)
			}
		}
		testkit.Value(ours.Read(make([]byte, 10)))(t)
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
	testkit.Value(theirs.Write([]byte("x")))(t)
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
		testkit.WantError(t, "cancelled", testkit.Err(s.Wait(ctx, nil)), cause)
	}
	go s.Close()
	testkit.WantError(t, "closed", testkit.Err(s.Wait(t.Context(), nil)), os.ErrClosed)
	testkit.WantError(t, "Add after Close", s.Add(0, 1), os.ErrClosed)
}

func TestAddRefuses(t *testing.T) {
	file := testkit.Open(os.CreateTemp(t.TempDir(), ""))(t)
	testkit.WantError(t, "a regular file was taken, which is never readable or not", newSet(t).Add(int(file.Fd()), 1), nil)
}

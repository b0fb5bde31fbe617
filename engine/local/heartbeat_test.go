package local

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/volume"
)

func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running sync.WaitGroup
		var writes atomic.Int64
		answer, hang := error(nil), make(chan struct{})
		close(hang)
		h := &heartbeat{write: func() error { writes.Add(1); <-hang; return answer }}
		beat := func(wantSilent bool, want error) {
			t.Helper()
			silent, err := h.beat(t.Context(), &running)
			if silent > 0 != wantSilent || !errors.Is(err, want) {
				t.Errorf("beat = %v, %v; want it silent: %v, error %v", silent, err, wantSilent, want)
			}
		}
		for range 10 {
			beat(false, nil)
		}
		if n := writes.Load(); n != 1 {
			t.Errorf("10 who ask at once make %d writes, want 1", n)
		}
		time.Sleep(beatPause)
		answer = unix.EIO
		beat(false, unix.EIO)
		time.Sleep(beatPause)
		answer = nil
		beat(false, nil)

		time.Sleep(beatPause)
		hang = make(chan struct{})
		beat(false, nil) // it is busy, so far
		time.Sleep(beatBound)
		beat(true, nil)
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if silent, _ := h.beat(gone, &running); silent == 0 {
			t.Error("who does not wait hears nothing of a silent disk")
		}
		if n := writes.Load(); n != 4 {
			t.Errorf("%d writes, want 4: none beside one that hangs", n)
		}
		close(hang)
		running.Wait()
		beat(false, nil)
	})
}

// A pool that takes no writes is not to be used, whatever its mount says.
func TestFailureOfThePool(t *testing.T) {
	e := open(t, Config{Pool: t.TempDir()})
	for _, c := range []struct {
		answer error
		reason string
	}{{nil, ""}, {unix.EIO, reasonPoolFailed}, {unix.EROFS, reasonPoolFailed}, {unix.ENOSPC, ""}} {
		e.heart = heartbeat{write: func() error { return c.answer }}
		all, err := e.StorageHealth(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case c.reason == "" && len(all) > 0:
			t.Errorf("%v: %v", c.answer, all)
		case c.reason != "" && (len(all) != 1 || all[0].Reason != c.reason || all[0].Severity != volume.Inaccessible):
			t.Errorf("%v: %v, want %s", c.answer, all, c.reason)
		}
	}
}

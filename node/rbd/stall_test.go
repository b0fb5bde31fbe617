package rbd

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/krbd"
	"github.com/cleatproject/cleat/volume/access"
)

// Requests in flight are reported once none of them completed for a while.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := New(Config{Driver: "d", Dir: t.TempDir()})
		busy := krbd.Device{Path: "/dev/rbd0", Instance: "192.0.2.1:0/1", InFlight: 2, Completed: 10}
		want := func(what string, d krbd.Device, waits bool) {
			t.Helper()
			if err := a.waiting(access.RBD{}, []krbd.Device{d}); errors.Is(err, errs.Unavailable) != waits {
				t.Errorf("%s: %v, want an error: %t", what, err, waits)
			}
		}
		want("at first", busy, false)
		time.Sleep(30 * time.Second)
		want("without progress", busy, true)
		progress := busy
		progress.Completed++
		want("after progress", progress, false)
		time.Sleep(15 * time.Second)
		want("soon after", progress, false)
		idle := progress
		idle.InFlight = 0
		want("idle", idle, false)
		time.Sleep(time.Minute)
		want("busy again", progress, false)
	})
}

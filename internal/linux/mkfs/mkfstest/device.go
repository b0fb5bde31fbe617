package mkfstest

import (
	"context"
	"os"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/loop"
)

// Device is an attached loop device that is not mounted.
type Device struct {
	loop.Device
	held *os.File
}

// Attach attaches a file until Detach or the end of the test.
func Attach(t testing.TB, path string) *Device {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, held, err := loop.Attach(t.Context(), loop.Config{File: f, AutoClear: true})
	if err != nil {
		t.Fatal(err)
	}
	v := &Device{Device: d, held: held}
	t.Cleanup(func() { v.Detach(t) })
	return v
}

// Detach detaches the device. It is idempotent.
func (d *Device) Detach(t testing.TB) {
	t.Helper()
	if d.held == nil {
		return
	}
	d.held.Close()
	d.held = nil
	if err := loop.Detach(context.Background(), d.Device); err != nil {
		t.Errorf("detach: %v", err)
	}
}

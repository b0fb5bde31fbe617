package deviceop_test

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/deviceop"
	"github.com/cleatproject/cleat/test/testkit"
)

// The message of a busy object has its name as it is: an NQN has colons and
// dashes.
func TestBusyNamesTheObject(t *testing.T) {
	const nqn = "nqn.2020-04.io.spdk.csi:uuid:6b1c934f-4a27-4861-b861-2ec4709ad358"
	o := deviceop.New(deviceop.Config{Object: "subsystem", Storage: "NVMe target", Lock: filepath.Join(t.TempDir(), "lock"), Timeout: time.Minute})
	begun, end, first := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	do := func(what string, fn func(context.Context) (int, error)) error {
		return testkit.Err(deviceop.Do(t.Context(), o, nqn, what, "", fn))
	}
	go func() {
		first <- do("detach", func(context.Context) (int, error) { close(begun); <-end; return 0, nil })
	}()
	<-begun
	err := do("attach", func(context.Context) (int, error) { t.Error("attached meanwhile"); return 0, nil })
	testkit.WantError(t, "a second operation", err, errs.Busy, "subsystem "+nqn+" is busy: detach has been in progress")
	testkit.WantError(t, "Waiting", o.Waiting(nqn, 0), errs.Unavailable, "detach of the subsystem "+nqn)
	close(end)
	testkit.Must(t, testkit.Receive(t, "the end of the first operation", first), o.Close(testkit.Context(t)))
}

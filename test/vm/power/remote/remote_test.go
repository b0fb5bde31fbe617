package remote_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/crash/workload/site"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/power/remote"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

// dial serves a site in this process. It returns a client and the guest's end
// of the connection.
func dial(t *testing.T, s site.Site, stops <-chan string) (*remote.Client, net.Conn) {
	t.Helper()
	host, guest := net.Pipe()
	served := make(chan error, 1)
	go func() { served <- remote.Serve(guest, s, stops) }()
	c := remote.NewClient(host)
	t.Cleanup(func() {
		_ = c.Close() // already closed in some tests
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c, guest
}

func TestClientReachesSite(t *testing.T) {
	ctx, dir := t.Context(), t.TempDir()
	c, _ := dial(t, site.Site{Workers: filepath.Join(dir, "workers"), Pool: filepath.Join(dir, "pool")}, nil)
	for _, sub := range []string{"pool/volumes", "pool/snapshots", "pool/incoming", "workers/1"} {
		testkit.Must(t, c.MakeDir(ctx, filepath.Join(dir, sub)))
	}
	at := site.Spot{Target: filepath.Join(dir, "pool/volumes"), Key: "v"}
	testkit.Must(t, c.Write(ctx, at, 1<<63+1, true))
	if err := c.Check(ctx, at, 1<<63+1); err != nil {
		t.Error(err)
	}
	if err := c.Check(ctx, at, 1<<63+2); err == nil || errors.Is(err, remote.ErrGone) {
		t.Errorf("Check of data that was never written: got %v, want an error of the site", err)
	}
	view, err := c.Look(ctx)
	if err != nil || view.Files["volumes/v"].Size != site.BlockSize {
		t.Errorf("Look = %+v, %v; want a file volumes/v of %d bytes", view, err, site.BlockSize)
	}
	if err := c.Remove(ctx, filepath.Join(dir, "workers/1")); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "workers/1")); !os.IsNotExist(err) {
		t.Errorf("the removed directory still exists: %v", err)
	}
}

func TestStopReturnsCrashPoint(t *testing.T) {
	stops := make(chan string, 1)
	c, _ := dial(t, site.Site{}, stops)
	stops <- "create.recorded"
	if point, err := c.Stop(t.Context()); point != "create.recorded" || err != nil {
		t.Errorf("Stop = %q, %v", point, err)
	}
}

// A call that is pending at the power loss must return ErrGone.
func TestPendingCallFailsWithErrGone(t *testing.T) {
	stops := make(chan string)
	defer close(stops)
	c, guest := dial(t, site.Site{}, stops)
	failed := make(chan error, 1)
	go func() {
		_, err := c.Stop(t.Context())
		failed <- err
	}()
	testkit.Must(t, c.MakeDir(t.Context(), t.TempDir())) // Stop might be in flight by now
	guest.Close()
	if err := <-failed; !errors.Is(err, remote.ErrGone) {
		t.Errorf("Stop = %v, want ErrGone", err)
	}
	if err := c.MakeDir(t.Context(), t.TempDir()); !errors.Is(err, remote.ErrGone) {
		t.Errorf("MakeDir after the disconnect = %v, want ErrGone", err)
	}
}

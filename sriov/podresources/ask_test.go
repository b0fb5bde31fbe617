package podresources

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

func TestNobody(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]error{
		filepath.Join(dir, "absent.sock"):  fs.ErrNotExist,
		filepath.Join(dir, "no", "x.sock"): fs.ErrNotExist,
		filepath.Join(file, "x.sock"):      syscall.ENOTDIR,
		dead:                               syscall.ECONNREFUSED,
		file:                               syscall.ECONNREFUSED,
	} {
		c := client(t, path)
		for range 2 { // also while gRPC waits out its pause
			if _, err := c.Held(t.Context()); !errors.Is(err, ErrNobody) || !errors.Is(err, want) {
				t.Errorf("%s: holders: %v", path, err)
			}
			if _, err := c.Offered(t.Context()); !errors.Is(err, ErrNobody) || !errors.Is(err, want) {
				t.Errorf("%s: offered: %v", path, err)
			}
		}
	}
}

// Right after it was seen to be gone, a kubelet that came back is asked again:
// no pause of gRPC's is waited out, and no call fails meanwhile.
func TestRestarts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.sock")
	c := client(t, path)
	for range 10 {
		stop := serve(t, path, listing(pod("ns", "p", "intel.com/a", "1")))
		if got, err := c.Held(t.Context()); len(got) != 1 || err != nil {
			t.Fatalf("%v, %v", got, err)
		}
		stop()
		stop = serve(t, path, listing()) // the client never saw that one was gone
		if got, err := c.Held(t.Context()); len(got) != 0 || err != nil {
			t.Fatalf("after a restart: %v, %v", got, err)
		}
		stop()
		for range 3 {
			if _, err := c.Held(t.Context()); !errors.Is(err, ErrNobody) {
				t.Fatalf("without a kubelet: %v", err)
			}
		}
	}
}

// A kubelet that ends while it is asked is one that is not there.
func TestEndsWhileAsked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.sock")
	asked := make(chan struct{}, 1)
	stop := serve(t, path, &kubelet{list: func(ctx context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
		asked <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	c := client(t, path)
	var wait sync.WaitGroup
	wait.Go(func() {
		if _, err := c.Held(t.Context()); !errors.Is(err, ErrNobody) {
			t.Errorf("%v", err)
		}
	})
	<-asked
	stop()
	wait.Wait()
}

// One that hangs is waited for as long as the client has patience, or the caller.
func TestHangs(t *testing.T) {
	hang := &kubelet{list: func(ctx context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	mute, err := net.Listen("unix", filepath.Join(t.TempDir(), "mute.sock")) // it never says a word
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mute.Close() })
	for name, c := range map[string]*Client{"the call": asking(t, hang), "the connection": client(t, mute.Addr().String())} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := c.Held(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNobody) {
				t.Errorf("the caller's time is over: %v", err)
			}
			c.patience = 100 * time.Millisecond
			if _, err := c.Held(t.Context()); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNobody) {
				t.Errorf("the client's time is over: %v", err)
			}
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(os.ErrClosed)
	if _, err := asking(t, hang).Held(ctx); !errors.Is(err, os.ErrClosed) {
		t.Errorf("the caller gave up: %v", err)
	}
	c := New("")
	if c.patience != patience || c.socket != DefaultSocket {
		t.Errorf("a client has the patience %s and the socket %s", c.patience, c.socket)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestUnsupported(t *testing.T) {
	for name, answer := range map[string]error{
		"too old":          status.Error(codes.Unimplemented, "unknown method"),
		"off":              status.Error(codes.FailedPrecondition, "off"),
		"its feature gate": errors.New("PodResources API GetAllocatableResources disabled"),
	} {
		c := asking(t, &kubelet{offered: func(context.Context) (*podresourcesv1.AllocatableResourcesResponse, error) { return nil, answer }})
		if _, err := c.Offered(t.Context()); !errors.Is(err, ErrUnsupported) || errors.Is(err, ErrNobody) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// What the kubelet answers otherwise is neither; it is asked once.
func TestOtherErrors(t *testing.T) {
	for _, answer := range []error{errors.New("the disabled one is gone"), status.Error(codes.Unavailable, "later"), status.Error(codes.ResourceExhausted, "rejected by rate limit")} {
		asked := 0
		c := asking(t, &kubelet{list: func(context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
			asked++
			return nil, answer
		}})
		_, err := c.Held(t.Context())
		if err == nil || errors.Is(err, ErrUnsupported) || errors.Is(err, ErrNobody) || status.Code(err) != status.Code(answer) || asked != 1 {
			t.Errorf("%v: %v, asked %d times", answer, err, asked)
		}
	}
}

func TestClosed(t *testing.T) {
	c := New(filepath.Join(t.TempDir(), "kubelet.sock"))
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Held(t.Context()); err == nil {
		t.Error("a closed client answers")
	}
}

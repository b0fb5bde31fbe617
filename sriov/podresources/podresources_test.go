package podresources

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type kubelet struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	list    func(context.Context) (*podresourcesv1.ListPodResourcesResponse, error)
	offered func(context.Context) (*podresourcesv1.AllocatableResourcesResponse, error)
}

func (k *kubelet) List(ctx context.Context, r *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	if k.list == nil {
		return k.UnimplementedPodResourcesListerServer.List(ctx, r)
	}
	return k.list(ctx)
}

func (k *kubelet) GetAllocatableResources(ctx context.Context, r *podresourcesv1.AllocatableResourcesRequest) (*podresourcesv1.AllocatableResourcesResponse, error) {
	if k.offered == nil {
		return k.UnimplementedPodResourcesListerServer.GetAllocatableResources(ctx, r)
	}
	return k.offered(ctx)
}

func listing(pods ...*podresourcesv1.PodResources) *kubelet {
	return &kubelet{list: func(context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
		return &podresourcesv1.ListPodResourcesResponse{PodResources: pods}, nil
	}}
}

func pod(namespace, name, resource string, ids ...string) *podresourcesv1.PodResources {
	return &podresourcesv1.PodResources{Namespace: namespace, Name: name,
		Containers: []*podresourcesv1.ContainerResources{{Name: "main", Devices: devices(resource, ids...)}}}
}

func devices(resource string, ids ...string) []*podresourcesv1.ContainerDevices {
	return []*podresourcesv1.ContainerDevices{{ResourceName: resource, DeviceIds: ids}}
}

func serve(t *testing.T, path string, k *kubelet) (stop func()) {
	t.Helper()
	return testkit.Serve(t, path, func(r grpc.ServiceRegistrar) { podresourcesv1.RegisterPodResourcesListerServer(r, k) })
}

func client(t *testing.T, path string) *Client {
	t.Helper()
	c := New(path)
	c.timeout = time.Minute
	t.Cleanup(func() { testkit.Must(t, c.Close()) })
	return c
}

func asking(t *testing.T, k *kubelet) *Client {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubelet.sock")
	serve(t, path, k)
	return client(t, path)
}

// Pods come in any order, and devices once per NUMA node.
func TestHeld(t *testing.T) {
	two := &podresourcesv1.PodResources{Namespace: "b", Name: "p2", Containers: []*podresourcesv1.ContainerResources{
		{Name: "x", Devices: append(devices("intel.com/a", "0000:3b:02.1"), append(devices("intel.com/a", "0000:3b:02.0", "0000:3b:02.1"), devices("nvidia.com/gpu", "GPU-1")...)...)},
		{Name: "none"},
		{Name: "side", Devices: devices("intel.com/a", "0000:3b:02.1")},
	}}
	c := asking(t, listing(two, &podresourcesv1.PodResources{Namespace: "a", Name: "empty"}, pod("a", "p1", "intel.com/b", "mlx5_core.sf.4")))
	got, err := c.Held(t.Context())
	want := []Holder{
		{"intel.com/a", "0000:3b:02.0", "b", "p2", "x"},
		{"intel.com/a", "0000:3b:02.1", "b", "p2", "side"},
		{"intel.com/a", "0000:3b:02.1", "b", "p2", "x"},
		{"intel.com/b", "mlx5_core.sf.4", "a", "p1", "main"},
		{"nvidia.com/gpu", "GPU-1", "b", "p2", "x"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, holders (-want +got):\n%s", err, diff)
	}
}

func TestNoHolders(t *testing.T) {
	c := asking(t, listing())
	if got, err := c.Held(t.Context()); len(got) != 0 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

func TestOwnPodNotListed(t *testing.T) {
	static, own := pod("kube-system", "static", ""), Pod{"a", "own"}
	for name, c := range map[string]struct {
		pods []*podresourcesv1.PodResources
		want error
	}{
		"none":             {nil, ErrStarting},
		"only static pods": {[]*podresourcesv1.PodResources{static}, ErrStarting},
		"namesake":         {[]*podresourcesv1.PodResources{pod("b", "own", "")}, ErrStarting},
		"listed":           {[]*podresourcesv1.PodResources{static, pod("a", "own", "")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			plain := asking(t, listing(c.pods...))
			if _, err := plain.Held(t.Context()); err != nil {
				t.Errorf("a client outside of pods got %v", err)
			}
			inside := NewInPod(plain.socket, own)
			defer inside.Close()
			if got, err := inside.Held(t.Context()); !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
	}
}

func TestOffered(t *testing.T) {
	c := asking(t, &kubelet{offered: func(context.Context) (*podresourcesv1.AllocatableResourcesResponse, error) {
		return &podresourcesv1.AllocatableResourcesResponse{Devices: append(append(append(
			devices("intel.com/a", "2", "0"), devices("intel.com/b", "9")...), devices("intel.com/a", "1", "2")...), devices("intel.com/none")...)}, nil
	}})
	got, err := c.Offered(t.Context())
	if diff := cmp.Diff(map[string][]string{"intel.com/a": {"0", "1", "2"}, "intel.com/b": {"9"}}, got); diff != "" || err != nil {
		t.Errorf("%v, offered (-want +got):\n%s", err, diff)
	}
}

// Above gRPC's default limit, and above the client's.
func TestLargeResponses(t *testing.T) {
	many := func(ids int) *kubelet {
		p := pod("ns", "p", "intel.com/a")
		for i := range ids {
			p.Containers[0].Devices[0].DeviceIds = append(p.Containers[0].Devices[0].DeviceIds, fmt.Sprintf("%060d", i))
		}
		return listing(p)
	}
	if got, err := asking(t, many(200_000)).Held(t.Context()); len(got) != 200_000 || err != nil { // 12.4 MB
		t.Errorf("%d holders, %v", len(got), err)
	}
	c := asking(t, many(280_000)) // 17.4 MB
	if got, err := c.Held(t.Context()); status.Code(err) != codes.ResourceExhausted || got != nil {
		t.Errorf("%d holders, %v", len(got), err)
	}
	if _, err := c.Offered(t.Context()); status.Code(err) != codes.Unimplemented {
		t.Errorf("the next call failed: %v", err)
	}
}

func TestHostileStrings(t *testing.T) {
	words := []string{"", "../../etc/passwd", "a\x00b", "\n\r\t\x1b[2J", "%s%n", strings.Repeat("x", 100_000), "\u202e\ufffd"}
	for _, w := range words {
		got, err := asking(t, listing(pod(w, w, w, w))).Held(t.Context())
		if diff := cmp.Diff([]Holder{{w, w, w, w, "main"}}, got); diff != "" || err != nil {
			t.Errorf("%.20q: %v, holders (-want +got):\n%.300s", w, err, diff)
		}
	}
}

func TestEmptyListElements(t *testing.T) {
	c := asking(t, listing(&podresourcesv1.PodResources{Containers: []*podresourcesv1.ContainerResources{{Devices: []*podresourcesv1.ContainerDevices{{}}}, {}}}))
	if got, err := c.Held(t.Context()); len(got) != 0 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

func TestNoServer(t *testing.T) {
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	l := testkit.Value(net.ListenUnix("unix", &net.UnixAddr{Name: dead}))(t)
	l.SetUnlinkOnClose(false)
	testkit.Must(t, l.Close())
	file := filepath.Join(dir, "file")
	testkit.Must(t, os.WriteFile(file, nil, 0o600))
	for path, want := range map[string]error{
		filepath.Join(dir, "absent.sock"):  fs.ErrNotExist,
		filepath.Join(dir, "no", "x.sock"): fs.ErrNotExist,
		filepath.Join(file, "x.sock"):      syscall.ENOTDIR,
		dead:                               syscall.ECONNREFUSED,
		file:                               syscall.ECONNREFUSED,
	} {
		c := client(t, path)
		for range 2 {
			if _, err := c.Held(t.Context()); !errors.Is(err, ErrNotServed) || !errors.Is(err, want) {
				t.Errorf("%s: holders: %v", path, err)
			}
			if _, err := c.Offered(t.Context()); !errors.Is(err, ErrNotServed) || !errors.Is(err, want) {
				t.Errorf("%s: offered: %v", path, err)
			}
		}
	}
}

func TestKubeletRestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "kubelet.sock")
	c := client(t, path)
	for range 10 {
		stop := serve(t, path, listing(pod("ns", "p", "intel.com/a", "1")))
		if got, err := c.Held(t.Context()); len(got) != 1 || err != nil {
			t.Fatalf("%v, %v", got, err)
		}
		stop()
		stop = serve(t, path, listing())
		if got, err := c.Held(t.Context()); len(got) != 0 || err != nil {
			t.Fatalf("after a restart: %v, %v", got, err)
		}
		stop()
		for range 3 {
			if _, err := c.Held(t.Context()); !errors.Is(err, ErrNotServed) {
				t.Fatalf("without a kubelet: %v", err)
			}
		}
	}
}

func TestKubeletStopsDuringCall(t *testing.T) {
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
		testkit.WantError(t, "Held", testkit.Err(c.Held(t.Context())), ErrNotServed)
	})
	<-asked
	stop()
	wait.Wait()
}

func TestHangingKubelet(t *testing.T) {
	hang := &kubelet{list: func(ctx context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}}
	mute := testkit.Value(net.Listen("unix", filepath.Join(t.TempDir(), "mute.sock")))(t)
	t.Cleanup(func() { _ = mute.Close() })
	for name, c := range map[string]*Client{"the call": asking(t, hang), "the connection": client(t, mute.Addr().String())} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer cancel()
			if _, err := c.Held(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNotServed) {
				t.Errorf("caller's timeout: %v", err)
			}
			c.timeout = 100 * time.Millisecond
			if _, err := c.Held(t.Context()); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ErrNotServed) {
				t.Errorf("client's timeout: %v", err)
			}
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(os.ErrClosed)
	testkit.WantError(t, "canceled by the caller", testkit.Err(asking(t, hang).Held(ctx)), os.ErrClosed)
	c := New("")
	if c.timeout != timeout || c.socket != DefaultSocket {
		t.Errorf("a client has the timeout %s and the socket %s", c.timeout, c.socket)
	}
	testkit.Must(t, c.Close())
}

func TestUnsupported(t *testing.T) {
	for name, answer := range map[string]error{
		"too old":          status.Error(codes.Unimplemented, "unknown method"),
		"off":              status.Error(codes.FailedPrecondition, "off"),
		"its feature gate": errors.New("PodResources API GetAllocatableResources disabled"),
	} {
		c := asking(t, &kubelet{offered: func(context.Context) (*podresourcesv1.AllocatableResourcesResponse, error) { return nil, answer }})
		if _, err := c.Offered(t.Context()); !errors.Is(err, ErrUnsupported) || errors.Is(err, ErrNotServed) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOtherErrors(t *testing.T) {
	for _, answer := range []error{errors.New("the disabled one is gone"), status.Error(codes.Unavailable, "later"), status.Error(codes.ResourceExhausted, "rejected by rate limit")} {
		asked := 0
		c := asking(t, &kubelet{list: func(context.Context) (*podresourcesv1.ListPodResourcesResponse, error) {
			asked++
			return nil, answer
		}})
		_, err := c.Held(t.Context())
		if err == nil || errors.Is(err, ErrUnsupported) || errors.Is(err, ErrNotServed) || status.Code(err) != status.Code(answer) || asked != 1 {
			t.Errorf("%v: %v, asked %d times", answer, err, asked)
		}
	}
}

func TestClosed(t *testing.T) {
	c := New(filepath.Join(t.TempDir(), "kubelet.sock"))
	testkit.Must(t, c.Close())
	testkit.WantError(t, "a closed client succeeded", testkit.Err(c.Held(t.Context())), nil)
}

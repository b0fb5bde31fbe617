package plugin_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/test/testkit"
)

// amnesiac ignores the plugin until a number of registrations.
type amnesiac struct {
	*pods
	number int
	other  []string
}

func (a amnesiac) Offered(ctx context.Context) (map[string][]string, error) {
	if a.kubelet.Registrations(resource) < a.number {
		return map[string][]string{resource: a.other}, nil
	}
	return a.pods.Offered(ctx)
}

func TestReregistersWhenTheKubeletIgnoresTheStream(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.Pods, r.config.Interval = amnesiac{pods: r.pods, number: 3}, 200*time.Millisecond
	r.start()
	r.await("it is registered three times", func() bool { return r.kubelet.Registrations(resource) == 3 })
	r.awaitOffered(2)
	// Except one if the kubelet was slow to read its list.
	audits, last := r.pods.asked.Load(), r.kubelet.Registrations(resource)
	testkit.Eventually(r.t, "it is left in peace", func() bool {
		if n := r.kubelet.Registrations(resource); n != last || r.kubelet.Allocatable(resource) != 2 {
			audits, last = r.pods.asked.Load(), n
		}
		return r.pods.asked.Load() >= audits+10
	})
}

func TestReportsDevicesOfAnotherPlugin(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	r.config.Pods, r.config.Interval = amnesiac{pods: r.pods, number: 2, other: []string{"a", "b"}}, 200*time.Millisecond
	r.start()
	r.awaitOffered(2)
	r.wrong("another device plugin has registered for it")
	r.registered(1)
	r.configure(`{"resourceList": []}`)
	r.wrong("")
}

// newer has the devices of a plugin that registered later, if there is one, as
// kubelets do from 1.37 on until its end or this plugin's next list.
type newer struct {
	*pods
	devices atomic.Pointer[[]string]
}

func (n *newer) Offered(ctx context.Context) (map[string][]string, error) {
	if d := n.devices.Load(); d != nil {
		n.pods.asked.Add(1)
		return map[string][]string{resource: *d}, nil
	}
	return n.pods.Offered(ctx)
}

// The plugin registers again when a call shows that the other plugin has ended,
// and not before.
func TestRegistersAgainAfterAnotherPlugin(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	n := &newer{pods: r.pods}
	r.config.Pods, r.config.Interval = n, 200*time.Millisecond
	r.start()
	r.awaitOffered(2)
	n.devices.Store(&[]string{"a", "b"})
	r.wrong("another device plugin has registered for it")
	asked := r.pods.asked.Load()
	before := r.kubelet.Registrations(resource) // twice if the kubelet was slow to read its list
	testkit.Eventually(t, "some audits", func() bool { return r.pods.asked.Load() >= asked+3 })
	r.registered(before)
	if _, err := r.kubelet.AllocateAny(t.Context(), resource, "a"); err == nil {
		t.Error("no error for a device of the other plugin")
	}
	r.await("it is registered again", func() bool { return r.kubelet.Registrations(resource) == before+1 })
	n.devices.Store(nil)
	r.awaitOffered(2)
	r.wrong("")
}

func TestMovesFromASocketWithAConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	kubelet, socket := r.config.Registrar, filepath.Join(r.config.EndpointDir, plugin.SocketName(resource))
	r.config.Registrar = &registry{register: func(ctx context.Context, g plugin.Registration) error {
		if g.Endpoint == socket {
			return fmt.Errorf("device plugin already connected: %s", g.Endpoint)
		}
		return kubelet.Register(ctx, g)
	}}
	r.start()
	r.awaitOffered(2)
	if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the first socket is left: %v", err)
	}
}

func TestSecondPluginEnds(t *testing.T) {
	t.Parallel()
	first := newRig(t, 2)
	first.config.Bound = 2 * testkit.Timeout
	first.start()
	first.awaitOffered(2)
	second := *first
	second.start()
	second.wrong("another SR-IOV device plugin serves this resource")
	testkit.Must(t, second.plugin.Stop(testkit.Context(second.t)))
	if n := first.kubelet.Allocatable(resource); n != 2 {
		t.Errorf("%d devices are offered, want the first plugin's 2", n)
	}
}

func (r *rig) crowd(pfs int) (devices int) {
	r.t.Helper()
	var names []string
	for pf := range pfs {
		f := sysfstest.Function{Address: fmt.Sprintf("%04x:3b:00.0", pf+1), Vendor: "8086", Device: "1572", Driver: "i40e",
			NUMA: pf % 2, Netdev: fmt.Sprintf("p%d", pf), TotalVFs: 256, VFDevice: "154c", VFDriver: "iavf"}
		r.tree.Add(f)
		testkit.Must(r.t, r.tree.Write(sysfstest.Device(f.Address)+"/sriov_numvfs", strconv.Itoa(f.TotalVFs)))
		names, devices = append(names, strconv.Quote(f.Netdev)), devices+f.TotalVFs
	}
	r.configure(`{"resourceList": [{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"pfNames": [` + strings.Join(names, ",") + `]}]}]}`)
	return devices
}

type listener struct {
	stream chan grpc.ServerStreamingClient[v1beta1.ListAndWatchResponse]
}

func (r *rig) listener() *listener {
	l := &listener{stream: make(chan grpc.ServerStreamingClient[v1beta1.ListAndWatchResponse], 10)}
	r.config.Pods = nil
	r.config.Registrar = &registry{register: func(ctx context.Context, g plugin.Registration) error {
		conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return unixsock.Dial(ctx, g.Endpoint) }))
		if err != nil {
			return err
		}
		r.t.Cleanup(func() { _ = conn.Close() })
		stream, err := v1beta1.NewDevicePluginClient(conn).ListAndWatch(context.Background(), &v1beta1.Empty{})
		if err != nil {
			return err
		}
		l.stream <- stream
		return nil
	}}
	return l
}

func TestKubeletThatNeverReads(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	r.config.Controlled, r.config.Bound = true, 3*time.Second
	devices := r.crowd(1)
	l := r.listener()
	r.start()
	r.enable("first", gate.Claim{})
	<-l.stream
	for i := 0; ; i++ { // buffers are full
		d, err := r.plugin.Disable(testkit.Context(r.t), "")
		if end, is := errors.AsType[*gate.End](err); is && end.Code == codes.DeadlineExceeded {
			if !strings.Contains(end.Reason, "has not read the list") {
				t.Errorf("not withdrawn since %q, want that the kubelet has not taken the list", end.Reason)
			}
			break
		}
		if err != nil || d.Confirmed || i > 500 {
			t.Fatalf("withdrawal %d: %+v, %v; want that it is overdue in the end, and never confirmed", i, d, err)
		}
		r.enable(fmt.Sprint(i), gate.Claim{})
		testkit.Eventually(r.t, "all are offered", func() bool { return r.plugin.Status().Devices == devices })
	}
	r.stop()
}

func TestKubeletThatReadsSlowly(t *testing.T) {
	t.Parallel()
	const devices = 64
	r := newRig(t, devices)
	l := r.listener()
	r.start()
	stream := <-l.stream
	for i := range 4 {
		r.setVFs(0)
		if i%2 == 1 {
			r.setVFs(devices)
		}
		r.changes <- struct{}{}
	}
	var last atomic.Int64
	go func() {
		for {
			answer, err := stream.Recv()
			if err != nil {
				return
			}
			healthy := 0
			for _, d := range answer.Devices {
				if d.Health == v1beta1.Healthy {
					healthy++
				}
			}
			last.Store(int64(healthy))
			_ = r.kubelet.Await(slowly(r.t), func() bool { return false })
		}
	}()
	testkit.Eventually(r.t, "the last list", func() bool {
		return r.plugin.Status().Devices == devices && last.Load() == devices
	})
}

func slowly(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

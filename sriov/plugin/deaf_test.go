package plugin_test

import (
	"context"
	"fmt"
	"net"
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
	"github.com/cleatproject/cleat/sriov/discovery/sysfstest"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/plugin"
)

// crowd adds PFs with 256 virtual functions each, and a resource of all of them.
func (r *rig) crowd(pfs int) (devices int) {
	r.t.Helper()
	var names []string
	for pf := range pfs {
		f := sysfstest.Function{Address: fmt.Sprintf("%04x:3b:00.0", pf+1), Vendor: "8086", Device: "1572", Driver: "i40e",
			NUMA: pf % 2, Netdev: fmt.Sprintf("p%d", pf), TotalVFs: 256, VFDevice: "154c", VFDriver: "iavf"}
		r.tree.Add(f)
		if err := r.tree.Write(sysfstest.Device(f.Address)+"/sriov_numvfs", strconv.Itoa(f.TotalVFs)); err != nil {
			r.t.Fatal(err)
		}
		names, devices = append(names, strconv.Quote(f.Netdev)), devices+f.TotalVFs
	}
	r.configure(`{"resourceList": [{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"pfNames": [` + strings.Join(names, ",") + `]}]}]}`)
	return devices
}

// listener stands for a kubelet that has called ListAndWatch, and reads or not.
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

// A kubelet that never reads what it asked for holds up nothing for ever.
func TestKubeletThatNeverReads(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	r.config.Controlled, r.config.Bound = true, 3*time.Second
	devices := r.crowd(1)
	l := r.listener()
	r.start()
	r.enable(gate.Claim{Session: "first"})
	<-l.stream
	for i := 0; ; i++ { // until the buffers are full
		d, err := r.plugin.Disable(r.context(), "")
		if err != nil {
			t.Fatal(err)
		}
		if d.Code == codes.DeadlineExceeded {
			if !strings.Contains(d.Reason, "has not taken the list") {
				t.Errorf("not withdrawn since %q, want that the kubelet has not taken the list", d.Reason)
			}
			break
		}
		if d.Code != codes.OK || d.Confirmed || i > 500 {
			t.Fatalf("withdrawal %d: %+v; want that it is overdue in the end, and never confirmed", i, d)
		}
		r.enable(gate.Claim{Session: fmt.Sprint(i)})
		r.eventually("all are offered", func() bool { return r.plugin.Status().Devices == devices })
	}
	r.stop()
}

// A kubelet that reads slowly has the last list in the end, and few of those between.
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
	var last atomic.Int64 // healthy ones of the last list
	go func() {           // ends with the connection
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
	r.eventually("the last list", func() bool {
		return r.plugin.Status().Devices == devices && last.Load() == devices
	})
}

// slowly ends after a while.
func slowly(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

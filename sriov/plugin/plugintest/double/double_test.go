package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/test/testkit"
)

const resource = "example.com/vf"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

type rig struct {
	t      *testing.T
	dir    string
	socket string
}

func newRig(t *testing.T) rig {
	t.Helper()
	r := rig{t, t.TempDir(), filepath.Join(t.TempDir(), "node.sock")}
	ctx, end := context.WithCancelCause(context.Background())
	n := testkit.Value(newNode(r.dir, end))(t)
	o := testkit.Value(listen(ctx, r.socket, n))(t)
	t.Cleanup(func() {
		if err := errors.Join(context.Cause(ctx), o.close(), n.close()); err != nil {
			t.Error(err)
		}
		end(nil)
	})
	return r
}

func sendOrder(ctx context.Context, socket, text string) (a answer, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return a, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(testkit.Timeout)); err != nil {
		return a, err
	}
	if _, err := io.WriteString(conn, text+"\n"); err != nil {
		return a, err
	}
	return a, json.NewDecoder(conn).Decode(&a)
}

func (r rig) sendOrder(text string) answer {
	r.t.Helper()
	a, err := sendOrder(r.t.Context(), r.socket, text)
	if err != nil || a.Error != "" {
		r.t.Fatalf("%s: %v %s", text, err, a.Error)
	}
	return a
}

type devices struct {
	v1beta1.UnimplementedDevicePluginServer
	lists chan []*v1beta1.Device
}

func (devices) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (d devices) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case list := <-d.lists:
			if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		}
	}
}

func (devices) Allocate(_ context.Context, r *v1beta1.AllocateRequest) (*v1beta1.AllocateResponse, error) {
	if slices.Contains(r.ContainerRequests[0].DevicesIds, "bad") {
		return nil, errors.New("not that one")
	}
	return &v1beta1.AllocateResponse{ContainerResponses: []*v1beta1.ContainerAllocateResponse{{
		Envs: map[string]string{"GOT": strings.Join(r.ContainerRequests[0].DevicesIds, ",")}, Devices: []*v1beta1.DeviceSpec{{ContainerPath: "/dev/x"}},
	}}}, nil
}

func (r rig) serve() func(ids ...string) {
	r.t.Helper()
	dir := filepath.Join(r.dir, "kubelet", "device-plugins")
	d := devices{lists: make(chan []*v1beta1.Device, 8)}
	testkit.Serve(r.t, filepath.Join(dir, "vf.sock"), func(g grpc.ServiceRegistrar) { v1beta1.RegisterDevicePluginServer(g, d) })
	testkit.Must(r.t, plugin.Kubelet{Dir: dir}.Register(r.t.Context(), plugin.Registration{Resource: resource, Endpoint: filepath.Join(dir, "vf.sock"), Options: &v1beta1.DevicePluginOptions{}}))
	return func(ids ...string) {
		var list []*v1beta1.Device
		for _, id := range ids {
			list = append(list, &v1beta1.Device{ID: id, Health: v1beta1.Healthy})
		}
		d.lists <- list
	}
}

func TestPods(t *testing.T) {
	r := newRig(t)
	if a := r.sendOrder(`{"do":"start","pod":"p","resource":"example.com/vf","count":1}`); !strings.Contains(a.Refused, "no healthy devices") {
		t.Errorf("without a registration a pod gets %+v", a)
	}
	offer := r.serve()
	offer("a", "b", "c")
	if a := r.sendOrder(`{"do":"await","resource":"example.com/vf","offered":3,"capacity":3}`); a.Registrations != 1 || len(a.Healthy) != 3 {
		t.Errorf("three are offered: %+v", a)
	}
	a := r.sendOrder(`{"do":"start","pod":"p","resource":"example.com/vf","count":2}`)
	if a.Refused != "" || !slices.Equal(a.Devices, []string{"a", "b"}) || a.Env["GOT"] != "a,b" || !slices.Equal(a.Nodes, []string{"/dev/x"}) {
		t.Errorf("a pod that wants two gets %+v", a)
	}
	if a := r.sendOrder(`{"do":"start","pod":"q","resource":"example.com/vf","count":2}`); a.Refused == "" {
		t.Errorf("one is left, and a pod gets %q", a.Devices)
	}
	if a := r.sendOrder(`{"do":"start","insist":true,"resource":"example.com/vf","devices":["bad"]}`); !strings.Contains(a.Refused, "not that one") {
		t.Errorf("the plugin's word is %q", a.Refused)
	}
	if a := r.sendOrder(`{"do":"start","insist":true,"resource":"example.com/vf","devices":["a"]}`); a.Refused != "" {
		t.Errorf("the plugin's word is %q", a.Refused)
	}
	r.checkPodResources(2, 3)
	r.sendOrder(`{"do":"end","pod":"p"}`)
	offer()
	if a := r.sendOrder(`{"do":"await","resource":"example.com/vf","capacity":0}`); a.Capacity != 0 {
		t.Errorf("none is left: %+v", a)
	}
	r.checkPodResources(0, 0)
}

func (r rig) checkPodResources(held, offered int) {
	r.t.Helper()
	c := podresources.New(filepath.Join(r.dir, "kubelet", "pod-resources", "kubelet.sock"))
	defer c.Close()
	has, err := c.Held(r.t.Context())
	all, offeredErr := c.Offered(r.t.Context())
	if err := errors.Join(err, offeredErr); err != nil || len(has) != held || len(all[resource]) != offered {
		r.t.Errorf("PodResources has %+v and %v, want %d and %d: %v", has, all, held, offered, err)
	}
}

func TestKubeletRestarts(t *testing.T) {
	r := newRig(t)
	offer := r.serve()
	offer("a")
	r.sendOrder(`{"do":"await","resource":"example.com/vf","offered":1}`)
	if a := r.sendOrder(`{"do":"restart","resource":"example.com/vf"}`); a.Offered != 0 || a.Registrations != 1 {
		t.Errorf("after a restart: %+v", a)
	}
	if _, err := os.Lstat(filepath.Join(r.dir, "kubelet", "device-plugins", "vf.sock")); err == nil {
		t.Error("a kubelet that starts removes the plugins' sockets")
	}
	offer = r.serve()
	offer("a")
	r.sendOrder(`{"do":"await","resource":"example.com/vf","offered":1,"past":1}`)
}

func (r rig) write(text string) {
	r.t.Helper()
	f, err := os.OpenFile(filepath.Join(r.dir, "sys", "bus", "pci", "devices", card().Address, "sriov_numvfs"), os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(text)
		err = errors.Join(err, f.Close())
	}
	testkit.Must(r.t, err)
}

func TestKernelReacts(t *testing.T) {
	r := newRig(t)
	if a := r.sendOrder(`{"do":"look"}`); len(a.Functions) != atBoot || len(a.Changes) != 0 {
		t.Errorf("at the start: %+v", a)
	}
	for i, number := range []int{0, 8, 0, 6} {
		r.write(string(rune('0' + number)))
		testkit.Eventually(t, "the kernel reacts", func() bool {
			a := r.sendOrder(`{"do":"look"}`)
			if len(a.Functions) != number {
				return false
			}
			if len(a.Changes) != i+1 || a.Changes[i].NumVFs != number || a.Changes[i].Offered != 0 {
				t.Errorf("after %d was written: %+v", number, a.Changes)
			}
			return true
		})
		for i := range number {
			driver, err := os.Readlink(filepath.Join(r.dir, "sys", "bus", "pci", "devices", card().Address, "virtfn"+string(rune('0'+i)), "driver"))
			if err != nil || filepath.Base(driver) != "vfio-pci" {
				t.Errorf("the driver of function %d is %q: %v", i, driver, err)
			}
		}
	}
	if groups, err := os.ReadDir(filepath.Join(r.dir, "dev", "vfio")); err != nil || len(groups) != 1+groupCount {
		t.Errorf("%d nodes: %v", len(groups), err)
	}
}

func TestWrongOrders(t *testing.T) {
	r := newRig(t)
	for text, want := range map[string]string{
		`{"do":"dance"}`:         `no order "dance"; they are look`,
		`{"dance":1}`:            "unknown field",
		`[]`:                     "cannot unmarshal",
		`{"do":"end","pod":"p"}`: `no pod "p"`,
	} {
		if a, err := sendOrder(t.Context(), r.socket, text); err != nil || !strings.Contains(a.Error, want) {
			t.Errorf("%s: %q, %v, want %q", text, a.Error, err, want)
		}
	}
}

func TestWrongFlags(t *testing.T) {
	for _, argv := range [][]string{nil, {"-dir", "/tmp"}, {"-dir", "x", "-socket", "/y"}, {"-dir", "/x", "-socket", "/y", "word"}, {"-dance"}} {
		if _, err := parse(argv, io.Discard); err == nil {
			t.Errorf("%q is taken", argv)
		}
	}
}

func TestProgram(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "node.sock")
	testkit.Run(t, "/proc/self/exe", "-probe")
	program := testkit.Start(t, exec.Command("/proc/self/exe", "-dir", filepath.Join(dir, "node"), "-socket", socket))
	testkit.Must(t, program.Until(func() error {
		_, err := sendOrder(t.Context(), socket, `{"do":"look"}`)
		return err
	}))
	pid := strconv.Itoa(program.PID())
	theirs, err := os.Readlink(filepath.Join("/proc", pid, "ns", "net"))
	own, ownErr := os.Readlink("/proc/self/ns/net")
	if err := errors.Join(err, ownErr); err != nil || theirs == own {
		t.Errorf("its network namespace is %s, ours %s: %v", theirs, own, err)
	}
	if links, err := os.ReadFile(filepath.Join("/proc", pid, "net", "dev")); err != nil || !strings.Contains(string(links), netdev+":") {
		t.Errorf("it has no %s: %v\n%s", netdev, err, links)
	}
	testkit.Must(t, program.Stop())
	for _, path := range []string{socket, filepath.Join(dir, "node", "kubelet", "pod-resources", "kubelet.sock")} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is left over", path)
		}
	}
}

package upstream

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/kubelet/register"
)

// deviceNode is a kubelet's device manager in its own process.
type deviceNode struct {
	registry string
	in       io.Writer
	lines    chan map[string]json.RawMessage
}

func newDeviceNode(t *testing.T, dir string) *deviceNode {
	t.Helper()
	n := &deviceNode{registry: filepath.Join(dir, "registry"), lines: make(chan map[string]json.RawMessage, 100)}
	cmd := exec.Command(devicesProgram(t), n.registry)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			var line map[string]json.RawMessage
			if err := json.Unmarshal(lines.Bytes(), &line); err != nil {
				line = map[string]json.RawMessage{"error": json.RawMessage(fmt.Sprintf("%q", lines.Text()))}
			}
			n.lines <- line
		}
	}()
	t.Cleanup(func() {
		_ = in.Close()
		<-read
		if err := cmd.Wait(); err != nil {
			t.Errorf("the device manager: %v", err)
		}
	})
	n.in = in
	return n
}

// awaitLine waits for a line whose value of a key contains want.
func (n *deviceNode) awaitLine(t *testing.T, key, want string) {
	t.Helper()
	late := time.After(time.Minute)
	var last []string
	for {
		select {
		case line := <-n.lines:
			if got := string(line[key]); strings.Contains(got, want) {
				return
			}
			for k, v := range line {
				last = append(last, k+": "+string(v))
			}
		case <-late:
			t.Fatalf("the kubelet did not print %s: %s, but %q", key, want, last)
		}
	}
}

// devicePlugin has two devices, and allocates environment variables.
type devicePlugin struct {
	deviceplugin.UnimplementedDevicePluginServer
	ended chan struct{}
}

func (*devicePlugin) GetDevicePluginOptions(context.Context, *deviceplugin.Empty) (*deviceplugin.DevicePluginOptions, error) {
	return &deviceplugin.DevicePluginOptions{}, nil
}

func (p *devicePlugin) ListAndWatch(_ *deviceplugin.Empty, stream grpc.ServerStreamingServer[deviceplugin.ListAndWatchResponse]) error {
	two := []*deviceplugin.Device{{ID: "a", Health: deviceplugin.Healthy}, {ID: "b", Health: deviceplugin.Healthy}}
	if err := stream.Send(&deviceplugin.ListAndWatchResponse{Devices: two}); err != nil {
		return err
	}
	select {
	case <-stream.Context().Done():
	case <-p.ended:
	}
	return nil
}

func (*devicePlugin) Allocate(_ context.Context, r *deviceplugin.AllocateRequest) (*deviceplugin.AllocateResponse, error) {
	answer := &deviceplugin.AllocateResponse{}
	for _, c := range r.ContainerRequests {
		answer.ContainerResponses = append(answer.ContainerResponses, &deviceplugin.ContainerAllocateResponse{
			Envs: map[string]string{"DEVICES": strings.Join(c.DevicesIds, ",")},
		})
	}
	return answer, nil
}

func serveDevices(t testing.TB, path string) (stop func()) {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server, p := grpc.NewServer(), &devicePlugin{ended: make(chan struct{})}
	deviceplugin.RegisterDevicePluginServer(server, p)
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return func() {
		close(p.ended)
		server.Stop()
		<-served
	}
}

// The kubelet finds a device plugin of ours by its socket, offers its devices
// to pods, and withdraws them when it stops; another one can replace it.
func TestDevicePluginRegistersByItself(t *testing.T) {
	t.Parallel()
	const name = "cleat.dev/thing"
	dir, err := os.MkdirTemp("", "n") // short, for the 107 bytes of a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := newDeviceNode(t, dir)
	config := func(endpoint string) register.Config {
		return register.Config{Dir: n.registry, Every: 100 * time.Millisecond,
			Plugin: register.Plugin{Type: register.Device, Name: name, Endpoint: endpoint, Versions: []string{deviceplugin.Version}}}
	}

	stop := serveDevices(t, filepath.Join(dir, "first.sock"))
	r := startRegistrar(t, config(filepath.Join(dir, "first.sock")))
	reaches(t, r, register.Registered)
	n.awaitLine(t, "resources", `"`+name+`":[2,2]`)
	if _, err := fmt.Fprintln(n.in, name, 2); err != nil {
		t.Fatal(err)
	}
	n.awaitLine(t, "container", `"DEVICES"`)
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.awaitLine(t, "resources", `"`+name+`":[2,0]`) // the kubelet keeps the capacity for 5 min, for restarts
	stop()

	stop = serveDevices(t, filepath.Join(dir, "second.sock"))
	defer stop()
	r = startRegistrar(t, config(filepath.Join(dir, "second.sock")))
	reaches(t, r, register.Registered)
	n.awaitLine(t, "resources", `"`+name+`":[2,2]`)
}

// The kubelet refuses names that are not extended resources, with a reason.
func TestDevicePluginRefused(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "n")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := newDeviceNode(t, dir)
	stop := serveDevices(t, filepath.Join(dir, "d.sock"))
	defer stop()
	r := startRegistrar(t, register.Config{Dir: n.registry, Plugin: register.Plugin{
		Type: register.Device, Name: "node.kubernetes.io/thing", Endpoint: filepath.Join(dir, "d.sock"), Versions: []string{deviceplugin.Version}}})
	refused := reaches(t, r, register.Refused)
	if want := "invalid name of device plugin socket"; !strings.Contains(refused.Error, want) {
		t.Errorf("the refusal is %q, want %q in it", refused.Error, want)
	}
}

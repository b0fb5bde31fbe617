package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/test/testkit"
)

// genericPlugin is a common device plugin: it serves a socket in the device plugin
// directory, and calls Register on kubelet.sock.
type genericPlugin struct {
	v1beta1.UnimplementedDevicePluginServer
	dir string
}

func (genericPlugin) GetDevicePluginOptions(context.Context, *v1beta1.Empty) (*v1beta1.DevicePluginOptions, error) {
	return &v1beta1.DevicePluginOptions{}, nil
}

func (genericPlugin) ListAndWatch(_ *v1beta1.Empty, stream grpc.ServerStreamingServer[v1beta1.ListAndWatchResponse]) error {
	if err := stream.Send(&v1beta1.ListAndWatchResponse{Devices: []*v1beta1.Device{
		{ID: "gpu-0", Health: v1beta1.Healthy}, {ID: "gpu-1", Health: v1beta1.Unhealthy},
	}}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// serve serves its socket until the test ends.
func (p genericPlugin) serve(t *testing.T) {
	t.Helper()
	l := testkit.Value(net.Listen("unix", filepath.Join(p.dir, "gpu.sock")))(t)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	server := grpc.NewServer()
	v1beta1.RegisterDevicePluginServer(server, p)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
}

func (p genericPlugin) register(t *testing.T, version, endpoint, resource string) error {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(p.dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	testkit.Must(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = v1beta1.NewRegistrationClient(conn).Register(ctx, &v1beta1.RegisterRequest{Version: version, Endpoint: endpoint, ResourceName: resource})
	return err
}

// Plugins that call Register are served like by a kubelet.
func TestHostServesDevicePluginRegistration(t *testing.T) {
	h := newHost(t)
	p := genericPlugin{dir: filepath.Join(h.dir, "device-plugins")}
	kubelet := filepath.Join(p.dir, "kubelet.sock")
	testkit.Eventually(t, "the host serves a socket of mode 0600", func() bool {
		made, err := os.Lstat(kubelet)
		return err == nil && made.Mode().Perm() == 0o600
	})
	for _, c := range []struct{ version, endpoint, resource, says string }{
		{"v1alpha1", "gpu.sock", "example.com/gpu", `requested API version "v1alpha1" is not supported by kubelet. Supported version is ["v1beta1"]`},
		{"v1beta1", "gpu.sock", "gpu", `the ResourceName "gpu" is invalid`},
		{"v1beta1", "gpu.sock", "kubernetes.io/gpu", `the ResourceName "kubernetes.io/gpu" is invalid`},
		{"v1beta1", "../gpu.sock", "example.com/gpu", `"../gpu.sock"`},
	} {
		if err := p.register(t, c.version, c.endpoint, c.resource); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	has := func(what string, words ...string) {
		t.Helper()
		testkit.Eventually(t, what, func() bool {
			out, err := h.ask(t, "plugins", "devices", "example.com/gpu")
			for _, w := range words {
				if err != nil || !strings.Contains(out, w) {
					return false
				}
			}
			return true
		})
	}
	gone := func() {
		t.Helper()
		testkit.Eventually(t, "the resource is gone", func() bool {
			out, err := h.ask(t, "plugins", "devices")
			return err == nil && !strings.Contains(out, "example.com/gpu")
		})
	}
	p.serve(t)
	for range 2 { // a restart
		testkit.Must(t, p.register(t, "v1beta1", "gpu.sock", "example.com/gpu"))
	}
	has("both devices are listed", "gpu-0", "gpu-1", "unhealthy")
	testkit.Must(t, os.Remove(filepath.Join(p.dir, "gpu.sock")))
	gone()

	p.serve(t)
	testkit.Must(t, p.register(t, "v1beta1", "gpu.sock", "example.com/gpu"))
	has("it is registered again", "gpu-0")
	// A host that starts recreates its socket and removes those of plugins, which makes
	// them register again.
	testkit.Must(t, h.end(unix.SIGTERM))
	if _, err := os.Lstat(kubelet); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the socket is left over: %v", err)
	}
	testkit.Must(t, os.WriteFile(filepath.Join(p.dir, "kubelet_internal_checkpoint"), nil, 0o600))
	h.start(t, nil)
	testkit.Eventually(t, "the host serves a new socket, and the plugin's is gone", func() bool {
		_, made := os.Lstat(kubelet)
		_, plugin := os.Lstat(filepath.Join(p.dir, "gpu.sock"))
		return made == nil && errors.Is(plugin, fs.ErrNotExist)
	})
	if _, err := os.Lstat(filepath.Join(p.dir, "kubelet_internal_checkpoint")); err != nil {
		t.Errorf("a file that is no socket went: %v", err)
	}
	gone()
	p.serve(t)
	testkit.Must(t, p.register(t, "v1beta1", "gpu.sock", "example.com/gpu"))
	has("it is registered after a restart", "gpu-0")
	// The socket and its directory are created again when another program removes
	// them.
	for name, remove := range map[string]func() error{
		"socket":    func() error { return os.Remove(kubelet) },
		"directory": func() error { return os.RemoveAll(p.dir) },
	} {
		testkit.Must(t, remove())
		testkit.Eventually(t, "the removed "+name+" is created again", func() bool {
			err := p.register(t, "v0", "x", "y")
			return err != nil && strings.Contains(err.Error(), "not supported by kubelet")
		})
	}
	gone()
}

// With --beside-kubelet the host does not replace the socket of a kubelet.
func TestHostBesideDevicePluginRegistration(t *testing.T) {
	h := newHost(t)
	other := &hostProcess{dir: t.TempDir()}
	other.plugins, other.endpoint = filepath.Join(other.dir, "plugins"), "unix://"+filepath.Join(other.dir, "host", "host.sock")
	dir := filepath.Join(h.dir, "device-plugins")
	testkit.Eventually(t, "the first host serves", func() bool {
		_, err := os.Lstat(filepath.Join(dir, "kubelet.sock"))
		return err == nil
	})
	other.launch(t, nil, "--device-plugins-dir", dir)
	<-other.done
	if other.err == nil || !strings.Contains(other.log.String(), "kubelet.sock") {
		t.Errorf("a second host: %v\n%s", other.err, &other.log)
	}
	other.cmd = nil
	other.start(t, nil, "--device-plugins-dir", dir, "--beside-kubelet")
	if err := (genericPlugin{dir: dir}).register(t, "v0", "x", "y"); err == nil || !strings.Contains(err.Error(), "not supported by kubelet") {
		t.Errorf("the first host is no longer served: %v", err)
	}
}

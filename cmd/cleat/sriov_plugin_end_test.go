package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/test/testkit"
)

const oneVF = `{"resourceList": [{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"pfNames": ["ens1"]}]}]}`

// control enables the devices and holds the stream.
func (n *fakeNode) control(t *testing.T) grpc.ServerStreamingClient[controlv1.DevicePluginStatus] {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	conn := testkit.Value(rpcdial.Unix(filepath.Join(n.dir, "control", "control.sock")))(t)
	t.Cleanup(func() { _ = conn.Close() })
	stream := testkit.Value(controlv1.NewControlServiceClient(conn).EnableDevices(ctx, &controlv1.EnableDevicesRequest{NodeStateGeneration: 7, NodeName: "worker"}, grpc.WaitForReady(true)))(t)
	return stream
}

// launch runs the plugin in the background.
func (n *fakeNode) launch(flags ...string) (ended chan error) {
	c := newRootCommand()
	c.SetArgs(append(slices.Clone(n.flags), flags...))
	c.SetErr(&testkit.Log{})
	ended = make(chan error, 1)
	go func() { ended <- c.ExecuteContext(context.Background()) }()
	return ended
}

// terminated sends SIGTERM, and returns the time until the process ends and its error.
func terminated(t *testing.T, ended chan error) (time.Duration, error) {
	t.Helper()
	began := time.Now()
	testkit.Must(t, syscall.Kill(os.Getpid(), syscall.SIGTERM))
	select {
	case err := <-ended:
		return time.Since(began), err
	case <-time.After(2 * server.StopBound):
		t.Fatal("it does not end")
		return 0, nil
	}
}

// On SIGTERM a connected daemon gets the reason, and the kubelet an empty device list.
func TestSriovPluginWithdrawsOnSIGTERM(t *testing.T) {
	for _, way := range []string{"register", "watcher"} {
		t.Run(way, func(t *testing.T) {
			n := newFakeNode(t, oneVF)
			// No kubelet watches the registry: with the watcher, SIGTERM ends the wait.
			registry := filepath.Join(n.dir, "kubelet", "plugins_registry")
			testkit.Must(t, os.Mkdir(registry, 0o755))
			ended := n.launch("--controlled-mode", "--registration", way)
			stream := n.control(t)
			if way == "register" {
				n.offers(t, "example.com/vf", 4)
			} else {
				testkit.Eventually(t, "the registration socket", func() bool {
					_, err := os.Lstat(filepath.Join(registry, "example.com_vf-reg.sock"))
					return err == nil
				})
			}
			received := make(chan error, 1)
			go func() {
				for {
					if _, err := stream.Recv(); err != nil {
						received <- err
						return
					}
				}
			}()
			took, err := terminated(t, ended)
			if err != nil || took > server.StopBound {
				t.Errorf("it ended with %v after %s, want nil within %s", err, took, server.StopBound)
			}
			if err := <-received; status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "shutting down") {
				t.Errorf("the daemon received %v, want UNAVAILABLE, since the plugin stops", err)
			}
			if way == "register" {
				n.awaitEmptyList(t, "example.com/vf")
			}
			for _, dir := range []string{registry, filepath.Join(n.dir, "kubelet", "device-plugins"), filepath.Join(n.dir, "control")} {
				entries, err := os.ReadDir(dir)
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					t.Fatal(err)
				}
				for _, e := range entries {
					if e.Name() != plugin.KubeletSocket {
						t.Errorf("%s is left in %s", e.Name(), dir)
					}
				}
			}
		})
	}
}

// SIGHUP reloads changes without an inotify event, also if it is sent many times.
func TestSriovPluginReloadsOnSIGHUP(t *testing.T) {
	n := newFakeNode(t, oneVF)
	elsewhere := filepath.Join(n.dir, "elsewhere")
	testkit.Must(t, errors.Join(os.Mkdir(elsewhere, 0o755), os.Rename(filepath.Join(n.dir, "config.json"), filepath.Join(elsewhere, "c.json")),
		os.Symlink(filepath.Join(elsewhere, "c.json"), filepath.Join(n.dir, "config.json"))))
	ended := n.launch("--rescan-interval", "1h")
	testkit.Eventually(t, "the plugin serves its status", func() bool {
		_, err := os.Lstat(filepath.Join(n.dir, "metrics.sock"))
		return err == nil
	})
	testkit.Must(t, syscall.Kill(os.Getpid(), syscall.SIGHUP)) // an early SIGHUP does not end the process
	n.offers(t, "example.com/vf", 4)
	testkit.Must(t, os.WriteFile(filepath.Join(elsewhere, "c.json"), []byte(strings.Replace(oneVF, "ens1", "ens1#0-1", 1)), 0o644))
	for range 500 {
		testkit.Must(t, syscall.Kill(os.Getpid(), syscall.SIGHUP))
	}
	n.offers(t, "example.com/vf", 2)
	if _, err := terminated(t, ended); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

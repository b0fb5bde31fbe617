package main

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/testing/protocmp"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/test/testkit"
)

// A resource registers as a device plugin with its own socket. Package register tests
// the rest.
func TestWatchedDirectory(t *testing.T) {
	ctx, dir := testkit.Context(t), testkit.Dir(t)
	w := watchedDirectory{register.NewDirectory(dir, slog.New(slog.DiscardHandler), prometheus.NewRegistry())}
	t.Cleanup(func() { testkit.Must(t, w.Close(testkit.Context(t))) })
	result := make(chan error, 1)
	go func() { result <- w.Register(ctx, plugin.Registration{Resource: "example.com/a", Endpoint: "/a.sock"}) }()
	kubelet := registration.NewRegistrationClient(testkit.Dial(t, filepath.Join(dir, "example.com_a-reg.sock")))
	info := testkit.Value(kubelet.GetInfo(ctx, &registration.InfoRequest{}, grpc.WaitForReady(true)))(t)
	want := &registration.PluginInfo{Type: register.Device, Name: "example.com/a", Endpoint: "/a.sock", SupportedVersions: []string{"v1beta1"}}
	if diff := cmp.Diff(want, info, protocmp.Transform()); diff != "" {
		t.Error(diff)
	}
	testkit.Value(kubelet.NotifyRegistrationStatus(ctx, &registration.RegistrationStatus{PluginRegistered: true}))(t)
	testkit.Must(t, testkit.Receive(t, "the registration", result))
}

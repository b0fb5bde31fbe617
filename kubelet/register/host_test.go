package register

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

// handler accepts every plugin, until refuses is called, and records its calls.
type handler struct {
	mu      sync.Mutex
	refusal error
	calls   []string
}

func (h *handler) record(call string, p watch.Plugin) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, call+" "+p.Name+" "+p.Endpoint)
	return h.refusal
}

func (h *handler) Validate(context.Context, watch.Plugin) error     { return nil }
func (h *handler) Register(_ context.Context, p watch.Plugin) error { return h.record("register", p) }
func (h *handler) DeRegister(_ context.Context, p watch.Plugin) error {
	return h.record("deregister", p)
}

func (h *handler) refuses(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.refusal = err
}

func (h *handler) said() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.calls)
}

// Plugins of all types register with watch.Host, including two instances of a
// DRA driver, each deregistered with its own socket.
func TestWithWatchHost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "registry")
	h := &handler{}
	host := testkit.Value(watch.New(watch.Options{
		Dir: dir, Handlers: map[string]watch.Handler{CSI: h, Device: h, DRA: h},
		Timeouts: watch.Timeouts{Dial: time.Minute, GetInfo: time.Minute, Notify: time.Minute}, // long timeouts, so that nothing is retried
	}))(t)
	testkit.Must(t, host.Start(t.Context()))
	t.Cleanup(func() { testkit.Must(t, host.Close(testkit.Context(t), false)) })
	dra := func(uid, endpoint string) Config {
		c := config(dir)
		c.UID, c.Plugin = uid, Plugin{Type: DRA, Name: "dra.cleat.dev", Endpoint: endpoint, Versions: []string{"v1.DRAPlugin"}}
		return c
	}
	device := config(dir)
	device.Plugin = Plugin{Type: Device, Name: "cleat.dev/vf", Endpoint: "/vf.sock", Versions: []string{"v1alpha1", "v1beta1"}}
	var want []string
	var all []*rig
	for _, c := range []Config{config(dir), device, dra("uid-1", "/dra-1.sock"), dra("uid-2", "/dra-2.sock")} {
		r := serve(t, c)
		r.reaches(Registered)
		all = append(all, r)
		want = append(want, "register "+c.Plugin.Name+" "+c.Plugin.Endpoint)
	}
	expect := func(what string, more ...string) {
		t.Helper()
		want = append(want, more...)
		all[0].until(what, func() bool { return len(h.said()) >= len(want) })
		if diff := cmp.Diff(want, h.said()); diff != "" {
			t.Errorf("%s: want-, got+:\n%s", what, diff)
		}
	}
	expect("at first")
	if sockets, err := filepath.Glob(dir + "/*"); err != nil || !slices.Equal(sockets, []string{
		dir + "/cleat.dev_vf-reg.sock", dir + "/csi.cleat.dev-reg.sock", dir + "/dra.cleat.dev-uid-1-reg.sock", dir + "/dra.cleat.dev-uid-2-reg.sock",
	}) {
		t.Errorf("the sockets are %v, %v", sockets, err)
	}
	all[2].end()
	expect("the older DRA driver ends", "deregister dra.cleat.dev /dra-1.sock")
	all[1].until("a socket that stands", func() bool { return time.Since(all[1].Status().Placed) > minSocketAge })
	if err := os.Remove(all[1].socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	expect("a socket was removed", "deregister cleat.dev/vf /vf.sock", "register cleat.dev/vf /vf.sock")
	all[1].reaches(Registered)
	all[0].end()
	expect("the CSI driver ends", "deregister csi.cleat.dev /run/cleat/csi/csi.sock")
}

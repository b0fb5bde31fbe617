package remote

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/kubelet/handler/device"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

func known(kind, name, socket string, phase watch.Phase, since int64) watch.Status {
	return watch.Status{
		Plugin: watch.Plugin{Type: kind, Name: name, Socket: "/p/" + socket, Endpoint: "/e/" + socket},
		Phase:  phase, Since: time.Unix(since, 0),
	}
}

func TestRegistered(t *testing.T) {
	all := []watch.Status{
		known("CSIPlugin", "a", "old", watch.Registered, 1),
		known("CSIPlugin", "a", "new", watch.Registered, 3),
		known("CSIPlugin", "a", "next", watch.Notifying, 4),
		known("DRAPlugin", "a", "other", watch.Registered, 5),
		known("CSIPlugin", "b", "failed", watch.Failed, 6),
	}
	for _, c := range []struct{ kind, name, endpoint, want string }{
		{"CSIPlugin", "a", "", "/p/new /p/old"}, {"CSIPlugin", "a", "/e/old", "/p/old /p/new"}, {"CSIPlugin", "a", "/e/next", "/p/new /p/old"},
		{"DRAPlugin", "a", "", "/p/other"}, {"CSIPlugin", "b", "", ""}, {"CSIPlugin", "c", "", ""},
	} {
		var sockets []string
		for _, p := range registered(all, c.kind, c.name, c.endpoint) {
			sockets = append(sockets, p.Socket)
		}
		if got := strings.Join(sockets, " "); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestNotFoundListsNames(t *testing.T) {
	many := []watch.Status{known("", "", "mute", watch.Asking, 0), known("DRAPlugin", "gpu", "gpu", watch.Registered, 0)}
	for _, name := range strings.Fields("l k j i h g f e d csi.cleat.dev csi.cleat.dev") {
		many = append(many, known("CSIPlugin", name, name, watch.Registered, 0))
	}
	for name, c := range map[string]struct {
		all  []watch.Status
		says []string
		not  string
	}{
		"csi.claet.dev": {many, []string{`below /dir is called "csi.claet.dev"`, `did you mean "csi.cleat.dev"?`, "and 2 more", "no name reported yet by /p/mute"}, "gpu"},
		"xyzzyxyzzy":    {many, []string{"known names of that type: csi.cleat.dev, d, e, f, g, h, i, j and 2 more"}, "did you mean"},
		"x":             {nil, []string{"known names of that type: none"}, "no name reported"},
	} {
		got := notFoundText(c.all, "/dir", "CSIPlugin", name)
		for _, w := range c.says {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q lacks %q", name, got, w)
			}
		}
		if strings.Contains(got, c.not) {
			t.Errorf("%s: %q holds %q", name, got, c.not)
		}
	}
}

// The instance that the handler prefers is returned as long as it is registered and
// its endpoint is served; otherwise the newest one that is.
func TestLookup(t *testing.T) {
	r := newRig(t)
	var prefers string
	r.service.Serving = func(kind, name string) (string, bool) { return prefers, kind == "CSIPlugin" && name == "a" }
	endpoint := func(name string) string { return filepath.Join(filepath.Dir(r.dir), name) }
	stop := map[string]func(){}
	for _, name := range []string{"old", "new"} {
		stop[name] = testkit.Serve(t, endpoint(name), func(grpc.ServiceRegistrar) {})
		info := csiPlugin("a")
		info.Endpoint = endpoint(name)
		serve(t, r.path(name+".sock"), info)
		untilRegistered(t, r, r.path(name+".sock"))
	}
	finds := func(preferred, want string) {
		t.Helper()
		if prefers = preferred; preferred != "" {
			prefers = endpoint(preferred)
		}
		if got, err := r.remote.Lookup(t.Context(), "CSIPlugin", "a"); err != nil || got.Endpoint != endpoint(want) {
			t.Errorf("the handler prefers %q: %+v, %v; want %s", preferred, got, err, want)
		}
	}
	finds("old", "old")
	finds("gone", "new")
	finds("", "new")
	stop["new"]() // at once, before the host notices it
	finds("new", "old")
	stop["old"]()
	var e *Error
	if _, err := r.remote.Lookup(t.Context(), "CSIPlugin", "a"); !errors.As(err, &e) || e.Code != codes.NotFound || !strings.Contains(e.Message, "no process serves its endpoint") {
		t.Errorf("ended plugins: %v", err)
	}
	if _, err := r.remote.Lookup(t.Context(), "CSIPlugin", "b"); !errors.As(err, &e) || e.Code != codes.NotFound || !strings.Contains(e.Message, r.dir) {
		t.Errorf("an unknown name: %v", err)
	}
}

func untilRegistered(t *testing.T, r *rig, socket string) {
	t.Helper()
	for c := range Follow(t.Context(), r.host) {
		if c.Kind == Present && c.Plugin.Socket == socket && c.Plugin.Phase == watch.Registered {
			return
		}
	}
}

func TestDevices(t *testing.T) {
	r := newRig(t)
	if all, err := r.remote.Devices(t.Context(), ""); err != nil || len(all) != 0 {
		t.Errorf("of no plugin: %+v, %v", all, err)
	}
	gpu := Resource{Name: "example.com/gpu", Endpoint: "/run/gpu.sock", Current: true, Devices: []device.Device{
		{ID: "a", Healthy: true, NUMA: []int64{0, 1}}, {ID: "b", Holder: "pod"},
	}}
	nic := Resource{Name: "example.com/nic", Endpoint: "/run/nic.sock", Error: "the list broke off", Devices: []device.Device{}}
	r.service.Resources = func() []device.Resource {
		var all []device.Resource
		for _, x := range []Resource{gpu, nic} {
			all = append(all, device.Resource{Name: x.Name, Endpoint: x.Endpoint, Current: x.Current, Error: x.Error, Devices: x.Devices})
		}
		return all
	}
	for name, want := range map[string][]Resource{"": {gpu, nic}, nic.Name: {nic}} {
		got, err := r.remote.Devices(t.Context(), name)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v %s", name, err, diff)
		}
	}
	if _, err := r.remote.Devices(t.Context(), "example.com/gpo"); codeOf(err) != codes.NotFound || err.Error() !=
		`no device plugin offers "example.com/gpo" (did you mean "example.com/gpu"?); available resources: example.com/gpu, example.com/nic` {
		t.Errorf("%v", err)
	}
}

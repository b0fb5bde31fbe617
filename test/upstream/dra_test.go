package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	resource "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	draplugin "k8s.io/kubernetes/pkg/kubelet/cm/dra/plugin"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache"
	csiplugin "k8s.io/kubernetes/pkg/volume/csi"

	"github.com/cleatproject/cleat/kubelet/handler/generic"
	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/upstream/kubelet"
)

const draDriver = "dra.cleat.dev"

// resources is the minimum that Kubernetes' package requires of a DRA driver.
type resources struct{ testing.TB }

func (resources) PrepareResourceClaims(context.Context, []*resource.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	return nil, nil
}

func (resources) UnprepareResourceClaims(context.Context, []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	return nil, nil
}

func (resources) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

func (r resources) HandleError(_ context.Context, err error, what string) {
	r.Errorf("%s: %v", what, err)
}

// dirs are the directories of DRA drivers and their host.
type dirs struct{ registry, data string }

func newDirs(t *testing.T) dirs {
	t.Helper()
	base, err := os.MkdirTemp("", "n") // short, for the 107 bytes of a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	d := dirs{filepath.Join(base, "registry"), filepath.Join(base, "data")}
	for _, dir := range []string{d.registry, d.data} {
		if err := os.Mkdir(dir, 0o750); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// instance starts a DRA driver with Kubernetes' own package.
func (d dirs) instance(t *testing.T, uid types.UID, options ...kubeletplugin.Option) *kubeletplugin.Helper {
	t.Helper()
	p, err := kubeletplugin.Start(context.Background(), resources{t}, append(options, kubeletplugin.DriverName(draDriver),
		kubeletplugin.KubeClient(fake.NewClientset()), kubeletplugin.NodeName(nodeName), kubeletplugin.RollingUpdate(uid),
		kubeletplugin.RegistrarDirectoryPath(d.registry), kubeletplugin.PluginDataDirectoryPath(d.data))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	return p
}

func ourHost(t *testing.T, dir, kind string, h watch.Handler) *watch.Host {
	t.Helper()
	host, err := watch.New(watch.Options{Dir: dir, Handlers: map[string]watch.Handler{kind: h}})
	if err != nil {
		t.Fatal(err)
	}
	startHost(t, ours{host})
	return host
}

// Drivers with Kubernetes' package register with our host: two at once, as
// during an update. The newer one serves, and the older one again after the
// newer one stops.
func TestDRADriverInOurHost(t *testing.T) {
	t.Parallel()
	d, h := newDirs(t), generic.New(generic.Options{})
	ourHost(t, d.registry, registration.DRAPlugin, h)
	serves := func(uid string) {
		t.Helper()
		want := filepath.Join(d.data, "dra-"+uid+".sock")
		testkit.EventuallyNil(t, "the newest instance serves", func() error {
			if p, _ := h.Serving(registration.DRAPlugin, draDriver); p.Endpoint != want {
				return fmt.Errorf("%q serves %s, want %q", p.Endpoint, draDriver, want)
			}
			return nil
		})
	}
	first := d.instance(t, "a")
	serves("a")
	testkit.EventuallyNil(t, "the first instance is registered", func() error {
		if s := first.RegistrationStatus(); s == nil || !s.PluginRegistered {
			return fmt.Errorf("the driver's registration status is %v", s)
		}
		return nil
	})
	second := d.instance(t, "b")
	serves("b")
	second.Stop()
	serves("a")
	first.Stop()
	testkit.EventuallyNil(t, "no instance serves", func() error {
		if p, found := h.Serving(registration.DRAPlugin, draDriver); found {
			return fmt.Errorf("%q still serves", p.Endpoint)
		}
		return nil
	})
}

// A driver whose calls fail for a while is registered afterwards, as in
// Kubernetes' own node test.
func TestDRADriverRecovers(t *testing.T) {
	t.Parallel()
	d, h := newDirs(t), generic.New(generic.Options{})
	for name, fail := range map[string]func(*kubeletplugin.Helper, error){
		"GetInfo": (*kubeletplugin.Helper).SetGetInfoError, "Notify": (*kubeletplugin.Helper).SetNotifyRegistrationStatusError,
	} {
		t.Run(name, func(t *testing.T) {
			p := d.instance(t, types.UID(name))
			fail(p, errors.New("not today"))
			host := ourHost(t, d.registry, registration.DRAPlugin, h)
			socket := filepath.Join(d.registry, draDriver+"-"+name+"-reg.sock")
			testkit.EventuallyNil(t, "the registration fails", func() error {
				if s := host.Find(socket); len(s) != 1 || s[0].Phase != watch.Failed {
					return fmt.Errorf("want it failed: %+v", s)
				}
				return nil
			})
			fail(p, nil)
			if _, err := host.Wait(t.Context(), registration.DRAPlugin, draDriver); err != nil {
				t.Error(err)
			}
			p.Stop()
		})
	}
}

// Our registrar registers instances of a DRA driver with the kubelet's own DRA
// plugin manager, which distinguishes them.
func TestRegistrarOfDRADrivers(t *testing.T) {
	t.Parallel()
	d := newDirs(t)
	drivers := draplugin.NewDRAPluginManager(t.Context(), fake.NewClientset(), func(context.Context) (*core.Node, error) {
		return &core.Node{}, nil
	}, nil, time.Hour)
	t.Cleanup(drivers.Stop)
	m := kubelet.New(d.registry, nil)
	m.AddHandler(registration.DRAPlugin, drivers)
	startHost(t, m)

	var registrars []*register.Registrar
	for _, uid := range []string{"a", "b"} {
		d.instance(t, types.UID(uid), kubeletplugin.RegistrationService(false))
		r := startRegistrar(t, register.Config{Dir: d.registry, UID: uid, Plugin: register.Plugin{
			Type: register.DRA, Name: draDriver, Endpoint: filepath.Join(d.data, "dra-"+uid+".sock"), Versions: []string{"v1.DRAPlugin"}}})
		reaches(t, r, register.Registered)
		registrars = append(registrars, r)
	}
	if err := registrars[1].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := drivers.GetPlugin(draDriver); err != nil {
		t.Errorf("the end of one instance removed the other: %v", err)
	}
	if err := registrars[0].Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	testkit.EventuallyNil(t, "the kubelet forgets the driver", func() error {
		if p, err := drivers.GetPlugin(draDriver); err == nil {
			return fmt.Errorf("the kubelet still has %v", p)
		}
		return nil
	})
}

// kubeletHandler runs a kubelet's handler in our host.
type kubeletHandler struct{ cache.PluginHandler }

func (h kubeletHandler) Validate(ctx context.Context, p watch.Plugin) error {
	return h.ValidatePlugin(ctx, p.Name, p.Endpoint, p.Versions)
}

func (h kubeletHandler) Register(ctx context.Context, p watch.Plugin) error {
	return h.RegisterPlugin(ctx, p.Name, p.Endpoint, p.Versions, nil)
}

func (h kubeletHandler) DeRegister(ctx context.Context, p watch.Plugin) error {
	h.DeRegisterPlugin(ctx, p.Name, p.Endpoint)
	return nil
}

func TestKubeletHandlerInOurHost(t *testing.T) {
	const name = "adapted.csi.cleat.dev"
	n := newCSIPlugin(t)
	ourHost(t, n.registry, registration.CSIPlugin, kubeletHandler{csiplugin.PluginHandler})
	r := startRegistrar(t, n.csi(t, name, n.serveDriver(t, name, "adapted")))
	reaches(t, r, register.Registered)
	n.knows(t, name, "adapted")
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.knows(t, name, "")
}

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/kubelet/register"
	"github.com/cleatproject/cleat/kubelet/remote"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/kubernetes/cluster"
	"github.com/cleatproject/cleat/test/testkit"
)

// The kubelet and cleat host give the same results to the same plugins. Each
// plugin runs twice, once for each.
func TestRegistration(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := newCard(s, "paired", 29836, 3)
	kubelet := &side{space: s, card: c, name: "kubelet", plugins: "/var/lib/kubelet/plugins_registry", kubelet: "/var/lib/kubelet"}
	host := &side{space: s, card: c, name: "host", plugins: "/run/cleat/paired/plugins", kubelet: "/var/lib/cleat/fn-paired/kubelet"}
	host.startHost()
	results := map[string]map[string]result{}
	for _, one := range []*side{kubelet, host} {
		one.startAll()
	}
	for _, one := range []*side{kubelet, host} {
		results[one.name] = one.results()
	}
	for name, want := range expected() {
		there, here := results["kubelet"][name], results["host"][name]
		t.Logf("%s\n\tkubelet: %s\n\thost:    %s", name, there, here)
		if got := (verdict{there.step(), here.step()}); got != want {
			t.Errorf("%s: results of kubelet and host are %q, want %q", name, got, want)
		}
	}
	kubelet.shows(t, true)
	host.shows(t, true)
	for _, one := range []*side{kubelet, host} {
		one.endAll()
	}
	kubelet.shows(t, false)
	host.shows(t, false)
}

// result is the registration result that a plugin received.
type result struct {
	yes  bool
	text string
}

func (w result) String() string {
	if w.yes {
		return "registered"
	}
	return fmt.Sprintf("%q", w.text)
}

// step returns the result without the handler's own text, which differs between
// kubelet and cleat host.
func (w result) step() string {
	if w.yes {
		return "registered"
	}
	before, _, _ := strings.Cut(w.text, " with err:")
	before, _, _ = strings.Cut(before, " at socket ")
	return strings.TrimPrefix(before, "RegisterPlugin error -- ")
}

const (
	driverOfPair   = "paired.cleat.dev"
	resourceOfPair = "example.com/paired"
	sampleOfPair   = "example.com/resource" // its built-in name
)

// verdict has both results.
type verdict struct{ kubelet, host string }

// expected returns equal results, except for the differences in
// docs/plugins.md.
func expected() map[string]verdict {
	alike := func(what string) verdict { return verdict{what, what} }
	const registered, invalid, unusable = "registered", "plugin validation failed", "plugin registration failed"
	return map[string]verdict{
		driverOfPair: alike(registered), resourceOfPair: alike(registered), sampleOfPair: alike(registered),
		"wrong-version.cleat.dev": alike(invalid), "no-endpoint.cleat.dev": alike(unusable),
		"example.com/wrong-version": alike(invalid), "example.com/no-endpoint": alike(unusable), "nodomain": alike(invalid),
		"toaster.cleat.dev": alike("no handler registered for plugin type: Toaster"),
		"dra.cleat.dev":     alike(registered),
		// DRA versions are checked by the consumer of the driver.
		"dra-version.cleat.dev": {kubelet: invalid, host: registered},
	}
}

// side is one host of plugins, the kubelet or cleat host, with its plugins.
type side struct {
	*space
	card    *card
	name    string
	plugins string // directory of registration sockets
	kubelet string // the kubelet's directory

	processes []*cluster.Process
	sample    *cluster.Process
	said      []*fakePlugin
	remote    *remote.Host
}

func (d *side) dir() string { return "/run/cleat/paired/" + d.name }

func (d *side) run(name, program string, env []string, args ...string) *cluster.Process {
	d.Helper()
	p := testkit.Value(testCluster.Start("paired-"+d.name+"-"+name, program, env, args...))(d)
	d.Cleanup(func() { p.Kill() })
	d.processes = append(d.processes, p)
	return p
}

func cleatProgram() string { return filepath.Join(testCluster.Dir, "bin", "cleat") }

// startHost starts cleat host, and a stand-in for the kubelet's directory.
func (d *side) startHost() {
	d.Helper()
	for _, dir := range []string{filepath.Join(d.kubelet, "device-plugins"), filepath.Dir(d.plugins)} {
		testkit.Must(d, os.MkdirAll(dir, 0o755))
	}
	socket := "unix:///run/cleat/paired/host.d/host.sock"
	p := testkit.Value(testCluster.Start("paired-cleat-host", cleatProgram(), nil, "host", "--plugins-dir", d.plugins, "--socket", socket, "--output", "none", "--log-format", "text"))(d)
	d.Cleanup(func() {
		if err := p.Stop(); err != nil {
			d.Error(err)
		}
	})
	d.until("cleat host", func(ctx context.Context) (err error) {
		d.remote, err = remote.Dial(ctx, socket)
		return err
	})
	d.Cleanup(func() { _ = d.remote.Close() })
}

// startAll starts all plugins.
func (d *side) startAll() {
	d.Helper()
	testkit.Must(d, os.MkdirAll(d.dir(), 0o755))
	d.run("csi", cleatProgram(), nil, "csi", "--driver-name", driverOfPair, "--node-id", testCluster.Node, "--endpoint", "unix://"+d.dir()+"/csi/csi.sock",
		"--pool", d.card.dir+"/pool-"+d.name, "--state-dir", d.card.dir+"/csi-"+d.name, "--registration-dir", d.plugins,
		"--metrics-address", d.dir()+"/csi-status/status.sock")
	config := d.dir() + "/config.json"
	testkit.Must(d, os.WriteFile(config, []byte(`{"resourceList": [{"resourceName": "paired", "resourcePrefix": "example.com", "selectors": [{"rootDevices": ["`+d.card.pf.Address+`"]}]}]}`), 0o644))
	d.run("device", cleatProgram(), nil, "sriov", "plugin", "--config-file", config, "--sysfs-root", d.card.tree.Sysfs, "--kubelet-dir", d.kubelet,
		"--registration", "watcher", "--registration-dir", d.plugins, "--state-dir", d.dir()+"/plugin", "--device-info-dir", d.dir()+"/info", "--cdi-dir", d.dir()+"/cdi")
	// By default the sample plugin would register with the kubelet; with this
	// file it waits for the file's removal.
	wait := d.dir() + "/wait/here"
	testkit.Must(d, errors.Join(os.MkdirAll(filepath.Dir(wait), 0o755), os.WriteFile(wait, nil, 0o644)))
	d.sample = d.run("sample", testCluster.Programs.Path("sample-device-plugin"), []string{"PLUGIN_SOCK_DIR=" + d.plugins, "REGISTER_CONTROL_FILE=" + wait})
	for _, p := range []*fakePlugin{
		{kind: registration.CSIPlugin, name: "wrong-version.cleat.dev", versions: "2.0.0"},
		{kind: registration.CSIPlugin, name: "no-endpoint.cleat.dev", versions: "1.0.0"},
		{kind: registration.DevicePlugin, name: "example.com/wrong-version", versions: "v9"},
		{kind: registration.DevicePlugin, name: "example.com/no-endpoint", versions: "v1beta1"},
		{kind: registration.DevicePlugin, name: "nodomain", versions: "v1beta1"},
		{kind: registration.DRAPlugin, name: "dra.cleat.dev", versions: "v1.DRAPlugin"},
		{kind: registration.DRAPlugin, name: "dra-version.cleat.dev", versions: "v0.DRAPlugin"},
		{kind: "Toaster", name: "toaster.cleat.dev", versions: "1.0.0"},
	} {
		d.said = append(d.said, d.startFake(p))
	}
}

// results waits for the registration result of each plugin.
func (d *side) results() map[string]result {
	d.Helper()
	all := map[string]result{}
	for _, p := range d.said {
		select {
		case all[p.name] = <-p.results:
		case <-time.After(waitTimeout):
			d.Errorf("%[2]s got no registration result from the %[1]s", d.name, p.name)
		}
	}
	d.until("the CSI driver's result", func(ctx context.Context) error {
		var document struct{ Registration register.Status }
		if err := server.Ask(ctx, d.dir()+"/csi-status/status.sock", "/status", &document); err != nil {
			return err
		}
		switch r := document.Registration; r.State {
		case register.Registered, register.Refused:
			all[driverOfPair] = result{r.State == register.Registered, r.Error}
			return nil
		default:
			return fmt.Errorf("state %s: %s", r.State, r.Reason)
		}
	})
	// For device plugins, the result is that their devices are offered.
	for resource, count := range map[string]int{resourceOfPair: 3, sampleOfPair: 2} {
		d.until("devices of "+resource, func(ctx context.Context) error {
			have, err := d.devices(ctx, resource)
			if err == nil && have != count {
				err = fmt.Errorf("the %s offers %d", d.name, have)
			}
			return err
		})
		all[resource] = result{yes: true}
	}
	if text, err := os.ReadFile(d.sample.Log); err != nil || strings.Contains(string(text), "Registration failed") {
		d.Errorf("the sample device plugin was rejected by the %s (%v): %s", d.name, err, text)
	}
	return all
}

// devices returns the number of healthy devices of a resource.
func (d *side) devices(ctx context.Context, resource string) (healthy int, err error) {
	if d.remote == nil {
		n, err := testCluster.Client.CoreV1().Nodes().Get(ctx, testCluster.Node, metav1.GetOptions{})
		if err != nil {
			return 0, err
		}
		q := n.Status.Allocatable[corev1.ResourceName(resource)]
		return int(q.Value()), nil
	}
	all, err := d.remote.Devices(ctx, resource)
	if err != nil {
		return 0, err
	}
	for _, r := range all {
		for _, one := range r.Devices {
			if one.Healthy {
				healthy++
			}
		}
	}
	return healthy, nil
}

// shows checks what users see: the node's objects, or cleat plugins list.
func (d *side) shows(t *testing.T, there bool) {
	t.Helper()
	d.until("drivers and devices of the "+d.name+"", func(ctx context.Context) error {
		drivers, err := d.drivers(ctx)
		if err == nil && slices.Contains(drivers, driverOfPair) != there {
			err = fmt.Errorf("drivers are %q", drivers)
		}
		for _, no := range []string{"wrong-version.cleat.dev", "no-endpoint.cleat.dev"} {
			if slices.Contains(drivers, no) {
				t.Errorf("the %s shows rejected driver %s", d.name, no)
			}
		}
		if !there && err == nil {
			for _, resource := range []string{resourceOfPair, sampleOfPair} {
				if have, failed := d.devices(ctx, resource); failed == nil && have > 0 {
					err = fmt.Errorf("got %d of %s", have, resource)
				}
			}
		}
		return err
	})
}

func (d *side) drivers(ctx context.Context) (all []string, err error) {
	if d.remote == nil {
		n, err := testCluster.Client.StorageV1().CSINodes().Get(ctx, testCluster.Node, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		for _, driver := range n.Spec.Drivers {
			all = append(all, driver.Name)
		}
		return all, nil
	}
	plugins, err := d.remote.List(ctx, registration.CSIPlugin, "")
	for _, p := range plugins {
		if p.Phase == watch.Registered {
			all = append(all, p.Name)
		}
	}
	return all, err
}

// endAll stops the plugins gracefully.
func (d *side) endAll() {
	d.Helper()
	for _, p := range d.said {
		p.end()
	}
	for _, p := range d.processes {
		if err := p.Stop(); err != nil {
			d.Error(err)
		}
	}
}

// fakePlugin is a registration server without an endpoint.
type fakePlugin struct {
	registration.UnimplementedRegistrationServer
	kind, name, versions string
	endpoint             string
	results              chan result // the first one
	server               *grpc.Server
	once                 sync.Once
}

func (d *side) startFake(n *fakePlugin) *fakePlugin {
	d.Helper()
	n.endpoint, n.results, n.server = d.dir()+"/unserved.sock", make(chan result, 1), grpc.NewServer()
	socket := filepath.Join(d.plugins, strings.ReplaceAll(n.name, "/", "_")+"-reg.sock")
	l := testkit.Value(net.Listen("unix", socket))(d)
	registration.RegisterRegistrationServer(n.server, n)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := n.server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			d.Error(err)
		}
	}()
	d.Cleanup(func() {
		n.end()
		<-ended
	})
	return n
}

// end removes the socket.
func (p *fakePlugin) end() { p.server.Stop() }

func (p *fakePlugin) GetInfo(context.Context, *registration.InfoRequest) (*registration.PluginInfo, error) {
	return &registration.PluginInfo{Type: p.kind, Name: p.name, Endpoint: p.endpoint, SupportedVersions: []string{p.versions}}, nil
}

func (p *fakePlugin) NotifyRegistrationStatus(_ context.Context, s *registration.RegistrationStatus) (*registration.RegistrationStatusResponse, error) {
	p.once.Do(func() { p.results <- result{s.PluginRegistered, s.Error} })
	return &registration.RegistrationStatusResponse{}, nil
}

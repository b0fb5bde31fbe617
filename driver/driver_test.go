package driver

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// fencer is a storage that can fence.
type fencer struct{ volume.Fencer }

// acme is an engine of volumes that all nodes reach, over the reference engine. Open
// counts how often it was opened.
func acme(opened *int, change ...func(*volume.Backend)) Engine {
	backend := enginetest.NewReference().Backend()
	backend.MultiNode = true
	for _, c := range change {
		c(&backend)
	}
	return Engine{
		Name: "acme",
		Complete: func(p *Process) error {
			p.Deployment.MultiNode, p.Deployment.ControllerPublish = true, true
			return nil
		},
		Abilities: func() csi.Abilities { return csi.AbilitiesOf(backend) },
		Fences:    backend.Fencer != nil,
		Open: func(ctx context.Context, p *Process) (volume.Backend, error) {
			*opened++
			state, err := p.OpenFile(ctx, "controller")
			if err == nil {
				_, err = p.UseState(ctx, state)
			}
			return backend, err
		},
	}
}

func programOf(engines ...Engine) Program {
	return Program{Name: "acme-csi", Version: "1.2.3", DriverName: "csi.acme.example", Engines: engines}
}

// execute runs the driver until the test ends, and returns its socket.
func execute(t *testing.T, p Program, flags ...string) (socket string) {
	t.Helper()
	dir := testkit.Dir(t)
	socket = filepath.Join(dir, "run", "csi.sock")
	c := p.Command()
	c.SetArgs(append([]string{"--endpoint=unix://" + socket, "--state-dir=" + filepath.Join(dir, "state"), "--node-id=node-1", "--node-address=192.0.2.1"}, flags...))
	c.SetOut(io.Discard)
	log := testkit.NewLog(t)
	c.SetErr(log)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- c.ExecuteContext(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the driver: %v\n%s", err, log)
		}
	})
	log.WaitFor(t, "serving CSI")
	return socket
}

// All processes announce the same, although that of the node opens no engine.
func TestNodeServiceOpensNoEngine(t *testing.T) {
	announced := map[string]string{}
	for services, wantOpened := range map[string]int{"controller": 1, "node": 0} {
		opened := 0
		socket := execute(t, programOf(acme(&opened)), "--services="+services)
		identity := spec.NewIdentityClient(testkit.Dial(t, socket))
		capabilities := testkit.Value(identity.GetPluginCapabilities(t.Context(), &spec.GetPluginCapabilitiesRequest{}))(t)
		info := testkit.Value(identity.GetPluginInfo(t.Context(), &spec.GetPluginInfoRequest{}))(t)
		announced[services] = protojson.Format(capabilities) + protojson.Format(info)
		if opened != wantOpened {
			t.Errorf("the process with services %s has opened the engine %d times, want %d", services, opened, wantOpened)
		}
		if info.GetName() != "csi.acme.example" || info.GetVendorVersion() != "1.2.3" || info.GetManifest()["engine"] != "acme" {
			t.Errorf("services %s: %v", services, info)
		}
	}
	if diff := cmp.Diff(announced["controller"], announced["node"]); diff != "" {
		t.Errorf("the processes announce different things (-controller +node):\n%s", diff)
	}
}

// Fences are announced where they reach every process that can use a volume.
func TestFencesAreAnnouncedWhereTheyHold(t *testing.T) {
	storage := acme(new(int), func(b *volume.Backend) { b.Fencer = fencer{} })
	machine := acme(new(int))
	machine.Complete = nil
	const addons = "--addons-endpoint=unix:///run/acme/addons.sock"
	for name, c := range map[string]struct {
		engine Engine
		flags  string
		fence  bool
		why    string
	}{
		"storage, all":        {storage, "", true, ""},
		"storage, controller": {storage, "--services=controller", true, ""},
		"storage, node":       {storage, "--services=node", false, "controller service"},
		"machine, all":        {machine, "", true, ""},
		"machine, per node":   {machine, "--per-node", false, "--per-node"},
		"machine, controller": {machine, "--services=controller", false, "--fence-peer"},
		"with a peer":         {machine, "--services=controller --fence-peer=node=unix:///run/n.sock", true, ""},
	} {
		p := testkit.Value(programOf(c.engine).Parse(append([]string{addons, "--node-id=n"}, strings.Fields(c.flags)...)...))(t)
		if o := p.driver.fenceOffer(); o.Fence != c.fence || !strings.Contains(o.Why, c.why) {
			t.Errorf("%s: offers %+v", name, o)
		}
	}
}

// A storage that cannot shut a node out must not say that it has: the node could still
// write.
func TestEngineWithoutFencerServesNoFences(t *testing.T) {
	for _, flag := range []string{"--addons-endpoint=unix:///run/acme/addons.sock", "--fence-listen=unix:///run/acme/peer.sock"} {
		_, err := programOf(acme(new(int))).Parse(flag, "--node-id=n")
		if err == nil || !strings.Contains(err.Error(), "cannot revoke a node's access") {
			t.Errorf("%s: %v", flag, err)
		}
	}
}

// What a process without an engine announces is compared with the engine where it opens.
func TestBackendIsWhatIsAnnounced(t *testing.T) {
	sound := acme(new(int))
	for name, c := range map[string]struct {
		change func(*Engine)
		want   string // in the error; empty: none
	}{
		"sound":      {func(*Engine) {}, ""},
		"abilities":  {func(e *Engine) { e.Abilities = func() csi.Abilities { return csi.Abilities{} } }, "Engine.Abilities"},
		"fences":     {func(e *Engine) { e.Fences = true }, "Engine.Fences"},
		"deployment": {func(e *Engine) { e.Complete = nil }, "MultiNode"},
		"no backend": {func(e *Engine) {
			open := e.Open
			e.Open = func(ctx context.Context, p *Process) (volume.Backend, error) {
				b, err := open(ctx, p)
				b.Engine = nil
				return b, err
			}
		}, "no Backend.Engine"},
		"no state": {func(e *Engine) {
			e.Open = func(context.Context, *Process) (volume.Backend, error) { return volume.Backend{}, nil }
		}, "UseState"},
		"failure": {func(e *Engine) {
			e.Open = func(context.Context, *Process) (volume.Backend, error) { return volume.Backend{}, io.ErrUnexpectedEOF }
		}, io.ErrUnexpectedEOF.Error()},
	} {
		e := sound
		c.change(&e)
		p := testkit.Value(programOf(e).Parse("--node-id=n", "--services=controller", "--state-dir="+t.TempDir()))(t)
		err := p.driver.openController(t.Context())
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
		testkit.Must(t, p.Close(context.Background()))
	}
}

// An engine without Open has only the node service.
func TestEngineWithoutController(t *testing.T) {
	e := Engine{Name: "static", Abilities: func() csi.Abilities { return csi.Abilities{} }, Complete: func(p *Process) error {
		p.Deployment.MultiNode, p.Deployment.Static = true, true
		return nil
	}}
	p := testkit.Value(programOf(e).Parse("--node-id=n"))(t)
	if want := (csi.Services{Node: true}); p.Deployment.Services != want || p.driver.services != "node" {
		t.Errorf("services %+v (%s)", p.Deployment.Services, p.driver.services)
	}
	if _, err := programOf(e).Parse("--node-id=n", "--services=controller"); err == nil || !strings.Contains(err.Error(), "only the node service") {
		t.Errorf("got %v", err)
	}
}

// The settings of an engine that is not selected are refused, unless the selected one
// has them too.
func TestFlagsOfOtherEngines(t *testing.T) {
	with := func(name string, flags ...string) Engine {
		e := acme(new(int))
		e.Name, e.Flags = name, func(fs *pflag.FlagSet) {
			for _, f := range flags {
				fs.String(f, "", "")
			}
		}
		return e
	}
	p := programOf(with("a", "shared", "own"), with("b", "shared"))
	for args, want := range map[string]string{
		"--own=x --shared=y":  "",
		"--engine=b --own=x":  "--own is a setting of engine a",
		"--engine=c":          "use one of a, b",
		"--engine=b --size=x": "unknown flag",
	} {
		_, err := p.Parse(append(strings.Fields(args), "--node-id=n")...)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", args, err, want)
		}
	}
}

// A node admits volumes when its engine does, and runs what that gives it.
func TestNodeOfAnEngine(t *testing.T) {
	ran := make(chan struct{})
	refused := errs.Errorf(errs.Unavailable, "not yet")
	e := acme(new(int))
	e.Node = func(_ context.Context, p *Process, c *node.Config) error {
		p.Admit = func(context.Context) error { return refused }
		p.Background("task", func(context.Context) error { close(ran); return nil })
		return nil
	}
	socket := execute(t, programOf(e), "--services=node")
	<-ran
	_, err := spec.NewNodeClient(testkit.Dial(t, socket)).NodePublishVolume(t.Context(), &spec.NodePublishVolumeRequest{
		VolumeId: "v", TargetPath: "/t", StagingTargetPath: "/s",
		PublishContext:   map[string]string{"grantedTo": "node-1"},
		VolumeCapability: &spec.VolumeCapability{AccessType: &spec.VolumeCapability_Mount{Mount: &spec.VolumeCapability_MountVolume{}}, AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER}},
	})
	if err == nil || !strings.Contains(err.Error(), "not yet") {
		t.Errorf("a volume is published: %v", err)
	}
}

// The error of a task names it.
func TestBackgroundFails(t *testing.T) {
	p := testkit.Value(programOf(acme(new(int))).Parse("--node-id=n"))(t)
	p.Background("sound", func(ctx context.Context) error { <-ctx.Done(); return nil })
	p.Background("poller", func(context.Context) error { return io.ErrUnexpectedEOF })
	if err := p.driver.runBackground(t.Context()); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), "poller") {
		t.Errorf("got %v", err)
	}
}

// A node records fences on a full disk, too.
func TestReserveOfFences(t *testing.T) {
	p := testkit.Value(programOf(acme(new(int))).Parse("--node-id=n", "--services=node", "--state-dir="+t.TempDir()))(t)
	t.Cleanup(func() { testkit.Must(t, p.Close(context.Background())) })
	testkit.Must(t, p.driver.openController(t.Context()))
	var s unix.Stat_t
	testkit.Must(t, unix.Stat(filepath.Join(p.StateDir(), "fences.db"), &s))
	if s.Blocks*512 < 4<<20 {
		t.Errorf("fences.db has %d bytes on the disk", s.Blocks*512)
	}
}

type sick struct {
	volume.Health
	conditions []volume.Condition
}

func (s sick) StorageHealth(context.Context) ([]volume.Condition, error) { return s.conditions, nil }

// A storage that cannot be used makes the process unready, and is in the metrics.
func TestHealthOfTheStorage(t *testing.T) {
	p := testkit.Value(programOf(acme(new(int))).Parse("--node-id=n"))(t)
	for _, severity := range []volume.Severity{volume.Degraded, volume.Inaccessible, volume.DataLoss} {
		p.driver.backend.Health = sick{conditions: []volume.Condition{{Severity: severity, Reason: "Reason", Message: "all disks"}}}
		err := p.driver.healthy(t.Context())
		if ready := severity == volume.Degraded; (err == nil) != ready {
			t.Errorf("%s: ready %t: %v", severity, ready, err)
		}
	}
	testkit.Must(t, p.ExportHealth("acme_health", "help", nil, p.driver.backend.Health))
	families := testkit.Value(p.driver.Metrics.Gather())(t)
	if len(families) != 1 || len(families[0].GetMetric()) != 1 || families[0].GetMetric()[0].GetGauge().GetValue() != 1 {
		t.Errorf("metrics %v", families)
	}
}

// asked is a storage whose health a function returns.
type asked struct {
	volume.Health
	answer func(context.Context) ([]volume.Condition, error)
}

func (a asked) StorageHealth(ctx context.Context) ([]volume.Condition, error) { return a.answer(ctx) }

// A storage whose health is not known does not look well in the metrics, and one that
// gives up after 5 s has the reason of the engine, by which alerts find it.
func TestHealthThatIsNotKnown(t *testing.T) {
	for want, answer := range map[string]func(context.Context) ([]volume.Condition, error){
		volume.ReasonStorageUnreachable: func(context.Context) ([]volume.Condition, error) {
			return nil, errors.New("the records cannot be read")
		},
		volume.ReasonClusterUnreachable: func(ctx context.Context) ([]volume.Condition, error) {
			time.Sleep(time.Millisecond)
			short, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			<-short.Done()
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			return []volume.Condition{{Severity: volume.Inaccessible, Reason: volume.ReasonClusterUnreachable}}, nil
		},
	} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				registry := prometheus.NewRegistry()
				testkit.Must(t, registry.Register(healthCollector{prometheus.NewDesc("acme_health", "help", []string{"status", "reason"}, nil), asked{answer: answer}}))
				if n := testkit.Metric(t, registry, "acme_health", "status="+string(volume.Inaccessible), "reason="+want); n != 1 {
					t.Errorf("metric %v", n)
				}
				if families := testkit.Value(registry.Gather())(t); len(families) != 1 || len(families[0].GetMetric()) != 1 {
					t.Errorf("%v", families)
				}
			})
		})
	}
}

// The texts of flags that a program replaces, and its defaults.
func TestHelpOfAProgram(t *testing.T) {
	p := programOf(acme(new(int)))
	p.Usage = map[string]string{"topology": "zones of acme"}
	c := p.Command()
	if got := c.Flags().Lookup("topology").Usage; !strings.HasPrefix(got, "zones of acme") {
		t.Errorf("--topology: %q", got)
	}
	defaults := map[string]string{}
	for _, name := range []string{"engine", "driver-name", "endpoint", "state-dir"} {
		defaults[name] = c.Flags().Lookup(name).DefValue
	}
	want := map[string]string{"engine": "acme", "driver-name": "csi.acme.example", "endpoint": "unix:///run/acme-csi/csi.sock", "state-dir": "/var/lib/acme-csi"}
	if diff := cmp.Diff(want, defaults, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
	var _ server.Program = p.driver()
}

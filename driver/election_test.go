package driver

import (
	"context"
	"io"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/csi-addons/spec/lib/go/identity"
	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/kubeconfig"
	"github.com/cleatproject/cleat/internal/lease"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// idleFencer has nothing to fence.
type idleFencer struct{ volume.Fencer }

func (idleFencer) Apply(context.Context, volume.FenceSet) error { return nil }

func (idleFencer) Held(context.Context) ([]netip.Prefix, error) { return nil, nil }

// elected is an engine with a Fencer whose state is in a ConfigMap, as --acme-state says.
func elected(opened *int) Engine {
	backend := enginetest.NewReference().Backend()
	backend.MultiNode, backend.Fencer = true, idleFencer{}
	e := acme(new(int), func(b *volume.Backend) { b.Fencer = backend.Fencer })
	f := &StateFlags{Prefix: "acme-"}
	e.Flags = func(fs *pflag.FlagSet) { f.AddFlags(fs) }
	e.Open = func(ctx context.Context, p *Process) (volume.Backend, error) {
		*opened++
		state, err := p.OpenState(ctx, f)
		if err == nil {
			_, err = p.UseState(ctx, state)
		}
		return backend, err
	}
	return e
}

// A replica without the Lease opens nothing, is ready for updates, and has its sidecars
// wait. It serves once the Lease is given back, and ends at once when it cannot renew it.
func TestElection(t *testing.T) {
	t.Parallel()
	leases, maps := kubeapi.New(t, kubeapi.Leases()), kubeapi.New(t, kubeapi.ConfigMaps())
	ctx := testkit.Context(t)
	other := lease.New(lease.Config{
		Client: testkit.Value(dynamic.NewForConfig(testkit.Value(kubeconfig.Load(leases.Kubeconfig(t), ""))(t)))(t), Namespace: "cleat-system", Name: "acme",
		Identity: "other", Duration: time.Hour, Logger: slog.New(slog.DiscardHandler),
	})
	testkit.Must(t, other.Acquire(ctx))

	dir, opened := testkit.Dir(t), 0
	state, socket, addons := filepath.Join(dir, "state"), filepath.Join(dir, "run", "csi.sock"), filepath.Join(dir, "addons", "addons.sock")
	c := programOf(elected(&opened)).Command()
	c.SetArgs([]string{"--endpoint=unix://" + socket, "--addons-endpoint=unix://" + addons, "--state-dir=" + state, "--node-id=node-1", "--services=controller",
		"--acme-state=configmap:cleat-system/state", "--acme-kubeconfig=" + maps.Kubeconfig(t),
		"--lease=cleat-system/acme", "--lease-kubeconfig=" + leases.Kubeconfig(t), "--lease-duration=10s"})
	c.SetOut(io.Discard)
	log := testkit.NewLog(t)
	c.SetErr(log)
	done := make(chan error, 1)
	go func() { done <- c.ExecuteContext(t.Context()) }()

	probe := func() (ready bool, err error) {
		answer, err := spec.NewIdentityClient(testkit.Dial(t, socket)).Probe(ctx, &spec.ProbeRequest{})
		return answer.GetReady().GetValue(), err
	}
	var answer struct{ Ready bool }
	testkit.EventuallyNil(t, "the replica waits", func() error {
		if err := server.Ask(ctx, filepath.Join(state, server.StatusName), "/readyz", &answer); err != nil {
			return err
		}
		if !answer.Ready {
			return errs.Errorf(errs.Unavailable, "it is not ready")
		}
		return nil
	})
	if ready, err := probe(); ready || err != nil {
		t.Errorf("sidecars do not wait: ready %t, %v", ready, err)
	}
	if info, err := spec.NewIdentityClient(testkit.Dial(t, socket)).GetPluginInfo(ctx, &spec.GetPluginInfoRequest{}); err != nil || info.GetName() != "csi.acme.example" {
		t.Errorf("GetPluginInfo, before Probe: %v, %v", info, err)
	}
	a, err := identity.NewIdentityClient(testkit.Dial(t, addons)).Probe(ctx, &identity.ProbeRequest{})
	if err != nil || a.GetReady() == nil || a.GetReady().GetValue() {
		t.Errorf("the sidecar of CSI-Addons does not wait: %v, %v", a, err)
	}
	if opened != 0 {
		t.Error("a replica that waits has opened the engine")
	}

	testkit.Must(t, other.Release(ctx))
	log.WaitFor(t, "serving CSI")
	if ready, err := probe(); !ready || err != nil || opened != 1 {
		t.Errorf("ready %t, %v, opened %d times", ready, err, opened)
	}
	leases.Refuse(500)
	testkit.WantError(t, "a replica that lost the Lease", testkit.Receive(t, "its end", done), nil, "was not renewed in time")
}

func TestElectionFlags(t *testing.T) {
	for flags, want := range map[string]string{
		"--lease=acme":                     "NAMESPACE/NAME",
		"--lease=a/b/c":                    "NAMESPACE/NAME",
		"--lease=a/b --services=all":       "--services controller",
		"--lease=a/b --lease-duration=1ms": "positive number of seconds",
		"--lease-kubeconfig=/k":            "requires --lease",
	} {
		args := append([]string{"--services=controller", "--node-id=n"}, strings.Fields(flags)...)
		testkit.WantError(t, flags, testkit.Err(programOf(elected(new(int))).Parse(args...)), nil, want)
	}
}

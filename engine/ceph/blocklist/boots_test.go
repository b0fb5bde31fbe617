package blocklist

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	addons "github.com/csi-addons/spec/lib/go/fence"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/enforce"
	"github.com/cleatproject/cleat/fence/service"
	"github.com/cleatproject/cleat/internal/bootlease"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/internal/store/storetest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
	"github.com/cleatproject/cleat/volume"
)

// outage is a node that gets a volume while the controller is away.
type outage struct {
	*testing.T
	api        *kubeapi.Server
	kubeconfig string
	cluster    *fakeCluster
	object     *storetest.Object
}

// controller starts one, with CSI-Addons. Clients that the last one listed longer
// than expiry ago were possibly missed.
func (o *outage) controller(expiry time.Duration) (*Fencer, *service.Server) {
	o.Helper()
	db := testkit.Value(store.OpenShared(o.Context(), "state", o.object, store.Options{Role: "grants", Version: 1}))(o)
	c := Config{
		Cluster: o.cluster, Grants: ledger.New(db), Database: db, Expiry: expiry, Boots: o.leases().All,
		Logger: slog.New(slog.NewTextHandler(o.Output(), nil)),
	}
	f := New(c)
	testkit.Must(o, f.Start(o.Context()))
	operations := op.New(context.WithoutCancel(o.Context()), 20*time.Second)
	o.Cleanup(func() { testkit.Must(o, operations.Close(context.Background())) })
	e := testkit.Value(enforce.New(enforce.Config{
		Ledger: c.Grants.(*ledger.Ledger), Operations: operations, Boots: c.Boots, Logger: c.Logger, Locals: []enforce.Local{{Name: "ceph", Fencer: f}},
	}))(o)
	testkit.Must(o, e.Restore(o.Context()))
	return f, testkit.Value(service.New(service.Config{Name: "csi.cleat.dev", Offer: service.Offer{Fence: true}, Enforcer: e}))(o)
}

func (o *outage) leases() *bootlease.Leases {
	o.Helper()
	return testkit.Value(bootlease.New(bootlease.Config{Kubeconfig: o.kubeconfig, Namespace: kubeapi.Leases().Namespace, Prefix: "cleat-boot"}))(o)
}

// boot starts the node service of node a, and returns once it attaches volumes.
func (o *outage) boot(id, machineID string, isUsed bool) {
	o.Helper()
	root := o.TempDir()
	for path, text := range map[string]string{
		"proc/sys/kernel/random/boot_id": id, filepath.Join("proc", "1", "root", "etc", "machine-id"): machineID,
		"sys/class/dmi/id/product_uuid": "4c4c4544-0042-3510-8052-b4c04f564433",
	} {
		path = filepath.Join(root, path)
		testkit.Must(o, os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
	}
	r := testkit.Value(bootlease.NewReporter(bootlease.ReporterConfig{
		Leases: o.leases(), Node: "a", Dir: root, Root: root, Wait: testkit.Timeout,
		IsUsed: func(context.Context) (bool, error) { return isUsed, nil },
	}))(o)
	testkit.Must(o, r.Run(o.Context()), r.Admit(o.Context()))
}

// The controller was away while node a attached a device and lost its network: its
// instance is in no record. NetworkFence fences the node, and unfences it after a
// reboot without confirmation, and only then.
func TestUnfenceAfterRebootWithoutConfirmation(t *testing.T) {
	const machine, another = "0123456789abcdef0123456789abcdef", "f123456789abcdef0123456789abcdef"
	for name, c := range map[string]struct {
		after func(o *outage)
		want  string // in the error of Unfence; empty: none
	}{
		"rebooted":            {func(o *outage) { o.boot("boot-2", machine, false) }, ""},
		"rebooted twice":      {func(o *outage) { o.boot("boot-2", machine, true); o.boot("boot-3", machine, false) }, ""},
		"only disconnected":   {func(*outage) {}, "node a, volumes v"},
		"the plugin restarts": {func(o *outage) { o.boot("boot-1", machine, true) }, "a reboot is noticed"},
		"a late report":       {func(o *outage) { o.boot("boot-2", machine, true) }, "node a, volumes v"},
		"another machine":     {func(o *outage) { o.boot("boot-2", another, false) }, "node a, volumes v"},
		"no API server": {func(o *outage) {
			o.boot("boot-2", machine, false)
			o.api.Refuse(500)
		}, "could not be read"},
		"a new Lease": {func(o *outage) {
			o.api.Delete("cleat-boot.a")
			o.boot("boot-2", machine, false)
		}, "node a, volumes v"},
	} {
		t.Run(name, func(t *testing.T) {
			api := kubeapi.New(t, kubeapi.Leases())
			o := &outage{T: t, api: api, kubeconfig: api.Kubeconfig(t), cluster: newFake(2), object: storetest.NewObject(store.ErrChanged)}
			a := clientOf("a", "192.0.2.1")
			o.boot("boot-1", machine, false)
			first, _ := o.controller(time.Hour)
			testkit.Must(t, first.Record(t.Context()))
			testkit.Value(first.ledger().Grant(t.Context(), volume.Grant{Volume: "v", Client: a, Mode: "SINGLE_NODE_WRITER/block", Granted: time.Now()}))(t)

			// The controller ends. The node attaches the volume with nonce 33, and loses its
			// network until the cluster no longer lists it.
			second, fences := o.controller(time.Nanosecond)
			cidrs := []*addons.CIDR{{Cidr: "192.0.2.1/32"}}
			testkit.Value(fences.FenceClusterNetwork(t.Context(), &addons.FenceClusterNetworkRequest{Cidrs: cidrs}))(t)
			testkit.Must(t, second.ledger().Revoke(t.Context(), "v", "a", nil))
			b := volume.Grant{Volume: "v", Client: volume.Client{Node: "b", Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.2")}}, Mode: "SINGLE_NODE_WRITER/block", Granted: time.Now()}
			testkit.Value(second.ledger().Grant(t.Context(), b))(t)
			_, err := fences.UnfenceClusterNetwork(t.Context(), &addons.UnfenceClusterNetworkRequest{Cidrs: cidrs})
			testkit.WantError(t, "Unfence before the reboot", err, errs.Precondition, "node a, volumes v", "a reboot is noticed")

			c.after(o)
			third, fences := o.controller(time.Hour)
			_, err = fences.UnfenceClusterNetwork(t.Context(), &addons.UnfenceClusterNetworkRequest{Cidrs: cidrs})
			if c.want != "" {
				testkit.WantError(t, "Unfence", err, errs.Precondition, c.want)
			} else {
				testkit.Must(t, err)
			}
			want := 0 // OSDs that accept the device that no record has
			if c.want == "" {
				want = len(o.cluster.osds)
			}
			if n := o.cluster.accepts("192.0.2.1", 33); n != want {
				t.Errorf("%d OSDs accept the device, want %d", n, want)
			}
			if _, err := third.ledger().Grant(t.Context(), volume.Grant{Volume: "w", Client: a, Mode: "SINGLE_NODE_WRITER/block", Granted: time.Now()}); (err == nil) != (c.want == "") {
				t.Errorf("a new grant: %v", err)
			}
		})
	}
}

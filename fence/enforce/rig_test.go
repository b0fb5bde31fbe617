package enforce

import (
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/fence/fencetest"
	"github.com/cleatproject/cleat/fence/plan"
	"github.com/cleatproject/cleat/fence/request"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is an enforcer with what a new process would find.
type rig struct {
	t       *testing.T
	path    string
	network *fencetest.Network
	peers   []Peer
	bounds  Bounds
	own     []netip.Addr
	boots   func(context.Context) (map[string]volume.Boot, error)

	*Enforcer
	store      *store.Store
	ledger     *ledger.Ledger
	operations *op.Operations
	registry   *prometheus.Registry
}

func newRig(t *testing.T, change ...func(*rig)) *rig {
	t.Helper()
	r := &rig{t: t, path: filepath.Join(t.TempDir(), "fences.db"), network: fencetest.NewNetwork()}
	for _, f := range change {
		f(r)
	}
	r.start()
	t.Cleanup(func() { r.stop() })
	return r
}

func (r *rig) start() {
	r.t.Helper()
	r.store = testkit.Value(store.Open(r.t.Context(), r.path, store.Options{Role: "fences", Version: 1}))(r.t)
	r.ledger = ledger.New(r.store)
	r.operations = op.New(context.WithoutCancel(r.t.Context()), 20*time.Second)
	r.registry = prometheus.NewRegistry()
	c := Config{
		Ledger: r.ledger, Operations: r.operations, Peers: r.peers, Bounds: r.bounds, Boots: r.boots, Interval: 5 * time.Millisecond,
		Metrics: r.registry, Logger: slog.New(slog.NewTextHandler(r.t.Output(), nil)),
	}
	if r.network != nil {
		c.Locals, c.Changed = []Local{{Name: "host", Fencer: r.network}}, r.network.Changed()
	}
	if r.own != nil {
		c.Network = func(context.Context) (request.Network, error) { return request.Network{Own: r.own}, nil }
	}
	r.Enforcer = testkit.Value(New(c))(r.t)
	testkit.Must(r.t, r.Restore(r.t.Context()))
}

func (r *rig) stop() {
	r.t.Helper()
	if err := r.operations.Close(context.Background()); err != nil {
		r.t.Error(err)
	}
	if err := r.store.Close(); err != nil {
		r.t.Error(err)
	}
}

func (r *rig) restart() { r.t.Helper(); r.stop(); r.start() }

func (r *rig) guard() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = r.Guard(ctx) }()
	return func() { cancel(); <-ended }
}

// timesOut makes a call that cannot succeed, with longer timeouts until the
// error has the reason.
func (r *rig) timesOut(on string, call func(context.Context, plan.Request) error, a plan.Request) error {
	r.t.Helper()
	former := r.config.Bounds.End
	defer func() { r.config.Bounds.End = former }()
	for end := 50 * time.Millisecond; end < time.Minute; end *= 2 {
		r.config.Bounds.End = end
		if err := call(r.t.Context(), a); err == nil || strings.Contains(err.Error(), on) {
			return err
		}
	}
	r.t.Fatalf("it never came to wait for %q", on)
	return nil
}

func (r *rig) connect(client string) *fencetest.Session {
	r.t.Helper()
	return testkit.Value(r.network.Connect(netip.MustParseAddr(client)))(r.t)
}

func (r *rig) phases() string {
	r.t.Helper()
	fences := testkit.Value(r.ledger.Fences(r.t.Context()))(r.t)
	var all []string
	for _, f := range fences {
		all = append(all, f.Block.String()+" "+f.Owner.Digest+" "+string(f.Phase))
	}
	return strings.Join(all, ", ")
}

func (r *rig) held() string {
	r.t.Helper()
	held := testkit.Value(r.network.Held(r.t.Context()))(r.t)
	var all []string
	for _, b := range held {
		all = append(all, b.String())
	}
	return strings.Join(all, " ")
}

func req(owner string, blocks ...string) plan.Request {
	a := plan.Request{Owner: volume.FenceOwner{Digest: owner}}
	for _, b := range blocks {
		a.Blocks = append(a.Blocks, netip.MustParsePrefix(b))
	}
	return a
}

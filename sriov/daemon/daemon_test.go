package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/kubeapi"
)

type doubleGate struct {
	mu      sync.Mutex
	claim   *gate.Claim
	history []string
	changed chan struct{}
	refuse  error
	enabled func() // before Enable
}

func (g *doubleGate) Enable(c gate.Claim) {
	if g.enabled != nil {
		g.enabled()
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.claim = &c
	call := fmt.Sprintf("enable %d", c.Generation)
	if len(c.Closed) > 0 {
		call = fmt.Sprintf("close %d", c.Generation)
	}
	if len(g.history) == 0 || g.history[len(g.history)-1] != call {
		g.history = append(g.history, call)
	}
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

func (g *doubleGate) Disable(context.Context) (gate.Withdrawal, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.history = append(g.history, "disable")
	if g.refuse != nil {
		return gate.Withdrawal{}, g.refuse
	}
	g.claim = nil
	return gate.Withdrawal{Acknowledged: true, Confirmed: true}, nil
}

func (g *doubleGate) Status() control.RenewerStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	return control.RenewerStatus{State: control.StateHeld, Desired: g.claim, Held: g.claim, Plugin: gate.Status{Withdrawn: g.claim != nil && len(g.claim.Closed) > 0}}
}

func (g *doubleGate) Changed() <-chan struct{} { return g.changed }

func (g *doubleGate) open() *gate.Claim {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.claim
}

func (g *doubleGate) calls() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.Clone(g.history)
}

type doublePods struct {
	mu    sync.Mutex
	held  []podresources.Holder
	fails int // calls of Held from now on
}

func (p *doublePods) Held(context.Context) ([]podresources.Holder, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fails > 0 {
		p.fails--
		return nil, errors.New("the kubelet limits the rate of calls")
	}
	return slices.Clone(p.held), nil
}

func (p *doublePods) Offered(context.Context) (map[string][]string, error) { return nil, nil }

type rig struct {
	*testing.T
	dir    string
	node   *node
	gate   *doubleGate
	pods   *doublePods
	config Config
	daemon *Daemon
	stop   func()
}

func newRig(t *testing.T, mode Mode) *rig {
	t.Helper()
	r := &rig{T: t, dir: t.TempDir(), node: newNode(), gate: &doubleGate{changed: make(chan struct{}, 1)}, pods: &doublePods{}}
	s := testkit.Open(store.Open(t.Context(), filepath.Join(r.dir, "daemon.db"), store.Options{Role: Role, Version: Version}))(t)
	r.config = Config{
		Rules: Rules{Mode: mode, Node: "n1", Spread: func(time.Duration) time.Duration { return 20 * time.Millisecond }},
		Store: s, Source: source.NewFile(r.path(), nil), Gate: r.gate, Host: r.node, Pods: r.pods,
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
	r.node.check = func(s plan.Step) {
		if c := r.gate.open(); c != nil {
			pf, _ := r.node.find(s.Function())
			if c.Closed[pf.Address] == "" && c.Closed[s.Function()] == "" {
				t.Errorf("%s while the gate is open for it: %v", s, c.Closed)
			}
		}
	}
	return r
}

func (r *rig) path() string { return filepath.Join(r.dir, "state.yaml") }

func (r *rig) desired(generation int64, spec nodestate.Spec) {
	r.Helper()
	text := testkit.Value(yaml.Marshal(map[string]any{"metadata": map[string]any{"name": "n1", "generation": generation}, "spec": spec}))(r)
	testkit.Must(r, os.WriteFile(r.path()+".tmp", text, 0o600), os.Rename(r.path()+".tmp", r.path()))
}

// The end of a daemon closes the gate, without a hold time.
func (r *rig) start() {
	r.Helper()
	r.daemon = testkit.Value(New(r.config))(r)
	end := testkit.Go(r, r.daemon.Run)
	r.stop = sync.OnceFunc(func() {
		end()
		if r.Failed() {
			r.Logf("at the end: %+v, calls of the gate: %v", r.daemon.Status(), r.gate.calls())
		}
		r.gate.mu.Lock()
		r.gate.claim = nil
		r.gate.mu.Unlock()
	})
	r.Cleanup(r.stop)
}

func (r *rig) isServing(generation int64) {
	r.Helper()
	testkit.Eventually(r, fmt.Sprintf("serving generation %d", generation), func() bool {
		c, s := r.gate.open(), r.daemon.Status()
		return c != nil && c.Generation == generation && s.Phase == Serving && s.Generation == generation
	})
	spec, _, err := nodestate.Parse(testkit.Value(os.ReadFile(r.path()))(r))
	testkit.Must(r, err)
	state, _ := r.node.Read(r.Context())
	if p := plan.Compute(spec.Spec, state, plan.Options{}); !p.Done() {
		r.Errorf("serving with %v, %v left", p.Steps, p.Problems)
	}
}

func (r *rig) phase(p Phase) (s Status) {
	r.Helper()
	testkit.Eventually(r, string(p), func() bool { s = r.daemon.Status(); return s.Phase == p })
	return s
}

func TestApply(t *testing.T) {
	r := newRig(t, Apply)
	r.config.PluginConfig = filepath.Join(r.dir, "config.json")
	testkit.Must(t, os.WriteFile(r.config.PluginConfig, []byte("{}"), 0o600))
	r.config.Metrics = prometheus.NewPedanticRegistry()
	r.start()
	r.phase(Waiting)
	testkit.Eventually(r, "closed without a node state", func() bool { return len(r.gate.calls()) == 1 })
	r.desired(1, specOf(3, 9000))
	r.isServing(1)
	const ofBraces = "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
	if c := r.gate.open(); c.Hash != ofBraces || c.Node != "n1" {
		t.Errorf("%+v", c)
	}
	r.desired(2, specOf(2, 9000))
	r.isServing(2)
	if got := r.gate.calls(); !slices.Equal(got, []string{"disable", "enable 1", "close 2", "enable 2"}) {
		t.Errorf("calls of the gate: %v", got)
	}
	if err := r.daemon.Check(t.Context()); err != nil {
		t.Errorf("not ready: %v", err)
	}
	testkit.Must(t, os.WriteFile(r.config.PluginConfig, []byte("{ }"), 0o600))
	testkit.Eventually(r, "another hash", func() bool { c := r.gate.open(); return c != nil && c.Hash != ofBraces })
	testkit.Must(t, os.Remove(r.path()))
	r.phase(Waiting)
	testkit.Eventually(r, "closed", func() bool { return r.gate.open() == nil })
	testkit.WantError(t, "ready without a node state", r.daemon.Check(t.Context()), nil)
	r.stop()
	families, err := r.config.Metrics.(*prometheus.Registry).Gather()
	if err != nil {
		t.Error(err)
	}
	series := map[string]int{}
	for _, f := range families {
		series[f.GetName()] = len(f.GetMetric())
	}
	if series[namespace+"phase"] != len(Phases()) || series[namespace+"step_duration_seconds"] < 3 || series[namespace+"generation"] != 1 {
		t.Errorf("%v", series)
	}
}

// The next process first closes the gate, then continues; a third one has
// nothing to do.
func TestRestartAtEachStep(t *testing.T) {
	for n := 1; ; n++ {
		r := newRig(t, Apply)
		r.desired(1, specOf(3, 9000))
		killed := make(chan struct{})
		half := n%2 == 0
		count := 0
		r.node.fail = func(s plan.Step) error {
			if count++; count < n {
				return nil
			} else if count > n {
				return errors.New("killed")
			}
			if half { // the process ended before the result
				if err := r.node.do(s); err != nil {
					t.Error(err)
				}
			}
			close(killed)
			return errors.New("killed")
		}
		r.start()
		last := false
		testkit.Eventually(r, "a step, or the end", func() bool {
			select {
			case <-killed:
				return true
			default:
				last = r.daemon.Status().Phase == Serving
				return last
			}
		})
		r.stop()
		if last {
			if n < 5 {
				t.Errorf("only %d steps", n)
			}
			return
		}
		r.node.fail = nil
		r.gate.history = nil
		interrupted := testkit.Value(load(t.Context(), r.config.Store))(t).Applying
		r.start()
		r.isServing(1)
		if calls := r.gate.calls(); interrupted && calls[0] != "disable" {
			t.Errorf("after step %d: %v", n, calls)
		}
		r.stop()
		r.gate.history = nil
		r.start()
		r.isServing(1)
		if calls := r.gate.calls(); !slices.Equal(calls, []string{"enable 1"}) {
			t.Errorf("with nothing to do: %v", calls)
		}
		r.stop()
	}
}

func TestStopDuringRecord(t *testing.T) {
	r := newRig(t, Apply)
	held, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	hold := sync.OnceFunc(func() {
		go func() {
			ended <- r.config.Store.Update(t.Context(), func(*store.Tx) error {
				close(held)
				<-release
				return nil
			})
		}()
		<-held
	})
	r.gate.enabled = func() {
		if state, _ := r.node.Read(t.Context()); plan.Compute(specOf(3, 9000), state, plan.Options{}).Done() {
			hold()
		}
	}
	r.config.Watch = func(ctx context.Context, _ func()) error {
		<-ctx.Done()
		close(release)
		return ctx.Err()
	}
	r.desired(1, specOf(3, 9000))
	r.start()
	r.isServing(1)
	r.stop()
	testkit.Must(t, <-ended)
	if record, err := load(t.Context(), r.config.Store); err != nil || record.Applying || record.Generation != 1 {
		t.Errorf("after an end, on record is %+v, %v", record, err)
	}
}

func TestStepThatFails(t *testing.T) {
	r := newRig(t, Apply)
	fails := make(chan bool, 1)
	fails <- true
	r.node.fail = func(plan.Step) error {
		fail := <-fails
		fails <- fail
		if fail {
			return errors.New("write error: cannot allocate memory")
		}
		return nil
	}
	r.desired(1, specOf(2, 0))
	r.start()
	if s := r.phase(Failed); !strings.Contains(s.Reason, "create 2 virtual functions on "+pf0) || !strings.Contains(s.Reason, "cannot allocate memory") {
		t.Errorf("%+v", s)
	}
	if c := r.gate.open(); c == nil || c.Closed[pf0] == "" || c.Closed[pf1] != "" {
		t.Errorf("the gate is open for %+v, want all but %s", c, pf0)
	}
	<-fails
	fails <- false
	r.isServing(1)
}

func TestWaitsForPods(t *testing.T) {
	r := newRig(t, Apply)
	r.desired(1, specOf(2, 0))
	r.start()
	r.isServing(1)
	r.pods.mu.Lock()
	r.pods.held = []podresources.Holder{{Resource: "example.com/net", ID: vfAddress(pf0, 0), Namespace: "ns", Pod: "p", Container: "c"}}
	r.pods.mu.Unlock()
	r.desired(2, specOf(4, 0))
	if s := r.phase(Blocked); len(s.Held) != 1 || s.Held[0].Pod != "p" {
		t.Errorf("%+v", s)
	}
	r.pods.mu.Lock()
	r.pods.held = nil
	r.pods.mu.Unlock()
	r.isServing(2)
}

func TestFollowTheOperator(t *testing.T) {
	r := newRig(t, Follow)
	api := kubeapi.New(t, kubeapi.NodeStates())
	spec := func(vfs int) map[string]any {
		text := testkit.Value(yaml.Marshal(specOf(vfs, 0)))(t)
		var m map[string]any
		testkit.Must(t, yaml.Unmarshal(text, &m))
		return m
	}
	cluster := testkit.Value(source.NewCluster(source.ClusterConfig{Kubeconfig: api.Kubeconfig(t), Node: "n1"}))(t)
	r.config.Source = cluster
	configure := func(vfs int) {
		r.node.change(func(*plan.State) {
			for range 4 {
				for _, s := range plan.Compute(specOf(vfs, 0), r.node.copy(), plan.Options{}).Steps {
					if err := r.node.do(s); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
	r.start()
	api.SetSpec("n1", spec(2))
	r.phase(Pending)
	api.SetStatus("n1", map[string]any{"syncStatus": "InProgress"})
	configure(2)
	api.SetStatus("n1", map[string]any{"syncStatus": "Succeeded"})
	testkit.Eventually(r, "open", func() bool { return r.gate.open() != nil })
	began := time.Now()
	api.SetSpec("n1", spec(3))
	testkit.Eventually(r, "closed", func() bool { return r.gate.open() == nil })
	t.Logf("closed %s after the change", time.Since(began))
	r.phase(Pending)
	if s := r.daemon.Status(); s.Generation != 2 || r.gate.open() != nil { // old status
		t.Errorf("%+v", s)
	}
	api.SetStatus("n1", map[string]any{"syncStatus": "InProgress"})
	configure(3)
	api.SetStatus("n1", map[string]any{"syncStatus": "Succeeded"})
	testkit.Eventually(r, "open again", func() bool { c := r.gate.open(); return c != nil && c.Generation == 2 })
	uid := r.gate.open().UID
	api.Delete("n1")
	testkit.Eventually(r, "closed", func() bool { return r.gate.open() == nil })
	api.SetSpec("n1", spec(3))
	api.SetStatus("n1", map[string]any{"syncStatus": "Succeeded"})
	testkit.Eventually(r, "open for another object", func() bool { c := r.gate.open(); return c != nil && c.UID != uid })
	if len(r.node.steps) != 0 {
		t.Errorf("it changed the node: %v", r.node.steps)
	}
}

func TestReports(t *testing.T) {
	r := newRig(t, Apply)
	api := kubeapi.New(t, kubeapi.NodeStates())
	cluster := testkit.Value(source.NewCluster(source.ClusterConfig{Kubeconfig: api.Kubeconfig(t), Node: "n1"}))(t)
	r.config.Source, r.config.Report = cluster, cluster.UpdateStatus
	fail := make(chan struct{})
	r.node.fail = func(plan.Step) error {
		select {
		case <-fail:
			return nil
		default:
			return errors.New("EBUSY")
		}
	}
	status := func() map[string]any {
		o, _ := api.Get("n1")
		return o.Status
	}
	r.start()
	api.SetSpec("n1", map[string]any{"interfaces": []any{map[string]any{"pciAddress": pf0, "numVfs": 2}}})
	testkit.Eventually(r, "failed, in the object", func() bool {
		return status()["syncStatus"] == "Failed" && strings.Contains(fmt.Sprint(status()["lastSyncError"]), "EBUSY")
	})
	close(fail)
	testkit.Eventually(r, "succeeded, in the object", func() bool { return status()["syncStatus"] == "Succeeded" })
	testkit.Eventually(r, "functions in the object", func() bool {
		found, _ := status()["interfaces"].([]any)
		return len(found) == 2 && found[0].(map[string]any)["numVfs"] == 2.0 && len(found[0].(map[string]any)["Vfs"].([]any)) == 2
	})
	if status()["lastSyncError"] != "" {
		t.Errorf("%v", status())
	}
	n := api.Count("patch")
	time.Sleep(300 * time.Millisecond)
	if more := api.Count("patch") - n; more > 1 {
		t.Errorf("%d more patches", more)
	}
}

// A node that cannot be read stays offered, and is not reported as well.
func TestNodeThatIsNotReadAnyMore(t *testing.T) {
	r := newRig(t, Apply)
	api := kubeapi.New(t, kubeapi.NodeStates())
	cluster := testkit.Value(source.NewCluster(source.ClusterConfig{Kubeconfig: api.Kubeconfig(t), Node: "n1"}))(t)
	r.config.Source, r.config.Report = cluster, cluster.UpdateStatus
	r.config.Rules.Resync = 20 * time.Millisecond
	r.start()
	api.SetSpec("n1", map[string]any{"interfaces": []any{map[string]any{"pciAddress": pf0, "numVfs": 2}}})
	syncError := func() string {
		o, _ := api.Get("n1")
		return fmt.Sprint(o.Status["syncStatus"], " ", o.Status["lastSyncError"])
	}
	isWell := func() bool { return r.daemon.Check(t.Context()) == nil && syncError() == "Succeeded " }
	testkit.Eventually(r, "the desired state", isWell)
	unreadable := func(err error) {
		r.node.mu.Lock()
		defer r.node.mu.Unlock()
		r.node.unreadable = err
	}
	unreadable(errors.New("netlink: no memory"))
	testkit.Eventually(r, "the error", func() bool {
		err := r.daemon.Check(t.Context())
		return err != nil && strings.Contains(err.Error(), "no memory") && strings.Contains(syncError(), "no memory")
	})
	if r.gate.open() == nil {
		t.Error("a node that cannot be read was withdrawn")
	}
	unreadable(nil)
	testkit.Eventually(r, "the desired state again", isWell)
}

func TestWatch(t *testing.T) {
	r := newRig(t, Apply)
	kicks := make(chan func(), 1)
	r.config.Watch = func(ctx context.Context, kick func()) error {
		kicks <- kick
		<-ctx.Done()
		return context.Cause(ctx)
	}
	r.desired(1, specOf(2, 0))
	r.start()
	r.isServing(1)
	kick := <-kicks
	r.node.change(func(s *plan.State) { s.PFs[0].VFs[1].Driver = "" })
	for range 100 {
		kick()
	}
	testkit.Eventually(r, "closed and opened", func() bool { return len(r.gate.calls()) == 4 })
	r.isServing(1)
	if n := len(r.gate.calls()); n != 4 {
		t.Errorf("%v", r.gate.calls())
	}
}

func TestDryRun(t *testing.T) {
	r := newRig(t, Apply)
	testkit.WantError(t, "without a node state", testkit.Err(DryRun(t.Context(), r.config)), ErrNoState)
	r.desired(1, specOf(2, 0))
	p, err := DryRun(t.Context(), r.config)
	if err != nil || len(p.Steps) == 0 || !p.More || p.Generation != 1 {
		t.Errorf("%+v, %v", p, err)
	}
	r.start()
	r.isServing(1)
	r.stop()
	steps := len(r.node.steps)
	r.pods.held = []podresources.Holder{{ID: vfAddress(pf0, 0), Pod: "p"}}
	r.desired(2, nodestate.Spec{})
	if p, err = DryRun(t.Context(), r.config); err != nil || len(p.Steps) != 1 || len(p.Held) != 1 {
		t.Errorf("a PF that was ours: %+v, %v", p, err)
	}
	if len(r.node.steps) != steps {
		t.Error("it changed the node")
	}
	r.node.unreadable = errors.New("netlink: no memory")
	testkit.WantError(t, "DryRun", testkit.Err(DryRun(t.Context(), r.config)), r.node.unreadable)
	bad := specOf(2, 0)
	bad.System.RDMAMode = "both"
	r.desired(3, bad)
	testkit.WantError(t, "DryRun", testkit.Err(DryRun(t.Context(), r.config)), nil, "rdmaMode")
}

func TestMode(t *testing.T) {
	if m, err := ParseMode("apply"); m != Apply || err != nil {
		t.Errorf("%v %v", m, err)
	}
	testkit.WantError(t, "ParseMode", testkit.Err(ParseMode("Apply")), nil, `"Apply"`)
}

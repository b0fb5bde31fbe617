package csi_test

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

// node is a plugin host that handles a CSI driver as a kubelet does.
type node struct {
	*watch.Host
	t testing.TB

	mu     sync.Mutex
	calls  []string
	refuse error // the result of Validate
}

func newNode(t testing.TB, dir string) *node {
	t.Helper()
	n := &node{t: t}
	var err error
	n.Host, err = watch.New(watch.Options{
		Dir: dir, Handlers: map[string]watch.Handler{"CSIPlugin": n},
		BackOff:  watch.BackOff{First: 10 * time.Millisecond, Most: 50 * time.Millisecond},
		Timeouts: watch.Timeouts{Dial: time.Minute, GetInfo: time.Minute, Notify: time.Minute}, // long, so that the load repeats no call
	})
	if err == nil {
		err = n.Start(t.Context())
	}
	testkit.Must(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := n.Close(ctx, false); err != nil {
			t.Errorf("close the host: %v", err)
		}
	})
	return n
}

func (n *node) note(call string, p watch.Plugin) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = append(n.calls, call+" "+p.Name)
}

func (n *node) callLog() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return strings.Join(n.calls, ", ")
}

func (n *node) refuses(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.refuse = err
}

func (n *node) Validate(_ context.Context, _ watch.Plugin) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.refuse
}

// Register calls the driver immediately, as a kubelet does, and without
// retries: a driver that registers has to serve.
func (n *node) Register(ctx context.Context, p watch.Plugin) error {
	conn, err := grpc.NewClient("unix://"+p.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	info, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	if err != nil {
		n.t.Errorf("NodeGetInfo of a registering driver: %v", err)
		return err
	}
	if info.GetNodeId() != nodeID || p.Versions[0] != "1.0.0" {
		n.t.Errorf("it registers as %+v, node %s", p, info.GetNodeId())
	}
	n.note("register", p)
	return nil
}

func (n *node) DeRegister(_ context.Context, p watch.Plugin) error {
	n.note("deregister", p)
	return nil
}

// statusOutput is the JSON output of cleat csi status.
type statusOutput struct {
	Ready        bool
	Checks       map[string]string
	Registration struct{ State, Reason, Error, Socket, Endpoint string }
}

// queryStatus runs cleat csi status.
func (r *rig) queryStatus() statusOutput {
	r.Helper()
	out, err := r.status("-o", "json")
	var s statusOutput
	if err = errors.Join(err, json.Unmarshal([]byte(out), &s)); err != nil {
		r.Fatalf("cleat csi status: %v: %s", err, out)
	}
	return s
}

func (r *rig) status(args ...string) (string, error) {
	cmd := exec.CommandContext(r.Context(), cleat, append([]string{"csi", "status", "--state-dir", filepath.Join(r.dir, r.name+"-state")}, args...)...)
	cmd.Env = append(os.Environ(), atOnce)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (r *rig) waitRegistration(state string) statusOutput {
	r.Helper()
	var s statusOutput
	testkit.Eventually(r, "registration is "+state, func() bool { s = r.queryStatus(); return s.Registration.State == state })
	return s
}

func newRegistry(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "plugins_registry")
	testkit.Must(t, os.Mkdir(dir, 0o755))
	return dir
}

// TestRegistration: the driver registers itself, reports its registration, and
// is deregistered when it stops.
func TestRegistration(t *testing.T) {
	t.Parallel()
	dir := newRegistry(t)
	n := newNode(t, dir)
	r := newRig(t, "--registration-dir", dir)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	p := testkit.Value(n.Wait(ctx, "CSIPlugin", "csi.cleat.dev"))(r)
	if p.Endpoint != r.process.Socket || p.Socket != filepath.Join(dir, "csi.cleat.dev-reg.sock") {
		t.Errorf("registered: %+v", p)
	}
	s := r.waitRegistration("registered")
	if !s.Ready || s.Checks["registration"] != "ok" || s.Registration.Endpoint != r.process.Socket || s.Registration.Reason != "" {
		t.Errorf("status %+v", s)
	}
	if out, err := r.status(); err != nil || !strings.Contains(out, "registered since") || !strings.Contains(out, "Ready                 yes") {
		t.Errorf("cleat csi status: %v\n%s", err, out)
	}
	testkit.Must(r, os.Remove(p.Socket)) // as by a clean-up script
	testkit.Eventually(r, "registered again", func() bool { return strings.Count(n.callLog(), "register csi") == 3 })
	r.waitRegistration("registered")
	r.stop()
	testkit.Eventually(r, "deregistered", func() bool { return strings.HasSuffix(n.callLog(), "deregister csi.cleat.dev") })
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("left over in the registry: %v, %v", left, err)
	}
	if out, err := r.status(); err == nil || !strings.Contains(out, "no cleat csi serves its status") {
		t.Errorf("status without a driver: %v: %s", err, out)
	}
	want := "register csi.cleat.dev, deregister csi.cleat.dev"
	if got := n.callLog(); got != want+", "+want {
		t.Errorf("calls of the host: %s", got)
	}
}

// TestRefusedRegistration: a refused driver stays up, is not ready, reports the
// host's error, and is registered when the host accepts it.
func TestRefusedRegistration(t *testing.T) {
	t.Parallel()
	dir := newRegistry(t)
	n := newNode(t, dir)
	n.refuses(errors.New("no slot for it"))
	metrics := filepath.Join(t.TempDir(), "m", "metrics.sock")
	r := newRig(t, "--registration-dir", dir, "--metrics-address", metrics)
	s := r.waitRegistration("refused")
	if s.Ready || !strings.Contains(s.Registration.Error, "no slot for it") || !strings.Contains(s.Checks["registration"], "no slot for it") {
		t.Errorf("status %+v", s)
	}
	out, err := r.status()
	if err != nil || !strings.Contains(out, "no: not registered") || !strings.Contains(out, "no slot for it") {
		t.Errorf("cleat csi status: %v\n%s", err, out)
	}
	var ready struct{ Ready bool }
	testkit.Must(r, server.Ask(t.Context(), metrics, "/readyz", &ready))
	if ready.Ready {
		t.Error("/readyz says ready")
	}
	n.refuses(nil)
	r.waitRegistration("registered")
	testkit.Must(r, server.Ask(t.Context(), metrics, "/readyz", &ready))
	if !ready.Ready || len(r.runs) != 1 {
		t.Errorf("/readyz says ready: %v; %d starts", ready.Ready, len(r.runs))
	}
}

// TestRegistrationWithoutDirectory: the driver serves, and does not create the
// directory. The endpoint can have another path on the host.
func TestRegistrationWithoutDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "plugins_registry")
	r := newRig(t, "--registration-dir", dir, "--registration-endpoint", "unix:///var/lib/kubelet/plugins/csi.cleat.dev/csi.sock")
	if s := r.waitRegistration("absent"); s.Ready || s.Registration.Endpoint != "/var/lib/kubelet/plugins/csi.cleat.dev/csi.sock" {
		t.Errorf("status %+v", s)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("the driver created the host's directory")
	}
}

func TestBadRegistration(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	base := func(more ...string) []string {
		return append([]string{"--pool", dir + "/pool", "--state-dir", dir + "/state", "--endpoint", "unix://" + dir + "/s/csi.sock"}, more...)
	}
	for name, c := range map[string]struct{ args, words []string }{
		"endpoint alone":     {base("--registration-endpoint", "/x.sock"), []string{"--registration-endpoint", "--registration-dir"}},
		"no node service":    {base("--registration-dir", dir, "--services", "controller"), []string{"--registration-dir", "node service"}},
		"relative directory": {base("--registration-dir", "registry"), []string{"--registration-dir", "registry", "absolute"}},
		"long directory":     {base("--registration-dir", "/"+strings.Repeat("d", 84)), []string{"--registration-dir", "108 bytes", "107", "(85 bytes)", "(13 bytes)", "by 1"}},
		"network endpoint":   {base("--registration-dir", dir, "--registration-endpoint", "tcp://1.2.3.4:5"), []string{"--registration-endpoint", "UNIX"}},
		"long endpoint":      {base("--registration-dir", dir, "--registration-endpoint", "/"+strings.Repeat("e", 107)), []string{"endpoint", "108 bytes"}},
	} {
		t.Run(name, func(t *testing.T) { failsToStart(t, nil, c.args, c.words...) })
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("starts that failed left %v", left)
	}
}

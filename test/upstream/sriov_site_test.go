package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/test/testkit"
)

// sriovSite is a node whose plugin and config daemon are processes.
type sriovSite struct {
	*sriovNode
	socket    string // the plugin's control socket
	nodeState string // file with the node state
	server    *sriovProcess
	daemon    *sriovProcess
}

// sriovProcess is one run of cleat.
type sriovProcess struct {
	*testkit.Process
	t    testing.TB
	name string
}

func newSriovSite(t testing.TB, vfs int) *sriovSite {
	t.Helper()
	cleatProgram(t)
	s := &sriovSite{sriovNode: newSriovNode(t, vfs)}
	s.socket, s.nodeState = filepath.Join(s.dir, "s", "control.sock"), filepath.Join(s.dir, "n", "state.yaml")
	if err := os.MkdirAll(filepath.Dir(s.nodeState), 0o755); err != nil {
		t.Fatal(err)
	}
	s.want(1, "")
	return s
}

// launch starts cleat with these arguments.
func (s *sriovSite) launch(name string, words ...string) *sriovProcess {
	s.t.Helper()
	p := &sriovProcess{testkit.Value(testkit.Launch(exec.Command(cleatProgram(s.t), words...)))(s.t), s.t, name}
	s.t.Cleanup(func() {
		p.Kill()
		if s.t.Failed() {
			s.t.Logf("end of the log of %s:\n%s", name, p.tail())
		}
	})
	return p
}

func (p *sriovProcess) said() string { return p.Log.String() }

func (p *sriovProcess) tail() string {
	lines := strings.SplitAfter(p.said(), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "")
}

func (p *sriovProcess) signal(s syscall.Signal) {
	p.t.Helper()
	testkit.Must(p.t, p.Signal(s))
}

// runs reports whether the process has not ended.
func (p *sriovProcess) runs() bool {
	select {
	case <-p.Done():
		return false
	default:
		return true
	}
}

// terminate stops the process with SIGTERM, and wants exit code 0.
func (p *sriovProcess) terminate() {
	p.t.Helper()
	if err := p.Stop(); err != nil {
		p.t.Errorf("%s: %v\n%s", p.name, err, p.tail())
	}
}

// says waits until the log contains a text.
func (p *sriovProcess) says(text string) {
	p.t.Helper()
	until(p.t, fmt.Sprintf("%s says %q", p.name, text), func() (bool, string) { return strings.Contains(p.said(), text), p.tail() })
}

// until polls until a condition holds.
func until(t testing.TB, what string, holds func() (bool, string)) {
	t.Helper()
	err := testkit.Poll(testkit.Timeout, nil, func() error {
		ok, found := holds()
		if !ok {
			return errors.New(found)
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: not in time; got:\n%s", what, err)
	}
}

// serve starts a plugin in controlled mode. Later flags override.
func (s *sriovSite) serve(flags ...string) *sriovProcess {
	s.t.Helper()
	s.server = s.launch("the plugin", slices.Concat([]string{"sriov", "plugin"}, s.pluginFlags(), flags)...)
	return s.server
}

func (s *sriovSite) pluginFlags() []string {
	return []string{
		"--controlled-mode", "--control-socket", s.socket, "--config-file", s.config.ConfigFile,
		"--sysfs-root", s.tree.Sysfs, "--dev-root", s.tree.Dev, "--kubelet-dir", s.home, "--registration", "register",
		"--state-dir", filepath.Join(s.dir, "p"), "--device-info-dir", filepath.Join(s.dir, "i"), "--cdi-dir", filepath.Join(s.dir, "d"),
		"--rescan-interval", "1s", "--metrics-address", filepath.Join(s.dir, "p.sock"), "--log-format", "text",
	}
}

// answer starts a config daemon with nothing to change on the node.
func (s *sriovSite) answer(flags ...string) *sriovProcess {
	s.t.Helper()
	s.daemon = s.launch("the daemon", slices.Concat([]string{
		"sriov", "daemon", "--mode", "apply", "--node-state", s.nodeState, "--control-socket", s.socket, "--sysfs-root", s.tree.Sysfs,
		"--state-dir", filepath.Join(s.dir, "q"), "--pod-resources-socket", filepath.Join(s.home, "pod-resources", "kubelet.sock"),
		"--node", "worker", "--metrics-address", filepath.Join(s.dir, "q.sock"), "--log-format", "text",
	}, flags)...)
	return s.daemon
}

// want replaces the node state: a generation, PFs as JSON, and a sync status.
func (s *sriovSite) want(generation int64, interfaces string, sync ...string) {
	s.t.Helper()
	text := fmt.Sprintf(`{"apiVersion": "sriovnetwork.openshift.io/v1", "kind": "SriovNetworkNodeState",
"metadata": {"name": "worker", "uid": "u", "generation": %d}, "spec": {"interfaces": [%s]}, "status": {"syncStatus": %q}}`,
		generation, interfaces, strings.Join(sync, ""))
	s.replace(s.nodeState, text)
}

// configure replaces the plugin's configuration.
func (s *sriovSite) configure(resources string) {
	s.t.Helper()
	s.replace(s.config.ConfigFile, `{"resourceList": [`+resources+`]}`)
}

func (s *sriovSite) replace(path, text string) {
	s.t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o644), os.Rename(path+".new", path)); err != nil {
		s.t.Fatal(err)
	}
}

// status queries the plugin's status.
func (s *sriovSite) status() (gate.Status, error) {
	ctx, cancel := context.WithTimeout(s.t.Context(), testkit.Timeout)
	defer cancel()
	c, err := control.Dial(ctx, s.socket)
	if err != nil {
		return gate.Status{}, err
	}
	defer c.Close()
	return c.Status(ctx)
}

// awaitStatus waits until the plugin's status satisfies a condition.
func (s *sriovSite) awaitStatus(what string, holds func(gate.Status) bool) {
	s.t.Helper()
	until(s.t, "the plugin reports: "+what, func() (bool, string) {
		status, err := s.status()
		return err == nil && holds(status), fmt.Sprintf("%+v, %v", status, err)
	})
}

// held waits until a claim of the generation is held, and all its devices are
// offered.
func (s *sriovSite) held(generation int64) {
	s.t.Helper()
	s.awaitStatus(fmt.Sprintf("generation %d is served", generation), func(g gate.Status) bool {
		return g.Holding == gate.Live && g.Generation == generation && g.State == gate.Serving
	})
}

// page reads /metrics or /status of a cleat.
func page(t testing.TB, socket, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Timeout)
	defer cancel()
	_, text, err := testkit.Page(ctx, testkit.UNIX(socket), http.MethodGet, path)
	if err != nil {
		return err.Error()
	}
	return text
}

// shows waits until a page contains a text.
func shows(t testing.TB, socket, path, text string) {
	t.Helper()
	until(t, fmt.Sprintf("%s shows %q", path, text), func() (bool, string) {
		got := page(t, socket, path)
		return strings.Contains(got, text), got
	})
}

// cleat runs a command.
func (s *sriovSite) cleat(words ...string) string {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), testkit.Timeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, cleatProgram(s.t), words...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("cleat %q: %v\n%s", words, err, out)
	}
	return string(out)
}

// propose is a config daemon that implements only the published proposal. It
// returns once it is acknowledged; leave closes its stream.
func (s *sriovSite) propose(generation int64) (leave func()) {
	s.t.Helper()
	conn, err := grpc.NewClient("unix://"+s.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	stream, err := controlv1.NewControlServiceClient(conn).EnableDevices(ctx, &controlv1.EnableDevicesRequest{NodeStateGeneration: generation, NodeName: "worker"}, grpc.WaitForReady(true))
	if err == nil {
		_, err = stream.Recv()
	}
	if err != nil {
		s.t.Fatal(err)
	}
	go func() {
		for err == nil {
			_, err = stream.Recv()
		}
	}()
	return cancel
}

// since returns the kubelet's counts of a resource from a moment on, starting
// with those at that moment.
func (k *sriovKubelet) since(at time.Time, resource string) (all [][2]int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range k.past {
		if !c.at.After(at) {
			all = nil
		}
		if n := c.counts[resource]; len(all) == 0 || all[len(all)-1] != n {
			all = append(all, n)
		}
	}
	return all
}

// given returns the devices that the container of a pod got.
func (s *sriovNode) given(answer map[string]json.RawMessage, variable string) []string {
	s.t.Helper()
	var options struct {
		Envs []struct{ Name, Value string }
	}
	if err := json.Unmarshal(answer["container"], &options); err != nil {
		s.t.Fatalf("%v in %s", err, answer)
	}
	for _, e := range options.Envs {
		if e.Name == variable {
			return strings.Split(e.Value, ",")
		}
	}
	return nil
}

package csi_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/test/testkit"
)

// failsToStart runs cleat csi with the arguments and wants it to fail with one
// line that contains the words.
func failsToStart(t *testing.T, env, args []string, words ...string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, cleat, append([]string{"csi", "--log-level", "error"}, args...)...)
	cmd.Env = append(append(os.Environ(), atOnce), env...)
	out, err := cmd.CombinedOutput()
	text := string(out)
	if err == nil || cmd.ProcessState.ExitCode() != 1 {
		t.Errorf("%q: ended with %v: %s", args, err, text)
	}
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%q: the error does not hold %q: %s", args, word, text)
		}
	}
	if lines := strings.Count(strings.TrimSpace(text), "\n"); lines > 2 || strings.Contains(text, "goroutine") || strings.Contains(text, "Usage:") {
		t.Errorf("%q: more than one line: %s", args, text)
	}
}

// TestBadStart: an invalid setting is refused before anything is served, with a
// line that names the setting.
func TestBadStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	foreign, file := filepath.Join(dir, "foreign"), filepath.Join(dir, "file")
	testkit.Must(t, os.MkdirAll(foreign+"/photos", 0o700))
	testkit.Must(t, os.WriteFile(file, []byte("x"), 0o600))
	config := func(name, text string) string {
		path := filepath.Join(dir, name)
		testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	base := func(more ...string) []string {
		return append([]string{"--pool", dir + "/pool", "--state-dir", dir + "/state", "--endpoint", "unix://" + dir + "/s/csi.sock"}, more...)
	}
	for name, c := range map[string]struct {
		env, args, words []string
	}{
		"long socket path":  {nil, base("--endpoint", "unix:///tmp/"+strings.Repeat("x", 100)+"/csi.sock"), []string{"too long", "107"}},
		"relative endpoint": {nil, base("--endpoint", "unix://csi.sock"), []string{"--endpoint", "relative"}},
		"network":           {nil, base("--endpoint", "tcp://127.0.0.1:1"), []string{"--endpoint", "UNIX"}},
		"unknown engine":    {nil, base("--engine", "remote"), []string{"--engine", "local"}},
		"unknown services":  {nil, base("--services", "some"), []string{"--services", "controller or node"}},
		"empty node id":     {nil, base("--node-id", ""), []string{"--node-id"}},
		"long node id":      {nil, base("--node-id", strings.Repeat("n", 257)), []string{"257"}},
		"bad driver name":   {nil, base("--driver-name", "my driver"), []string{"my driver", "domain name"}},
		"low ratio":         {nil, base("--overprovision-ratio", "0.5"), []string{"--overprovision-ratio"}},
		"bad topology":      {nil, base("--topology", "a b=c"), []string{"a b"}},
		"contradiction":     {nil, base("--per-node", "--controller-publish"), []string{"controller publish"}},
		"bad image size":    {nil, base("--pool-image", "huge"), []string{"--pool-image"}},
		"tiny image":        {nil, base("--pool-image", "1MiB"), []string{"too few for a pool"}},
		"bad log level":     {nil, base("--log-level", "loud"), []string{"loud"}},
		"foreign directory": {nil, base("--pool", foreign), []string{"photos", "not a pool"}},
		"a file as pool":    {nil, base("--pool", file), []string{file, "not a directory"}},
		"a file as state":   {nil, base("--state-dir", file), []string{"--state-dir", file}},
		"unknown group":     {nil, base("--socket-group", "nobodys"), []string{"nobodys"}},
		"an argument":       {nil, base("please"), []string{"please"}},
		"unknown key":       {nil, base("--config", config("a.yaml", "pol: /x\n")), []string{"a.yaml", `"pol"`, `"pool"`}},
		"key twice":         {nil, base("--config", config("b.yaml", "engine: local\nengine: local\n")), []string{"b.yaml", "engine"}},
		"no YAML":           {nil, base("--config", config("c.yaml", "{")), []string{"c.yaml"}},
		"bad value in file": {nil, base("--config", config("d.yaml", "max-volumes: many\n")), []string{"d.yaml", "max-volumes"}},
		"missing file":      {nil, base("--config", dir+"/none.yaml"), []string{"none.yaml"}},
		"bad environment":   {[]string{"CLEAT_MAX_VOLUMES=many"}, base(), []string{"CLEAT_MAX_VOLUMES", "many"}},
		"busy metrics port": {nil, base("--metrics-address", busyPort(t)), []string{"metrics address"}},
	} {
		t.Run(name, func(t *testing.T) { failsToStart(t, c.env, c.args, c.words...) })
	}
	if left, _ := os.ReadDir(dir + "/s"); len(left) > 0 {
		t.Errorf("failed starts left %v beside the socket", left)
	}
}

func busyPort(t *testing.T) string {
	t.Helper()
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

// TestTwoDrivers: a pool, a socket and a store each have one owner.
func TestTwoDrivers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	dir := t.TempDir()
	socket := "unix://" + dir + "/s/csi.sock"
	failsToStart(t, nil, []string{"--pool", r.pool, "--state-dir", dir + "/a", "--endpoint", socket}, r.pool, "another cleat process")
	failsToStart(t, nil, []string{"--pool", dir + "/pool", "--state-dir", dir + "/b", "--endpoint", "unix://" + r.process.Socket}, r.process.Socket, "live")
	failsToStart(t, nil, []string{"--pool", dir + "/pool", "--state-dir", r.dir + "/csi-state", "--endpoint", socket, "--services", "node"}, "node.db", "another cleat process")
	testkit.Value(r.identity().Probe(t.Context(), &csi.ProbeRequest{}))(r)
}

// TestSettingsPrecedence: flags override the environment, which overrides
// the file, also as CSI_ENDPOINT.
func TestSettingsPrecedence(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	socket := func(name string) string { return filepath.Join(dir, name, "csi.sock") }
	config := filepath.Join(dir, "cleat.yaml")
	testkit.Must(t, os.WriteFile(config, []byte("pool: "+dir+"/pool\nstate-dir: "+dir+"/state\nendpoint: unix://"+socket("file")+
		"\nnode-id: from-file\nmax-volumes: 3\ntopology:\n  zone: z1\n"), 0o600))
	for _, c := range []struct {
		name   string
		env    []string
		args   []string
		socket string
		nodeID string
	}{
		{"CSI_ENDPOINT", []string{"CSI_ENDPOINT=unix://" + socket("csi"), "CLEAT_NODE_ID=from-env"}, []string{"--config", config}, "csi", "from-env"},
		{"flag", []string{"CSI_ENDPOINT=unix://" + socket("csi"), "CLEAT_NODE_ID=from-env"}, []string{"--config", config, "--endpoint", socket("flag"), "--node-id", "from-flag"}, "flag", "from-flag"},
	} {
		t.Run(c.name, func(t *testing.T) {
			info := nodeInfo(t, c.env, c.args, socket(c.socket))
			if info.GetNodeId() != c.nodeID || info.GetMaxVolumesPerNode() != 3 || info.GetAccessibleTopology().GetSegments()["zone"] != "z1" {
				t.Errorf("node info %v", info)
			}
		})
	}
}

// nodeInfo starts a driver, calls NodeGetInfo at a socket, and stops it.
func nodeInfo(t *testing.T, env, args []string, socket string) *csi.NodeGetInfoResponse {
	t.Helper()
	cmd := exec.Command(cleat, append([]string{"csi"}, args...)...)
	cmd.Env = append(append(os.Environ(), atOnce), env...)
	p := testkit.Start(t, cmd)
	conn := testkit.Open(testkit.Connect(socket))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	info, err := csi.NewNodeClient(conn).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Errorf("ask at %s: %v", socket, err)
	}
	testkit.Must(t, p.Stop())
	return info
}

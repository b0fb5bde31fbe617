package upstream

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	deviceplugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/sriov/plugin/plugintest"
	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	sriovPF       = "0000:3b:00.0"
	sriovResource = "example.com/vf"
)

// sriovNode is a node of fake sysfs files with a kubelet's own device manager,
// in its own process, and our plugin.
type sriovNode struct {
	t        testing.TB
	dir      string // contains all files below
	home     string // the kubelet's directory
	registry string
	program  string
	tree     *sysfstest.Tree
	vfs      []string
	config   plugin.Config
	pods     *podresources.Client

	kubelet *sriovKubelet
	plugin  *plugin.Plugin
	ended   chan struct{}
	cancel  context.CancelFunc
}

// sriovKubelet is one process of the kubelet.
type sriovKubelet struct {
	in     io.WriteCloser
	exited chan error

	mu      sync.Mutex
	changed chan struct{}
	counts  map[string][2]int64 // capacity and allocatable
	past    []sriovCounts
	answers []map[string]json.RawMessage
	stderr  strings.Builder
}

// sriovCounts are the kubelet's counts from a moment on.
type sriovCounts struct {
	at     time.Time // when printed, at most some 10 ms later
	counts map[string][2]int64
}

func newSriovNode(t testing.TB, vfs int) *sriovNode {
	t.Helper()
	dir, err := os.MkdirTemp("", "s") // short, for the 107 bytes of a socket's path
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := &sriovNode{t: t, dir: dir, home: filepath.Join(dir, "k"), program: devicesProgram(t), tree: sysfstest.New(t)}
	n.registry = filepath.Join(n.home, "plugins_registry")
	for _, d := range []string{n.registry, filepath.Join(dir, "c")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Without network devices: processes look those up in the real kernel.
	n.tree.Add(sysfstest.Function{Address: sriovPF, Vendor: "8086", Device: "1572", Driver: "i40e", NUMA: 0, TotalVFs: max(256, vfs), VFDevice: "154c", VFDriver: "iavf"})
	if err := n.tree.Write(sysfstest.Device(sriovPF)+"/sriov_numvfs", strconv.Itoa(vfs)); err != nil {
		t.Fatal(err)
	}
	n.vfs = n.tree.Virtual(sriovPF)
	file := filepath.Join(dir, "c", "config.json")
	if err := os.WriteFile(file, []byte(`{"resourceList": [{"resourceName": "vf", "resourcePrefix": "example.com", "selectors": [{"rootDevices": ["`+sriovPF+`"]}]}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	n.pods = podresources.New(filepath.Join(n.home, "pod-resources", "kubelet.sock"))
	t.Cleanup(func() { _ = n.pods.Close() })
	way := plugin.Kubelet{Dir: filepath.Join(n.home, "device-plugins")}
	n.config = plugin.Config{
		ConfigFile: file, Controlled: true, Bound: 30 * time.Second, Interval: time.Second,
		Discovery: inventory.DiscoverConfig{Sysfs: n.tree.Sysfs, Dev: n.tree.Dev, Links: sysfstest.Links{Tree: n.tree}},
		Registrar: way, EndpointDir: way.Dir, Restarts: way.Restarts, Pods: n.pods,
		Files: inventory.DeviceFiles{DeviceInfo: filepath.Join(dir, "i"), CDI: filepath.Join(dir, "d")},
	}
	n.startKubelet()
	return n
}

// startKubelet starts a kubelet that finds these pods on its node.
func (n *sriovNode) startKubelet(pods ...string) {
	n.t.Helper()
	k := &sriovKubelet{exited: make(chan error, 1), changed: make(chan struct{}), counts: map[string][2]int64{}}
	cmd := exec.Command(n.program, append([]string{"-kubelet-dir", n.home, n.registry}, pods...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	cmd.Stderr = k
	in, err := cmd.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	k.in = in
	go func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			k.take(lines.Bytes())
		}
		k.exited <- cmd.Wait()
		close(k.exited)
	}()
	n.kubelet = k
	n.t.Cleanup(k.stop)
}

// Write keeps the end of the kubelet's stderr: its panic.
func (k *sriovKubelet) Write(text []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.stderr.Len() < 1<<16 {
		k.stderr.Write(text)
	}
	return len(text), nil
}

func (k *sriovKubelet) take(line []byte) {
	var report struct {
		Resources map[string][2]int64 `json:"resources"`
	}
	var all map[string]json.RawMessage
	if json.Unmarshal(line, &report) != nil || json.Unmarshal(line, &all) != nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if report.Resources != nil {
		k.counts = report.Resources
		k.past = append(k.past, sriovCounts{time.Now(), report.Resources})
	} else {
		k.answers = append(k.answers, all)
	}
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *sriovKubelet) say(line string) { _, _ = fmt.Fprintln(k.in, line) }

// awaitServing waits until the kubelet accepts registrations.
func (n *sriovNode) awaitServing() {
	n.t.Helper()
	until(n.t, "the kubelet serves", func() (bool, string) {
		_, err := os.Stat(filepath.Join(n.home, "device-plugins", "kubelet.sock"))
		return err == nil, fmt.Sprint(err)
	})
}

// stop ends the kubelet; its exit status does not matter.
func (k *sriovKubelet) stop() {
	_ = k.in.Close()
	<-k.exited
}

// lives fails the test with the kubelet's stderr if it has died.
func (n *sriovNode) lives() {
	n.t.Helper()
	select {
	case err := <-n.kubelet.exited:
		n.kubelet.mu.Lock()
		defer n.kubelet.mu.Unlock()
		n.t.Fatalf("the kubelet died: %v\n%s", err, n.kubelet.stderr.String())
	default:
	}
}

// await waits until a condition of the kubelet's output holds.
func (n *sriovNode) await(what string, holds func(*sriovKubelet) bool) {
	n.t.Helper()
	k, late := n.kubelet, time.After(testkit.Timeout)
	for {
		k.mu.Lock()
		changed, ok, counts := k.changed, holds(k), k.counts
		k.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case err := <-k.exited:
			n.t.Fatalf("%s: the kubelet died: %v\n%s", what, err, k.stderr.String())
		case <-late:
			var says any
			if n.plugin != nil {
				says = n.plugin.Document()
			}
			n.t.Fatalf("%s: the kubelet has %v, the plugin reports %+v", what, counts, says)
		}
	}
}

func (n *sriovNode) awaitCounts(capacity, allocatable int64) {
	n.t.Helper()
	n.await(fmt.Sprintf("capacity %d, allocatable %d", capacity, allocatable), func(k *sriovKubelet) bool {
		return k.counts[sriovResource] == [2]int64{capacity, allocatable}
	})
}

func (n *sriovNode) awaitAllocatable(want int64) {
	n.t.Helper()
	n.await(fmt.Sprintf("allocatable %d", want), func(k *sriovKubelet) bool { return k.counts[sriovResource][1] == want })
}

// admit requests a pod with count devices, and returns the kubelet's response.
func (n *sriovNode) admit(count int) map[string]json.RawMessage {
	n.t.Helper()
	return n.ask(sriovResource, count)
}

func (n *sriovNode) ask(resource string, count int) (answer map[string]json.RawMessage) {
	n.t.Helper()
	k := n.kubelet
	k.mu.Lock()
	before := len(k.answers)
	k.mu.Unlock()
	k.say(fmt.Sprintf("%s %d", resource, count))
	n.await("an answer to a pod", func(k *sriovKubelet) bool {
		if len(k.answers) > before {
			answer = k.answers[before]
			return true
		}
		return false
	})
	return answer
}

// startPlugin runs the plugin in this process.
func (n *sriovNode) startPlugin() {
	n.t.Helper()
	p, err := plugin.New(n.config)
	if err != nil {
		n.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	n.plugin, n.ended, n.cancel = p, ended, cancel
	go func() {
		defer close(ended)
		if err := p.Run(ctx); err != nil {
			n.t.Errorf("the plugin ended: %v", err)
		}
	}()
	n.t.Cleanup(func() {
		cancel()
		<-ended
	})
}

func (n *sriovNode) stopPlugin() {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), testkit.Timeout)
	defer cancel()
	if err := n.plugin.Stop(ctx); err != nil {
		n.t.Fatal(err)
	}
	<-n.ended
}

// killPlugin ends the plugin without notice to the kubelet.
func (n *sriovNode) killPlugin() {
	n.cancel()
	<-n.ended
}

func (n *sriovNode) enable(generation int64) *plugintest.Stream {
	n.t.Helper()
	s := plugintest.Enable(n.t.Context(), n.plugin, fmt.Sprintf("%s/%d", n.t.Name(), generation), gate.Claim{Generation: generation, UID: "u"})
	n.t.Cleanup(s.Close)
	return s
}

// register registers another plugin, with two devices, with the kubelet.
func (n *sriovNode) register(resource, socket string) (end func()) {
	n.t.Helper()
	end = serveDevices(n.t, filepath.Join(n.home, "device-plugins", socket))
	if err := n.tryRegister(resource, socket); err != nil {
		n.t.Fatal(err)
	}
	return end
}

func (n *sriovNode) tryRegister(resource, socket string) error {
	n.t.Helper()
	conn, err := grpc.NewClient("unix://"+filepath.Join(n.home, "device-plugins", "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		n.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(n.t.Context(), testkit.Timeout)
	defer cancel()
	_, err = deviceplugin.NewRegistrationClient(conn).Register(ctx, &deviceplugin.RegisterRequest{
		Version: deviceplugin.Version, Endpoint: socket, ResourceName: resource,
	}, grpc.WaitForReady(true))
	return err
}

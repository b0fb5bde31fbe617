package main

import (
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/sriov/inventory/sysfstest"
	"github.com/cleatproject/cleat/sriov/plugin/plugintest"
	"github.com/cleatproject/cleat/test/testkit"
)

// sriovRig is a fake machine with two NICs, an accelerator and a plain function, and a
// config.json.
type sriovRig struct {
	tree   *sysfstest.Tree
	config string
}

const sriovTestConfig = `{"resourceList": [
  {"resourceName": "dpdk", "selectors": [{"vendors": ["8086"], "drivers": ["vfio-pci"], "pfNames": ["ens2f0#0-3"]}]},
  {"resourceName": "rdma", "resourcePrefix": "example.com", "selectors": [{"vendors": ["15b3"], "isRdma": true}]},
  {"resourceName": "rest", "selectors": [{"drivers": ["iavf"]}, {"vendors": ["15b3"], "pfNames": ["ens1f0"]}]},
  {"resourceName": "gone", "selectors": [{"pfNames": ["ens9"]}]},
  {"resourceName": "sf", "deviceType": "auxNetDevice", "selectors": [{"auxTypes": ["sf"], "pfNames": ["ens1f0#4"]}]},
  {"resourceName": "fec", "deviceType": "accelerator", "selectors": [{"vendors": ["8086"], "devices": ["0d90"]}]}
]}`

func newSriovRig(t *testing.T) *sriovRig {
	t.Helper()
	tree := sysfstest.New(t)
	write := func(name, value string) {
		testkit.Must(t, tree.Write(name, value))
	}
	tree.Add(sysfstest.Function{Address: "0000:00:03.0", Vendor: "1af4", Device: "1041", Driver: "virtio-pci", NUMA: -1, Netdev: "eth0"})
	tree.Add(sysfstest.Function{Address: "0000:3b:00.0", Vendor: "15b3", Device: "101d", Driver: "mlx5_core", NUMA: 1, IOMMUGroup: "17",
		Netdev: "ens1f0", TotalVFs: 8, VFDevice: "101e", VFDriver: "mlx5_core", Offset: 2})
	tree.Add(sysfstest.Function{Address: "0000:5e:00.0", Vendor: "8086", Device: "1592", Driver: "ice", Netdev: "ens2f0", TotalVFs: 64, VFDevice: "1889", VFDriver: "iavf"})
	tree.Add(sysfstest.Function{Address: "0000:8a:00.0", Class: 0x120000, Vendor: "8086", Device: "0d90", Driver: "igb_uio", NUMA: -1})
	write("bus/pci/devices/0000:3b:00.0/sriov_numvfs", "2")
	write("bus/pci/devices/0000:5e:00.0/sriov_numvfs", "4")
	mlx, intel := tree.Virtual("0000:3b:00.0"), tree.Virtual("0000:5e:00.0")
	tree.AddRDMA(sysfstest.Device(mlx[1]), "mlx5_3", "0x8001")
	for _, v := range intel[1:] {
		write("bus/pci/devices/"+v+"/driver/unbind", v)
	}
	for _, v := range intel[2:] {
		write("bus/pci/devices/"+v+"/driver_override", "vfio-pci")
		write("bus/pci/drivers/vfio-pci/bind", v)
	}
	tree.AddScalable("0000:3b:00.0", 4)
	tree.AddScalable("0000:3b:00.0", 88)
	links, _ := sysfstest.Links{Tree: tree}.Links(t.Context())
	for _, l := range links {
		if l.Name == "eth0" {
			tree.Route(l.Index)
		}
	}
	r := &sriovRig{tree: tree, config: filepath.Join(t.TempDir(), "config.json")}
	r.configure(t, sriovTestConfig)
	return r
}

func (r *sriovRig) configure(t *testing.T, text string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(r.config, []byte(text), 0o600))
}

// run runs a command of cleat sriov on the rig's machine.
func (r *sriovRig) run(t *testing.T, args ...string) (out, notices string, err error) {
	t.Helper()
	links := sysfstest.Links{Tree: r.tree}
	c := &cobra.Command{Use: "cleat"}
	c.AddCommand(newSriovListCommand(links), newSriovExplainCommand(links))
	return execute(t, c, "", append(args, "--sysfs-root", r.tree.Sysfs, "--config-file", r.config)...)
}

// runSriov runs a command of cleat sriov as it is.
func runSriov(t *testing.T, stdin string, args ...string) (out, notices string, err error) {
	t.Helper()
	return execute(t, newRootCommand(), stdin, append([]string{"sriov"}, args...)...)
}

func TestSriovTables(t *testing.T) {
	r := newSriovRig(t)
	var text strings.Builder
	for _, args := range [][]string{
		{"list"},
		{"list", "--all"},
		{"list", "--resource", "rest"},
		{"explain"},
		{"explain", "--free"},
		{"explain", "--resource", "intel.com/dpdk"},
		{"explain", "--resource", "fec"},
		{"explain", "3b:00.3", "eth0"},
		{"explain", "0000:5e:02.1"},
		{"explain", "MLX5_core.sf.2"},
	} {
		out, notices, err := r.run(t, args...)
		if err != nil || notices != "" {
			t.Errorf("%q: %v, %s", args, err, notices)
		}
		text.WriteString("$ " + strings.Join(args, " ") + "\n" + out + "\n")
	}
	for line := range strings.Lines(text.String()) {
		if len([]rune(line)) > 121 {
			t.Errorf("too wide for a terminal: %s", line)
		}
	}
	golden(t, "sriov_tables.txt", text.String())
}

func TestSriovDocuments(t *testing.T) {
	r := newSriovRig(t)
	var text strings.Builder
	for _, args := range [][]string{
		{"list", "--resource", "rdma", "-o", "json"},
		{"explain", "5e:02.0", "mlx5_core.sf.3", "-o", "yaml"},
	} {
		out, notices, err := r.run(t, args...)
		if err != nil || notices != "" {
			t.Errorf("%q: %v, %s", args, err, notices)
		}
		text.WriteString("$ " + strings.Join(args, " ") + "\n" + out + "\n")
	}
	golden(t, "sriov_documents.txt", text.String())
}

// Documents have all data of the tables, and empty lists instead of null.
func TestSriovDocumentShape(t *testing.T) {
	r := newSriovRig(t)
	r.configure(t, `{"resourceList": []}`)
	for command, want := range map[string][]string{
		"list":    {"devices", "problems"},
		"explain": {"devices", "resources", "warnings", "problems"},
	} {
		out, notices, err := r.run(t, command, "-o", "json")
		if err != nil || notices != "" {
			t.Fatalf("%s: %v, %s", command, err, notices)
		}
		var document map[string][]map[string]any
		if err := json.Unmarshal([]byte(out), &document); err != nil {
			t.Fatalf("%s: %v in %s", command, err, out)
		}
		for _, key := range want {
			if document[key] == nil {
				t.Errorf("%s: %s is no list in %s", command, key, out)
			}
		}
	}
}

// Without a config.json list works, and explain fails.
func TestSriovWithoutConfig(t *testing.T) {
	r := newSriovRig(t)
	run := func(c *cobra.Command, args ...string) (out, notices string, err error) {
		// Set as default, which does not mark the flag as changed.
		testkit.Must(t, c.Flags().Lookup("config-file").Value.Set("/nonexistent/config.json"))
		return execute(t, c, "", append(args, "--sysfs-root", r.tree.Sysfs)...)
	}
	links := sysfstest.Links{Tree: r.tree}
	out, notices, err := run(newSriovListCommand(links))
	if err != nil || notices != "" || strings.Contains(out, "RESOURCE") || !strings.Contains(out, "VF 1 of ens1f0") {
		t.Errorf("%v, %s, %s", err, notices, out)
	}
	_, _, unlisted := run(newSriovListCommand(links), "--resource", "dpdk")
	_, _, given := run(newSriovListCommand(links), "--config-file", "/nonexistent/config.json")
	_, _, unexplained := run(newSriovExplainCommand(links))
	for _, err := range []error{unlisted, given, unexplained} {
		if err == nil || !strings.Contains(err.Error(), "/nonexistent/config.json") || !strings.Contains(err.Error(), "--config-file") {
			t.Errorf("%v", err)
		}
	}
}

func TestSriovErrors(t *testing.T) {
	r := newSriovRig(t)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"explain", "0000:3b:00.9"}, `function "0000:3b:00.9" not found on this machine; did you mean "0000:3b:00.0"?`},
		{[]string{"explain", "ens2f0v"}, `did you mean "ens2f0`},
		{[]string{"explain", "nothing-like-it"}, "see: cleat sriov list --all"},
		{[]string{"explain", "--resource", "nic"}, `resource "nic" not found, the configured resources are: intel.com/dpdk, example.com/rdma`},
		{[]string{"explain", "3b:00.2", "--free"}, "cannot be combined"},
		{[]string{"list", "x"}, "expects no arguments"},
		{[]string{"list", "-o", "jsn"}, `did you mean "json"?`},
		{[]string{"list", "--sysfs-root", "/nonexistent"}, "/nonexistent"},
	} {
		args := c.args
		if args[len(args)-1] == "/nonexistent" { // the last one counts
			links := sysfstest.Links{Tree: r.tree}
			_, _, err := execute(t, newSriovListCommand(links), "", args[1:]...)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q: %v", args, err)
			}
			continue
		}
		if _, _, err := r.run(t, args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", args, err, c.want)
		}
	}
	r.configure(t, `{"resourceList": [{"resourceName": "a"`)
	for _, command := range []string{"list", "explain"} {
		if _, _, err := r.run(t, command); err == nil || !strings.Contains(err.Error(), "config.json: line 1") {
			t.Errorf("%s: %v", command, err)
		}
	}
	r.configure(t, `{"resourceList": [{"resourceName": "a", "selectors": [{"vendors": ["15b3"]}]},
		{"resourceName": "a", "resourcePrefix": "x.org", "selectors": [{"vendors": ["8086"]}]}]}`)
	if _, _, err := r.run(t, "list", "--resource", "a"); err == nil || !strings.Contains(err.Error(), "intel.com/a, x.org/a") {
		t.Errorf("%v", err)
	}
}

// A function without SR-IOV is listed if a resource or a pod has it.
func TestSriovPlainFunction(t *testing.T) {
	r, k := newSriovRig(t), &sriovPods{}
	r.tree.Route()
	listed := func(args ...string) bool {
		out, notices, err := r.run(t, append([]string{"list"}, args...)...)
		if err != nil || notices != "" {
			t.Errorf("%v, %s", err, notices)
		}
		return strings.Contains(out, "0000:00:03.0")
	}
	if listed() || !listed("--all") {
		t.Error("a plain function shows without --all, or not with it")
	}
	k.add("web", "main", "other.org/nic", "0000:00:03.0")
	if !listed("--kubelet-dir", k.serve(t)) {
		t.Error("a function that a pod has does not show")
	}
	r.configure(t, `{"resourceList": [{"resourceName": "a", "selectors": [{"vendors": ["1af4"]}]}]}`)
	if !listed() {
		t.Error("a function that a resource takes does not show")
	}
}

// Warnings about config.json are shown, and do not stop the commands.
func TestSriovWarnings(t *testing.T) {
	r := newSriovRig(t)
	r.configure(t, `{"resourceList": [{"resourceName": "a", "selectors": [{"pfName": ["ens1f0"]}]},
		{"resourceName": "b", "selectors": [{"vendors": ["8086"]}]}]}`)
	out, notices, err := r.run(t, "explain")
	for _, want := range []string{`warning: intel.com/a: config.json, line 1, column 56: resourceList[0].selectors[0].pfName: there is no key "pfName"`,
		"warning: intel.com/b: no device is in it"} {
		if err != nil || notices != "" || !strings.Contains(out, want) {
			t.Errorf("%v, %s, no %q in %s", err, notices, want, out)
		}
	}
	out, notices, err = r.run(t, "list")
	if err != nil || !strings.Contains(notices, "2 warnings for") || strings.Contains(out, "warning") {
		t.Errorf("%v, %q, %s", err, notices, out)
	}
	out, _, err = r.run(t, "explain", "--resource", "a")
	if err != nil || strings.Contains(out, "intel.com/b") {
		t.Errorf("%v, %s", err, out)
	}
}

// Names from the kernel and from files cannot inject terminal escapes.
func TestSriovHostileNames(t *testing.T) {
	r := newSriovRig(t)
	tree := r.tree
	tree.ChangeLink("ens1f0v1", func(l *netlinks.Link) { l.MAC = "\x1b[31m" })
	tree.File("devices/pci0000:5e/0000:5e:00.0/vendor", "0x80\x1b[2J")
	r.configure(t, `{"resourceList": [{"resourceName": "a", "selectors": [{"pfNames": ["\u001b[31m#0"], "\u001b]0;x": 1}]}]}`)
	for _, args := range [][]string{{"list", "--all"}, {"explain"}, {"explain", "ens1f0v1"}, {"explain", "5e:00.0"}} {
		out, notices, err := r.run(t, args...)
		if err != nil || strings.ContainsAny(out+notices, "\x1b") {
			t.Errorf("%q: %v, %q, %q", args, err, out, notices)
		}
	}
}

// Without a rig the commands inspect the local machine.
func TestSriovLocalMachine(t *testing.T) {
	for _, args := range [][]string{{"list", "--all", "-o", "json"}, {"list", "--sysfs-root", "/nonexistent"}} {
		out, _, err := runSriov(t, "", args...)
		if len(args) == 4 && (err != nil || !strings.Contains(out, `"devices": [`)) || len(args) == 3 && err == nil {
			t.Errorf("%q: %v, %s", args, err, out)
		}
	}
}

// sriovPods is a fake PodResources server.
type sriovPods struct {
	podresourcesv1.UnimplementedPodResourcesListerServer
	pods    []*podresourcesv1.PodResources
	kubelet *plugintest.Kubelet // nil: GetAllocatableResources is unimplemented
}

func (k *sriovPods) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	return &podresourcesv1.ListPodResourcesResponse{PodResources: k.pods}, nil
}

func (k *sriovPods) GetAllocatableResources(ctx context.Context, r *podresourcesv1.AllocatableResourcesRequest) (*podresourcesv1.AllocatableResourcesResponse, error) {
	if k.kubelet == nil {
		return k.UnimplementedPodResourcesListerServer.GetAllocatableResources(ctx, r)
	}
	offered, err := k.kubelet.Offered(ctx)
	all := &podresourcesv1.AllocatableResourcesResponse{}
	for resource, ids := range offered {
		all.Devices = append(all.Devices, &podresourcesv1.ContainerDevices{ResourceName: resource, DeviceIds: ids})
	}
	return all, err
}

func (k *sriovPods) add(pod, container, resource string, ids ...string) {
	k.pods = append(k.pods, &podresourcesv1.PodResources{Namespace: "default", Name: pod, Containers: []*podresourcesv1.ContainerResources{{
		Name: container, Devices: []*podresourcesv1.ContainerDevices{{ResourceName: resource, DeviceIds: ids}},
	}}})
}

// serve starts the server and returns the kubelet directory.
func (k *sriovPods) serve(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	k.serveBelow(t, dir)
	return dir
}

func (k *sriovPods) serveBelow(t *testing.T, dir string) {
	t.Helper()
	testkit.Must(t, os.Mkdir(filepath.Join(dir, "pod-resources"), 0o755))
	l := testkit.Value(net.Listen("unix", filepath.Join(dir, "pod-resources/kubelet.sock")))(t)
	server := grpc.NewServer()
	podresourcesv1.RegisterPodResourcesListerServer(server, k)
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// Pods reported by the kubelet are shown; a function held by a pod stays in its
// resource.
func TestSriovPods(t *testing.T) {
	r, k := newSriovRig(t), &sriovPods{}
	k.add("web", "main", "example.com/rdma", "0000:3b:00.3")
	k.add("dpdk-0", "a", "intel.com/dpdk", "0000:5e:02.1", "0000:5e:03.7")
	k.add("dpdk-0", "b", "intel.com/dpdk", "0000:5e:02.1")
	k.add("old", "\x1b[31m", "intel.com/removed", "0000:5e:02.2")
	k.add("gpu", "main", "example.com/gpu", "GPU-1")
	dir := k.serve(t)
	var text strings.Builder
	for _, args := range [][]string{
		{"list"},
		{"explain"},
		{"explain", "--resource", "dpdk"},
		{"explain", "0000:5e:02.1", "0000:5e:02.2"},
		{"explain", "0000:5e:02.1", "-o", "json"},
	} {
		out, notices, err := r.run(t, append(args, "--kubelet-dir", dir)...)
		if err != nil || notices != "" || strings.Contains(out, "\x1b") {
			t.Errorf("%q: %v, %s", args, err, notices)
		}
		text.WriteString("$ " + strings.Join(args, " ") + "\n" + out + "\n")
	}
	golden(t, "sriov_pods.txt", text.String())
}

// An unreachable kubelet set by a flag is reported, and the functions are shown.
func TestSriovPodsUnknown(t *testing.T) {
	r := newSriovRig(t)
	dir := t.TempDir()
	out, notices, err := r.run(t, "list", "--kubelet-dir", dir)
	if err != nil || strings.Contains(out, "POD") || !strings.Contains(notices, "read failed: pods: ") || !strings.Contains(notices, dir) {
		t.Errorf("%v, %q, %s", err, notices, out)
	}
	out, _, err = r.run(t, "explain", "--pod-resources-socket", filepath.Join(dir, "none.sock"))
	if err != nil || !strings.Contains(out, "read failed: pods: ") || !strings.Contains(out, "none.sock") {
		t.Errorf("%v, %s", err, out)
	}
}

func TestSriovCompletion(t *testing.T) {
	r := newSriovRig(t)
	t.Setenv("CLEAT_SYSFS_ROOT", r.tree.Sysfs)
	t.Setenv("CLEAT_CONFIG_FILE", r.config)
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"explain", "0000:5e:02.3"}, "0000:5e:02.3\tVF 3 of ens2f0\n:4\n"},
		{[]string{"explain", "--resource", "intel.com/g"}, "intel.com/gone\n:4\n"},
		{[]string{"list", "--resource", "example"}, "example.com/rdma\n:4\n"},
	} {
		out, _, err := execute(t, newRootCommand(), "", append([]string{"__complete", "sriov"}, c.args...)...)
		if err != nil || out != c.want {
			t.Errorf("%q: %v, %q, want %q", c.args, err, out, c.want)
		}
	}
}

// A function that cannot be read is not absent.
func TestSriovExplainUnreadable(t *testing.T) {
	r := newSriovRig(t)
	dir := sysfstest.Device("0000:8a:00.0")
	r.tree.Remove(dir + "/modalias")
	r.tree.File(dir+"/class", "0xzz0000")
	_, _, err := r.run(t, "explain", "0000:8a:00.0")
	testkit.WantError(t, "explain", err, nil, `function "0000:8a:00.0" not found`, "0xzz0000")
}

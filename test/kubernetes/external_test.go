package kubernetes

import (
	"cmp"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/deploy/image/oci"
	"github.com/cleatproject/cleat/test/kubernetes/cluster"
	"github.com/cleatproject/cleat/test/kubernetes/external"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// limited is a driver with a low limit of volumes.
var limited = release{name: "limited", values: `
csi:
  driverName: limited.cleat.dev
  maxVolumes: 2
  pool: {image: 1GiB, overprovisionRatio: 100}
  storageClasses:
  - {name: limited-xfs, fsType: xfs}
`}

// TestExternalStorage runs Kubernetes' storage specs from e2e.test: a few named
// ones, or with CLEAT_E2E=full all that apply to the drivers' capabilities
// (`make e2e-full`, docs/e2e.md).
func TestExternalStorage(t *testing.T) {
	full := os.Getenv("CLEAT_E2E") == "full"
	if !full {
		t.Parallel()
	}
	names := external.Releases()
	if !full && !soak.Enabled {
		names = slices.DeleteFunc(names, func(n string) bool { return n == limited.name }) // TestCapacityAndLimit covers limits
	}
	if only := os.Getenv("CLEAT_E2E_RELEASES"); full && only != "" {
		names = strings.Split(only, ",")
	}
	definitions := testkit.Value(external.Definitions("external", names...))(t)
	if slices.Contains(names, limited.name) {
		testkit.Must(t, limited.install(t.Context(), testCluster))
		t.Cleanup(func() {
			if err := limited.uninstall(context.Background(), testCluster); err != nil {
				t.Error(err)
			}
		})
	}
	program := suiteProgram(t, definitions)
	importSuiteImages(t, program, testCluster.Import)
	if full {
		fullRun(t, program, definitions)
		return
	}
	specs := testkit.Value(external.Named())(t)
	specs = soak.Pick(4, specs)
	began := time.Now()
	results := program.Run(t.Context(), specs, 3, 1, os.Stdout)
	t.Logf("REPORT: %d specs of Kubernetes' external storage in %s\n%s", len(results), time.Since(began).Round(time.Second), external.Table(results))
	for _, r := range results {
		if r.State != external.Passed {
			t.Errorf("%s: %s: %s: %s\n%s", r.Driver, r.Name, r.State, r.Message, r.Location)
		}
	}
}

// suiteProgram returns e2e.test configured for the cluster.
func suiteProgram(t *testing.T, definitions []external.Definition) external.Program {
	t.Helper()
	dir := t.TempDir()
	if out := os.Getenv("CLEAT_E2E_OUTPUT"); out != "" {
		dir = filepath.Join(out, "logs")
		testkit.Must(t, os.MkdirAll(dir, 0o755))
	}
	p := external.Program{Path: testCluster.Programs.Path("e2e.test"), Kubeconfig: testCluster.Kubeconfig, Kubectl: testCluster.Programs.Path("kubectl"), Dir: dir}
	for _, d := range definitions {
		p.Definitions = append(p.Definitions, d.File)
	}
	return p
}

// fullRun runs the specs covered by each definition, one driver after the
// other, and writes the record.
func fullRun(t *testing.T, program external.Program, definitions []external.Definition) {
	out := os.Getenv("CLEAT_E2E_OUTPUT")
	if out == "" {
		t.Fatal("CLEAT_E2E=full needs CLEAT_E2E_OUTPUT, a directory for results and logs")
	}
	processes, err := strconv.Atoi(cmp.Or(os.Getenv("CLEAT_E2E_PROCESSES"), strconv.Itoa(2*runtime.NumCPU()+2)))
	if err != nil || processes < 1 || processes > 16 {
		t.Fatalf("CLEAT_E2E_PROCESSES is %q, want 1 to 16", os.Getenv("CLEAT_E2E_PROCESSES"))
	}
	all := testkit.Value(program.List(t.Context()))(t)
	// With CLEAT_E2E_AGAIN the last run continues: results of other drivers and
	// passed specs are kept.
	file := filepath.Join(out, "last-run.json")
	again := os.Getenv("CLEAT_E2E_AGAIN") != ""
	record := testkit.Value(external.ReadRecord(file))(t)
	if !again {
		record = &external.Record{}
	}
	record.Versions, record.Machine = versions(t), machine(t)
	var results []external.Result
	for _, d := range definitions {
		specs := slices.DeleteFunc(slices.Clone(all), func(s external.Spec) bool { return !d.Covers(s) })
		former := record.Driver(d.Driver)
		whole := len(former.Results) == 0
		if !whole {
			specs = former.Unfinished()
		}
		var run []external.Spec
		var of []external.Result
		for _, s := range specs {
			if reason := d.LeftOut(s); reason != "" {
				of = append(of, external.Result{Spec: s, State: external.LeftOut, Message: reason})
			} else {
				run = append(run, s)
			}
		}
		began := time.Now()
		of = append(of, program.Run(t.Context(), run, processes, 4, os.Stdout)...)
		took := int(time.Since(began).Seconds())
		if whole {
			former = external.DriverRecord{Release: d.Release, Driver: d.Driver, Definition: d.Sum, Date: began.UTC().Format(time.DateOnly),
				Seconds: took, Processes: processes, Results: of}
		} else {
			former.Replace(of)
			former.Seconds += took
		}
		record.Put(former)
		results = append(results, former.Results...)
		t.Logf("REPORT: %s: %d specs in %d s\n%s", d.Driver, len(of), took, external.Table(former.Results))
		testkit.Must(t, record.Write(file))
	}
	if os.Getenv("CLEAT_E2E_RECORD") != "" {
		testkit.Must(t, record.Keep(external.RecordFile, "../../docs/e2e.md"))
	}
	testkit.Must(t, external.WriteJUnit(filepath.Join(out, "junit.xml"), results))
	for _, r := range results {
		if _, known := external.ReasonOf(r); r.Failed() || r.Inapplicable() && !known {
			t.Errorf("%s: %s: %s: %s\n%s", r.Driver, r.Name, r.State, r.Message, r.Location)
		}
	}
}

// versions returns the versions of all programs involved, as the programs print
// them.
func versions(t *testing.T) []external.Version {
	t.Helper()
	var all []external.Version
	for _, p := range [][2]string{
		{"e2e.test", "Kubernetes"}, {"csi-provisioner", "external-provisioner"}, {"csi-attacher", "external-attacher"},
		{"csi-resizer", "external-resizer"}, {"csi-snapshotter", "external-snapshotter"},
	} {
		info := testkit.Value(buildinfo.ReadFile(testCluster.Programs.Path(p[0])))(t)
		all = append(all, external.Version{Program: p[1], Version: info.Main.Version})
	}
	for _, p := range [][]string{{"containerd", "--version"}, {"etcd", "--version"}} {
		text := testkit.Value(exec.CommandContext(t.Context(), p[0], p[1]).Output())(t)
		words := strings.Fields(string(text)) // "containerd github.com/containerd/containerd 1.6.20~ds1 …", "etcd Version: 3.4.23 …"
		if len(words) < 3 {
			t.Fatalf("%s: cannot parse version %q", p[0], text)
		}
		all = append(all, external.Version{Program: p[0], Version: words[2]})
	}
	return all
}

// machine describes what affects durations and capabilities.
func machine(t *testing.T) string {
	t.Helper()
	var u unix.Utsname
	testkit.Must(t, unix.Uname(&u))
	release := strings.SplitN(unix.ByteSliceToString(u.Release[:]), ".", 3)
	text := fmt.Sprintf("%d cores, Linux %s", runtime.NumCPU(), strings.Join(release[:min(2, len(release))], "."))
	held := testkit.Value(unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0))(t)
	if held == 0 {
		text += ", without CAP_SYS_RESOURCE"
	}
	return text
}

// importSuiteImages imports the images of the specs under their original names;
// agnhost is the real program, with a shell.
func importSuiteImages(t *testing.T, program external.Program, nodes ...func(context.Context, string) error) {
	t.Helper()
	references := testkit.Value(program.Images(t.Context()))(t)
	var images []oci.Image
	for _, reference := range references {
		name, _, _ := strings.Cut(path.Base(reference), ":")
		image, err := cluster.BusyboxImage(t.Context(), reference, "/bin/sh")
		switch {
		case err != nil:
			t.Fatal(err)
		case !strings.HasPrefix(reference, "registry.k8s.io/"):
			continue
		case name == "busybox", name == "nginx": // the specs use only a shell of these
		case name == "glibc-dns-testing": // and of this, dd with a flag that busybox lacks
			image.Layers = append(image.Layers, coreutils(t))
		case name == "pause":
			image.Entrypoint = []string{"/bin/sleep", "2147483647"}
		case name == "agnhost":
			image.Entrypoint, image.Cmd = []string{"/agnhost"}, []string{"pause"}
			image.Layers = append(image.Layers, cluster.ProgramImage(reference, testCluster.Programs.Path("agnhost")).Layers...)
		default:
			continue
		}
		images = append(images, image)
	}
	archive := filepath.Join(t.TempDir(), "suite.tar")
	testkit.Must(t, cluster.WriteImages(archive, images...))
	for _, into := range nodes {
		testkit.Must(t, into(t.Context(), archive))
	}
}

// coreutils has the machine's dd with its libraries, and its shell: busybox's
// shell would use its built-in dd.
func coreutils(t *testing.T) oci.Layer {
	t.Helper()
	var files []oci.File
	seen := map[string]bool{}
	add := func(path, source string) {
		if !seen[path] {
			seen[path] = true
			files = append(files, oci.File{Path: path, Mode: 0o755, Content: oci.HostFile(source)})
		}
	}
	for name, path := range map[string]string{"dd": "/usr/sbin/dd", "sh": "/bin/sh"} {
		program, err := exec.LookPath(name)
		if err == nil {
			program, err = filepath.EvalSymlinks(program)
		}
		testkit.Must(t, err)
		add(path, program)
		out := testkit.Value(exec.CommandContext(t.Context(), "ldd", program).Output())(t)
		for _, word := range strings.Fields(string(out)) { // "libc.so.6 => /lib/…/libc.so.6 (0x…)", "/lib64/ld-linux-x86-64.so.2 (0x…)"
			if strings.HasPrefix(word, "/") {
				add(word, word)
			}
		}
	}
	return oci.FileLayer(files...)
}

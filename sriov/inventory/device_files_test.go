package inventory

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

const (
	infoFile = "example.com-net-0000:02:02.0-device.json"
	specFile = "sriov-dp-example.com-net-pci-net.yaml"
)

func files(t *testing.T) DeviceFiles {
	root := t.TempDir()
	return DeviceFiles{DeviceInfo: filepath.Join(root, "cni/devinfo/dp"), CDI: filepath.Join(root, "cdi")}
}

func read(t *testing.T, path string) string {
	t.Helper()
	content := testkit.Value(os.ReadFile(path))(t)
	return string(content)
}

func list(t *testing.T, f DeviceFiles) []string {
	t.Helper()
	var all []string
	for _, dir := range []string{f.DeviceInfo, f.CDI} {
		entries, err := os.ReadDir(dir)
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, e := range entries {
			all = append(all, e.Name())
		}
	}
	slices.Sort(all)
	return all
}

func TestWrite(t *testing.T) {
	f := files(t)
	for _, content := range []string{"first", "second and longer", "3"} {
		for file, dir := range map[string]string{infoFile: f.DeviceInfo, specFile: f.CDI} {
			testkit.Must(t, f.Write(file, []byte(content)))
			path := filepath.Join(dir, file)
			if got := read(t, path); got != content {
				t.Errorf("%s is %q, want %q", file, got, content)
			}
			if info, err := os.Stat(path); err != nil || info.Mode() != 0o644 {
				t.Errorf("%s: mode %v, %v, want 0644", file, info.Mode(), err)
			}
		}
		testkit.Diff(t, "files", []string{infoFile, specFile}, list(t, f))
	}
	for _, dir := range []string{f.DeviceInfo, f.CDI} {
		if info, err := os.Stat(dir); err != nil || info.Mode() != fs.ModeDir|0o755 {
			t.Errorf("%s: %v, %v, want mode 0755", dir, info, err)
		}
	}
}

// Runtimes watch these directories.
func TestWriteKeepsUnchangedFile(t *testing.T) {
	f := files(t)
	path := filepath.Join(f.CDI, specFile)
	inode := func() fs.FileInfo {
		t.Helper()
		testkit.Must(t, f.Write(specFile, []byte("same")))
		return testkit.Value(os.Stat(path))(t)
	}
	if first := inode(); !os.SameFile(first, inode()) {
		t.Error("the file was rewritten with the same content")
	}
	testkit.Must(t, os.WriteFile(path, []byte("samE"), 0o644))
	if inode(); read(t, path) != "same" {
		t.Error("a file of the same size was not rewritten")
	}
}

func TestWriteReplacesNonRegularFiles(t *testing.T) {
	f := files(t)
	testkit.Must(t, os.MkdirAll(f.CDI, 0o755))
	path, target := filepath.Join(f.CDI, specFile), filepath.Join(t.TempDir(), "target")
	for name, put := range map[string]func() error{
		"link":         func() error { return os.Symlink(target, path) },
		"link to same": func() error { return os.Symlink(target, path) },
		"pipe":         func() error { return exec.Command("mkfifo", path).Run() },
	} {
		testkit.Must(t, os.WriteFile(target, []byte("theirs"), 0o644))
		content := "ours"
		if name == "link to same" {
			content = "theirs"
		}
		testkit.Must(t, put(), f.Write(specFile, []byte(content)))
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || read(t, path) != content {
			t.Errorf("%s: %v, %v, want a file with %q", name, info, err, content)
		}
		if got := read(t, target); got != "theirs" {
			t.Errorf("%s: the target is %q, want it untouched", name, got)
		}
		testkit.Must(t, os.Remove(path))
	}
}

func TestWriteFails(t *testing.T) {
	f := files(t)
	testkit.Must(t, os.MkdirAll(filepath.Join(f.CDI, specFile, "x"), 0o755))
	testkit.WantError(t, "Write over a directory", f.Write(specFile, []byte("a")), nil, specFile)
	testkit.Diff(t, "after a failure", []string{specFile}, list(t, f))
	blocked := DeviceFiles{CDI: filepath.Join(t.TempDir(), "file", "cdi")}
	testkit.Must(t, os.WriteFile(filepath.Dir(blocked.CDI), nil, 0o644))
	if err := blocked.Write(specFile, nil); err == nil || !strings.Contains(err.Error(), blocked.CDI) && !strings.Contains(err.Error(), filepath.Dir(blocked.CDI)) {
		t.Errorf("Write below a file: %v, want an error that names it", err)
	}
	if err := (DeviceFiles{CDI: f.CDI}).Write(infoFile, nil); err == nil {
		t.Error("Write succeeds without a directory for device information, want an error")
	}
}

func TestForeignFileNames(t *testing.T) {
	f := files(t)
	for _, name := range []string{
		"", ".", "..", "x", "sriov-dp-x", "sriov-dp-x.json", "x.yaml", "x-device.JSON", "../x-device.json", "sriov-dp-/../../etc/x.yaml", "/etc/x-device.json",
		"a\x00-device.json", "sriov-dp-\xff.yaml", "a b-device.json", ".x-device.json", "sriov-dp-a\n.yaml", strings.Repeat("a", 250) + "-device.json",
	} {
		if err := f.Write(name, []byte("x")); err == nil {
			t.Errorf("Write(%q) succeeded, want an error", name)
		}
		if err := f.Remove(name); err == nil {
			t.Errorf("Remove(%q) succeeded, want an error", name)
		}
	}
	if got := list(t, f); got != nil {
		t.Errorf("files %q were created, want none", got)
	}
}

func TestRemove(t *testing.T) {
	f := files(t)
	for _, file := range []string{infoFile, specFile} {
		if err := f.Remove(file); err != nil {
			t.Errorf("Remove of a missing file: %v, want no error", err)
		}
		testkit.Must(t, f.Write(file, []byte("x")))
		if err := f.Remove(file); err != nil {
			t.Error(err)
		}
	}
	if got := list(t, f); got != nil {
		t.Errorf("files %q are left, want none", got)
	}
	testkit.Must(t, os.MkdirAll(filepath.Join(f.CDI, specFile, "x"), 0o755))
	testkit.WantError(t, "Remove of a directory succeeded, want an error", f.Remove(specFile), nil)
}

func TestSweep(t *testing.T) {
	f := files(t)
	old := time.Now().Add(-time.Hour)
	put := func(dir, name string, at time.Time) {
		t.Helper()
		path := filepath.Join(dir, name)
		testkit.Must(t, os.MkdirAll(dir, 0o755), os.WriteFile(path, []byte("x"), 0o600))
		testkit.Must(t, os.Chtimes(path, at, at))
	}
	others := []string{
		"example.com-other-0000:02:02.0-device.json",
		"example.com-net-b-0000:02:02.0-device.json",
		"example.com-net-mlx5_core.sf.4-device.json", "example.com-net--device.json", "example.com-net-0000:02:02.9-device.json",
		"example.com-net-0000:02:02.0-device.json.bak", "example.com-net-0000:02:02.0", "x", ".cleat-x", "spec.1.tmp",
	}
	for _, name := range append(others, infoFile, "example.com-net-0000:02:02.1-device.json", "example.com-net-10000:e1:02.7-device.json") {
		put(f.DeviceInfo, name, old)
	}
	vendors := []string{"nvidia.yaml", "sriov-x.yaml", "sriov-dp-x.txt", "x-sriov-dp-y.yaml"}
	for _, name := range append(vendors, specFile, "sriov-dp-intel.com-net-pci-gone.yaml", "sriov-dp-.yaml") {
		put(f.CDI, name, old)
	}
	put(f.CDI, ".cleat-old.tmp", old)
	put(f.DeviceInfo, ".cleat-old.tmp", old)
	put(f.CDI, ".cleat-running.tmp", time.Now())
	directory := "sriov-dp-directory.yaml"
	testkit.Must(t, os.Mkdir(filepath.Join(f.CDI, directory), 0o755))

	removed := testkit.Value(f.Sweep([]Resource{allocateResource(Accelerator), allocateResource(NetDevice)}, func(file string) bool { return file == infoFile || file == specFile }))(t)
	slices.Sort(removed)
	want := []string{".cleat-old.tmp", ".cleat-old.tmp", "example.com-net-0000:02:02.1-device.json", "example.com-net-10000:e1:02.7-device.json", "sriov-dp-.yaml", "sriov-dp-intel.com-net-pci-gone.yaml"}
	testkit.Diff(t, "removed", want, removed)
	left := slices.Concat(others, vendors, []string{infoFile, specFile, ".cleat-running.tmp", directory})
	slices.Sort(left)
	testkit.Diff(t, "left", left, list(t, f))
}

func TestSweepWithoutFiles(t *testing.T) {
	for _, f := range []DeviceFiles{files(t), {}} {
		if removed, err := f.Sweep(nil, func(string) bool { return false }); removed != nil || err != nil {
			t.Errorf("Sweep of missing directories = %q, %v, want nothing", removed, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	testkit.Must(t, os.WriteFile(file, nil, 0o644))
	f := files(t)
	testkit.Must(t, f.Write(infoFile, nil))
	f.CDI = file
	removed, err := f.Sweep([]Resource{allocateResource(NetDevice)}, func(string) bool { return false })
	if err == nil || !strings.Contains(err.Error(), file) || !slices.Equal(removed, []string{infoFile}) {
		t.Errorf("Sweep with a file as one directory = %q, %v, want an error that names it and the other one swept", removed, err)
	}
}

func TestConcurrentWriteAndRead(t *testing.T) {
	f := files(t)
	content := func(n int) []byte { return bytes.Repeat([]byte{byte('a' + n%26)}, 1+n*977%20000) }
	testkit.Must(t, f.Write(specFile, content(0)))
	var writers, others sync.WaitGroup
	done := make(chan struct{})
	for w := range 4 {
		writers.Go(func() {
			for n := range 50 {
				if err := f.Write(specFile, content(w*50+n)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	others.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
			}
			checkWhole(t, filepath.Join(f.CDI, specFile))
			if _, err := f.Sweep(nil, func(string) bool { return true }); err != nil {
				t.Error(err)
			}
		}
	})
	writers.Wait()
	close(done)
	others.Wait()
	testkit.Diff(t, "left", []string{specFile}, list(t, f))
}

func checkWhole(t *testing.T, path string) {
	t.Helper()
	if got, err := os.ReadFile(path); err != nil || len(got) == 0 || len(bytes.Trim(got, string(got[:1]))) > 0 {
		t.Fatalf("a reader saw %d bytes, %v, want one whole content", len(got), err)
	}
}

func TestKilledWriter(t *testing.T) {
	const variable = "CLEAT_TEST_WRITER"
	if dir := os.Getenv(variable); dir != "" {
		f := DeviceFiles{CDI: dir}
		for n := 0; ; n++ {
			if err := f.Write(specFile, bytes.Repeat([]byte{byte('a' + n%26)}, 200_000+n%7)); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			if n == 0 {
				fmt.Println("writing")
			}
		}
	}
	f := files(t)
	for round := range 15 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestKilledWriter$")
		cmd.Env = append(os.Environ(), variable+"="+f.CDI)
		out := testkit.Value(cmd.StdoutPipe())(t)
		testkit.Must(t, cmd.Start())
		begun := make([]byte, 8)
		if _, err := out.Read(begun); err != nil || string(begun[:7]) != "writing" {
			t.Fatalf("the writer said %q, %v", begun, err)
		}
		time.Sleep(time.Duration(round) * 700 * time.Microsecond)
		testkit.Must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		checkWhole(t, filepath.Join(f.CDI, specFile))
		for _, name := range list(t, f) {
			if name != specFile && (!strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".yaml") || strings.HasSuffix(name, ".json")) {
				t.Errorf("a killed writer left %s, which readers would read", name)
			}
		}
	}
}

// So that they can be logged once.
func TestErrorsOmitTemporaryName(t *testing.T) {
	f := files(t)
	testkit.Must(t, os.MkdirAll(filepath.Join(f.CDI, specFile), 0o755))
	err := f.Write(specFile, []byte("x"))
	if err == nil || strings.Contains(err.Error(), tempPrefix) || !strings.Contains(err.Error(), filepath.Join(f.CDI, specFile)) {
		t.Errorf("%v, want the file and no temporary one", err)
	}
}

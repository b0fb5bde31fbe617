package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/test/testkit"
)

// inside runs a program of the image in a chroot with only /proc, in a mount
// namespace of its own.
func inside(t *testing.T, root, program string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "--root=" + root, "--mount-proc=/proc", program}, args...)...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin"}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestNoUnneededFiles checks that the image has no setuid files, scripts, package
// managers, or files without use in a container.
func TestNoUnneededFiles(t *testing.T) {
	var wrong []string
	executables := map[string]bool{}
	for _, l := range open(t, built.tar).layers {
		each(t, l, func(h *tar.Header, content []byte) {
			mode := h.FileInfo().Mode()
			switch {
			case mode&(fs.ModeSetuid|fs.ModeSetgid) != 0, h.Uid != 0, h.Gid != 0, len(h.PAXRecords) > 0:
				wrong = append(wrong, "rights "+h.Name)
			case mode.Perm()&0o022 != 0 && mode&fs.ModeSticky == 0 && mode.Type() != fs.ModeSymlink:
				wrong = append(wrong, "writable "+h.Name)
			case bytes.HasPrefix(content, []byte("#!")):
				wrong = append(wrong, "script "+h.Name)
			}
			for _, dir := range []string{"usr/share/man/", "usr/share/locale/", "usr/share/info/", "var/lib/apt/", "etc/apt/", "usr/lib/x86_64-linux-gnu/gconv/"} {
				if strings.HasPrefix(h.Name, dir) {
					wrong = append(wrong, "useless "+h.Name)
				}
			}
			if dir, name := path.Split(h.Name); (dir == "usr/bin/" || dir == "usr/sbin/") && name != "" {
				executables[name] = true
			}
		})
	}
	if len(wrong) > 0 {
		t.Errorf("unneeded files: %q", wrong)
	}
	// modprobe and mkfs.ext4 are links to kmod and mke2fs.
	want := append([]string{"cleat", "kmod", "mke2fs"}, variants()[Default].programs...)
	slices.Sort(want)
	var got []string
	for name := range executables {
		got = append(got, name)
	}
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("programs (-want +got)\n%s", diff)
	}
}

func TestPackageRecordsAndLicences(t *testing.T) {
	root := unpacked(t)
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
		}
		return string(data)
	}
	if !strings.Contains(read("usr/lib/os-release"), "VERSION_CODENAME=bookworm\n") {
		t.Error("os-release is not that of Debian 12")
	}
	if !strings.Contains(read("etc/mke2fs.conf"), "[fs_types]") {
		t.Error("mkfs.ext4 has no settings: inode size and count would be built-in defaults")
	}
	record := read("var/lib/dpkg/status")
	names := testkit.Value(parsePackages(packagesFile))(t)
	for _, name := range names {
		_, rest, there := strings.Cut("\n\n"+record, "\n\nPackage: "+name+"\n")
		entry, _, _ := strings.Cut(rest, "\n\n")
		if !there || !strings.HasPrefix(entry, "Status: install ok installed\n") || !strings.Contains(entry, "\nVersion: ") || !strings.Contains(entry, "\nArchitecture: ") {
			t.Errorf("the status of %s is %q", name, entry)
		}
		if data, err := os.ReadFile(filepath.Join(root, "usr/share/doc", name, "copyright")); err != nil || len(data) < 200 {
			t.Errorf("licence of %s: %v, %d bytes", name, err, len(data))
		}
	}
	if n := strings.Count(record, "\nVersion: "); n != len(names) {
		t.Errorf("dpkg's status has %d packages, want %d", n, len(names))
	}
	for _, name := range []string{"usr/share/doc/cleat/copyright", "usr/share/common-licenses/Apache-2.0"} {
		if !strings.Contains(read(name), "Apache License") {
			t.Errorf("%s is not the same licence", name)
		}
	}
	if !strings.Contains(read("usr/share/doc/cleat/go/LICENSE"), "The Go Authors") {
		t.Error("the licence of Go is missing")
	}
	modules, err := filepath.Glob(filepath.Join(root, "usr/share/doc/cleat/modules/google.golang.org/grpc@*/LICENSE"))
	if err != nil || len(modules) != 1 {
		t.Errorf("licences of gRPC: %v, %v", modules, err)
	}
}

// TestProgramsRun runs every program inside the image.
func TestProgramsRun(t *testing.T) {
	root := unpacked(t)
	says := map[string][]string{
		"mkfs.ext4": {"-V", "mke2fs 1."}, "mkfs.xfs": {"-V", "mkfs.xfs version"}, "mkfs.btrfs": {"--version", "mkfs.btrfs, part of btrfs-progs"},
		"e2fsck": {"-V", "e2fsck 1."}, "e2image": {"", "e2image 1."}, "resize2fs": {"", "resize2fs 1."}, "modprobe": {"-V", "kmod version"},
	}
	for _, name := range variants()[Default].programs {
		ask, known := says[name]
		if !known {
			t.Errorf("no version option for %s", name)
			continue
		}
		var found string
		for _, dir := range []string{"/usr/sbin/", "/usr/bin/"} {
			if _, err := os.Lstat(filepath.Join(root, dir, name)); err == nil {
				found = dir + name
			}
		}
		// The usage text, for programs without a version option, comes with an
		// error.
		out, err := inside(t, root, found, strings.Fields(ask[0])...)
		if !strings.Contains(out, ask[1]) || (err != nil && ask[0] != "") {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
	out, err := inside(t, root, Program, "version")
	if want := "cleat " + open(t, built.tar).config.Config.Labels["org.opencontainers.image.version"]; err != nil || !strings.HasPrefix(out, want) {
		t.Errorf("cleat version: %v: %s, want %s", err, out, want)
	}
	// sriov/host runs modprobe by this path.
	if out, err := inside(t, root, "/sbin/modprobe", "--", "no-such-module"); err == nil || !strings.Contains(out, "no-such-module") {
		t.Errorf("modprobe: %v: %s", err, out)
	}
}

// TestFileSystems creates, checks and grows file systems with only the image's
// files.
func TestFileSystems(t *testing.T) {
	root := unpacked(t)
	do := func(program string, args ...string) {
		if out, err := inside(t, root, program, args...); err != nil {
			t.Errorf("%s %v: %v\n%s", program, args, err, out)
		}
	}
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		name := filepath.Join(root, "tmp", fsType)
		testkit.Must(t, errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, 400<<20)))
		program := "/usr/sbin/mkfs." + fsType
		if _, err := os.Lstat(filepath.Join(root, program)); err != nil {
			program = "/usr/bin/mkfs." + fsType
		}
		do(program, "-q", "/tmp/"+fsType)
		f := testkit.Value(os.Open(name))(t)
		info, err := mkfs.Probe(f)
		f.Close()
		if err != nil || string(info.Type) != fsType {
			t.Errorf("%s created %+v, %v", program, info, err)
		}
	}
	do("/usr/sbin/e2fsck", "-f", "-n", "/tmp/ext4")
	testkit.Must(t, os.Truncate(filepath.Join(root, "tmp/ext4"), 500<<20))
	do("/usr/sbin/resize2fs", "/tmp/ext4")
	do("/usr/sbin/e2fsck", "-f", "-n", "/tmp/ext4")
}

// runs lists, for each package of cleat that can start programs, the programs
// it runs. "itself" is /proc/self/exe, "of the user" a program named in a
// configuration.
func runs() map[string][]string {
	const cleat = "github.com/cleatproject/cleat/"
	return map[string][]string{
		cleat + "internal/linux/mkfs":                  {"mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "e2fsck", "e2image", "resize2fs"},
		cleat + "internal/linux/kmod":                  {"modprobe"},
		cleat + "dpu/hostfs":                           {"itself"},
		cleat + "internal/linux/ddptool":               {"of the user"}, // needed for X710 only, see docs/sriov.md
		cleat + "fence/nft":                            {"itself"},
		cleat + "internal/linux/freeze":                {"itself"},
		cleat + "internal/linux/kernelcall":            {"itself"},
		"k8s.io/client-go/plugin/pkg/client/auth/exec": {"of the user"}, // kubeconfigs that name a program
	}
}

// A package that runs another program needs it in the image.
func TestImageHasAllProgramsThatCleatRuns(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "-json=ImportPath,Imports,GoFiles,Dir", "./cmd/cleat")
	cmd.Dir, cmd.Env = testkit.Root(t), append(os.Environ(), "CGO_ENABLED=0")
	out := testkit.Value(cmd.Output())(t)
	known, needed := runs(), map[string]bool{}
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p struct {
			ImportPath, Dir  string
			Imports, GoFiles []string
		}
		testkit.Must(t, d.Decode(&p))
		if !slices.Contains(p.Imports, "os/exec") {
			continue
		}
		what, there := known[p.ImportPath]
		if !there && strings.Contains(p.ImportPath, ".") {
			t.Errorf("%s can run programs: list them in this test, and in variants() if the image needs them", p.ImportPath)
		}
		delete(known, p.ImportPath)
		for _, name := range what {
			if name == "itself" || name == "of the user" {
				continue
			}
			needed[name] = true
			if !names(t, p.Dir, p.GoFiles, name) {
				t.Errorf("%s does not name %s", p.ImportPath, name)
			}
		}
	}
	for name := range known {
		t.Errorf("cleat is not linked with %s, or the package runs no program", name)
	}
	for _, name := range variants()[Default].programs {
		if !needed[name] {
			t.Errorf("the image has %s, but cleat does not run it", name)
		}
		delete(needed, name)
	}
	for name := range needed {
		t.Errorf("the image does not have %s", name)
	}
}

func names(t *testing.T, dir string, files []string, word string) bool {
	t.Helper()
	for _, f := range files {
		text := testkit.Value(os.ReadFile(filepath.Join(dir, f)))(t)
		if bytes.Contains(text, []byte(word)) {
			return true
		}
	}
	return false
}

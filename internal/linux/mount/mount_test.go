package mount

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

var mkfs = map[string]struct {
	size  int64
	flags []string
}{
	"ext4":  {64 << 20, []string{"-q", "-b", "4096"}},
	"xfs":   {300 << 20, []string{"-q", "-K", "-s", "size=4096"}},
	"btrfs": {128 << 20, []string{"-q", "-K", "-s", "4096"}},
}

func newDevice(t *testing.T, fsType string) (path string) {
	t.Helper()
	return attach(t, newImage(t, fsType))
}

func newImage(t *testing.T, fsType string) string {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	writeFile(t, image)
	testkit.Must(t, os.Truncate(image, mkfs[fsType].size))
	args := append(slices.Clone(mkfs[fsType].flags), image)
	scratchfs.Make(t, fsType, args...)
	return image
}

func attach(t *testing.T, image string) string {
	t.Helper()
	file := testkit.Value(os.OpenFile(image, os.O_RDWR, 0))(t)
	defer file.Close()
	d, f, err := loop.Attach(t.Context(), loop.Config{File: file, AutoClear: true})
	testkit.Must(t, err)
	t.Cleanup(func() { f.Close() })
	return d.Path
}

func mustMount(t *testing.T, s Spec) {
	t.Helper()
	testkit.Must(t, Mount(t.Context(), s))
	unmountAfter(t, s.Target)
}

func mustBind(t *testing.T, source, target string, o BindOptions) {
	t.Helper()
	testkit.Must(t, Bind(t.Context(), source, target, o))
	unmountAfter(t, target)
}

func unmountAfter(t *testing.T, target string) {
	t.Cleanup(func() { testkit.Must(t, Unmount(context.Background(), target)) })
}

func mustUnmount(t *testing.T, target string) {
	t.Helper()
	testkit.Must(t, Unmount(t.Context(), target))
	if e, mounted := mustAt(t, target); mounted {
		t.Fatalf("%s is still mounted: %+v", target, e)
	}
}

func mustAt(t *testing.T, target string) (Entry, bool) {
	t.Helper()
	e, ok, err := At(t.Context(), target)
	testkit.Must(t, err)
	return e, ok
}

func mkdir(t *testing.T, path string) {
	t.Helper()
	testkit.Must(t, os.MkdirAll(path, 0o755))
}

func writeFile(t *testing.T, path string) {
	t.Helper()
	testkit.Must(t, os.WriteFile(path, []byte("cleat"), 0o644))
}

func wantError(t *testing.T, err, kind error, words ...string) {
	t.Helper()
	testkit.WantError(t, "the call", err, kind, words...)
}

func TestMountAndUnmount(t *testing.T) {
	for fsType := range mkfs {
		t.Run(fsType, func(t *testing.T) {
			device, target := newDevice(t, fsType), t.TempDir()
			mustMount(t, Spec{Source: device, Target: target, FSType: fsType, Options: []string{"noatime,nosuid", "sync", "defaults"}})
			e, ok := mustAt(t, target)
			if !ok || e.FSType != fsType || e.Source != device || e.Target != target || e.ReadOnly() ||
				!contains(e.Options, "noatime", "nosuid") || !contains(e.SuperOptions, "sync") {
				t.Errorf("mounted %+v (%t)", e, ok)
			}
			writeFile(t, filepath.Join(target, "file"))
			for range 2 {
				mustUnmount(t, target)
			}
			mustMount(t, Spec{Source: device, Target: target, FSType: fsType, ReadOnly: true})
			if _, err := os.Stat(filepath.Join(target, "file")); err != nil {
				t.Error(err)
			}
			testkit.WantError(t, "a write to a read-only mount", os.WriteFile(filepath.Join(target, "other"), nil, 0o600), unix.EROFS)
			if e, _ := mustAt(t, target); !e.ReadOnly() || !contains(e.SuperOptions, "ro") {
				t.Errorf("mounted %+v, want it read-only", e)
			}
		})
	}
}

func contains(all []string, some ...string) bool {
	return !slices.ContainsFunc(some, func(s string) bool { return !slices.Contains(all, s) })
}

func TestMountSaysWhatTheKernelSays(t *testing.T) {
	for fsType := range mkfs {
		t.Run(fsType, func(t *testing.T) {
			target := t.TempDir()
			blank := filepath.Join(t.TempDir(), "blank")
			writeFile(t, blank)
			testkit.Must(t, os.Truncate(blank, mkfs[fsType].size))
			device := attach(t, blank)
			err := Mount(t.Context(), Spec{Source: device, Target: target, FSType: fsType, Options: []string{"noatime", "turbo=9"}})
			wantError(t, err, errs.Invalid, "turbo", "Unknown parameter", device, target)
			err = Mount(t.Context(), Spec{Source: device, Target: target, FSType: fsType})
			wantError(t, err, errs.Precondition, device)
			if fsType != "btrfs" { // gives no reason
				wantError(t, err, errs.Precondition, "kernel messages", "("+filepath.Base(device)+")")
			}
			if _, mounted := mustAt(t, target); mounted {
				t.Error("a refused mount is there")
			}
		})
	}
}

// Quotes, as of the kubelet's context="...", end in this process: the kernel takes
// a value as it is.
func TestOptionsReachTheKernelWithoutQuotes(t *testing.T) {
	device, target := newDevice(t, "ext4"), t.TempDir()
	mustMount(t, Spec{Source: device, Target: target, FSType: "ext4", Options: []string{`errors="remount-ro",noatime`}})
	if e, _ := mustAt(t, target); !contains(e.SuperOptions, "errors=remount-ro") {
		t.Errorf("mounted %+v", e)
	}
	label := `context="system_u:object_r:container_file_t:s0:c1,c2"`
	if _, superblock, err := SplitOptions([]string{"noatime," + label}); err != nil || !slices.Equal(superblock, []string{label}) {
		t.Errorf("the label of a pod is split into %q, %v", superblock, err)
	}
	if _, value, _ := parseOption(label); value != "system_u:object_r:container_file_t:s0:c1,c2" {
		t.Errorf("the label of a pod is %q", value)
	}
}

func TestCheckOptions(t *testing.T) {
	for fsType := range mkfs {
		testkit.Must(t, CheckOptions(fsType, []string{"noatime,nosuid"}), CheckOptions(fsType, nil))
		if fsType != "btrfs" { // which parses options at the mount, before Linux 6.8
			wantError(t, CheckOptions(fsType, []string{"noatime", "turbo=9"}), errs.Invalid, fsType, "turbo", "Unknown parameter")
		}
	}
	wantError(t, CheckOptions("xfs", []string{"discard", "data=ordered"}), errs.Invalid, "data")
	testkit.Must(t, CheckOptions("ext4", []string{"discard", "data=ordered"}))
	wantError(t, CheckOptions("", []string{"remount"}), errs.Invalid, "remount")
	testkit.Must(t, CheckOptions("nosuchfs", []string{"turbo"})) // the node's kernel knows
}

func TestMountOfACloneSaysWhy(t *testing.T) {
	image := newImage(t, "xfs")
	clone := image + ".clone"
	testkit.Run(t, "cp", "--sparse=always", image, clone)
	a, b := attach(t, image), attach(t, clone)
	targetA, targetB := t.TempDir(), t.TempDir()
	mustMount(t, Spec{Source: a, Target: targetA, FSType: "xfs"})
	err := Mount(t.Context(), Spec{Source: b, Target: targetB, FSType: "xfs"})
	wantError(t, err, errs.Precondition, "duplicate UUID")
	mustMount(t, Spec{Source: b, Target: targetB, FSType: "xfs", Options: []string{"nouuid"}})
}

func TestMountRefusals(t *testing.T) {
	device, dir := newDevice(t, "ext4"), t.TempDir()
	link, file := filepath.Join(dir, "link"), filepath.Join(dir, "file")
	testkit.Must(t, os.Symlink("/tmp", link))
	writeFile(t, file)
	for name, c := range map[string]struct {
		spec Spec
		kind error
		word string
	}{
		"no such target":   {Spec{Source: device, Target: filepath.Join(dir, "nothing"), FSType: "ext4"}, errs.Precondition, "must exist"},
		"target is a link": {Spec{Source: device, Target: link, FSType: "ext4"}, errs.Precondition, "symbolic link"},
		"target is a file": {Spec{Source: device, Target: file, FSType: "ext4"}, errs.Precondition, "directories"},
		"relative target":  {Spec{Source: device, Target: "here", FSType: "ext4"}, errs.Invalid, "absolute"},
		"root as target":   {Spec{Source: device, Target: "//", FSType: "ext4"}, errs.Invalid, "absolute"},
		"unknown type":     {Spec{Source: device, Target: dir, FSType: "nosuchfs"}, errs.Unsupported, "nosuchfs"},
		"no such source":   {Spec{Source: filepath.Join(dir, "nothing"), Target: dir, FSType: "ext4"}, errs.Precondition, "nothing"},
		"source no device": {Spec{Source: file, Target: dir, FSType: "ext4"}, errs.Precondition, file},
		"forbidden option": {Spec{Source: device, Target: dir, FSType: "ext4", Options: []string{"source=/dev/null"}}, errs.Invalid, "source"},
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, Mount(t.Context(), c.spec), c.kind, c.word)
		})
	}
	ctx := testkit.Canceled(t)
	wantError(t, Mount(ctx, Spec{Source: device, Target: dir, FSType: "ext4"}), context.Canceled)
	if _, mounted := mustAt(t, dir); mounted {
		t.Error("something is mounted after refusals alone")
	}
}

func TestMountOfAClaimedDevice(t *testing.T) {
	device := newDevice(t, "ext4")
	claim, err := os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0)
	testkit.Must(t, err)
	defer claim.Close()
	err = Mount(t.Context(), Spec{Source: device, Target: t.TempDir(), FSType: "ext4"})
	wantError(t, err, ErrBusy, device)
}

// Other programs open devices exclusively for a moment.
func TestMountWaitsForAPassingClaim(t *testing.T) {
	device := newDevice(t, "ext4")
	target := t.TempDir()
	waitsForAShortUse(t, 50*time.Millisecond, func() (io.Closer, error) { return os.OpenFile(device, os.O_RDONLY|unix.O_EXCL, 0) },
		func() error { return Mount(t.Context(), Spec{Source: device, Target: target, FSType: "ext4"}) })
	unmountAfter(t, target)
}

// Failed mounts leave registrations of two file systems, one of them for the
// device number that the other has later.
func TestMountOfBtrfsWithAStaleRegistration(t *testing.T) {
	image, target := newImage(t, "btrfs"), t.TempDir()
	device, other := newDevice(t, "btrfs"), attach(t, image)
	for _, d := range []string{device, other} {
		claim := testkit.Value(os.OpenFile(d, os.O_RDONLY|unix.O_EXCL, 0))(t)
		wantError(t, Mount(t.Context(), Spec{Source: d, Target: target, FSType: "btrfs"}), ErrBusy)
		claim.Close()
	}
	from, to := testkit.Open(os.Open(image))(t), testkit.Value(os.OpenFile(device, os.O_WRONLY, 0))(t)
	testkit.Value(io.Copy(to, from))(t)
	testkit.Must(t, to.Close())
	for _, d := range []string{device, other} { // the latter ends its registration
		testkit.Must(t, Mount(t.Context(), Spec{Source: d, Target: target, FSType: "btrfs"}), Unmount(t.Context(), target))
	}
}

func remount(t *testing.T, target string, readOnly bool) error {
	t.Helper()
	tree, err := Open(t.Context(), target)
	if err != nil {
		return err
	}
	defer tree.Close()
	return tree.SetReadOnly(readOnly)
}

func TestRemount(t *testing.T) {
	for fsType := range mkfs {
		t.Run(fsType, func(t *testing.T) {
			device, target := newDevice(t, fsType), t.TempDir()
			mustMount(t, Spec{Source: device, Target: target, FSType: fsType, Options: []string{"nosuid"}})
			file := filepath.Join(target, "file")
			for _, readOnly := range []bool{true, true, false, false} {
				testkit.Must(t, remount(t, target, readOnly))
				if err := os.WriteFile(file, nil, 0o600); errors.Is(err, unix.EROFS) != readOnly {
					t.Errorf("read-only %t: a write gives %v", readOnly, err)
				}
				if e, _ := mustAt(t, target); e.ReadOnly() != readOnly || !contains(e.Options, "nosuid") {
					t.Errorf("read-only %t: mounted %+v", readOnly, e)
				}
			}
			f := testkit.Value(os.Create(file))(t)
			defer f.Close()
			wantError(t, remount(t, target, true), ErrBusy, filepath.Base(device))
			writeFile(t, filepath.Join(target, "still writable"))
		})
	}
	wantError(t, remount(t, t.TempDir(), true), errs.Precondition, "nothing is mounted")
}

package mount

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/blockdev"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
)

func TestBindReadOnlyRefusesWrites(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(source, "file"))
	mustBind(t, source, target, BindOptions{ReadOnly: true})
	for name, err := range map[string]error{
		"create": os.WriteFile(filepath.Join(target, "other"), nil, 0o600),
		"change": os.WriteFile(filepath.Join(target, "file"), nil, 0o600),
		"remove": os.Remove(filepath.Join(target, "file")),
		"chmod":  os.Chmod(filepath.Join(target, "file"), 0o777),
	} {
		if !errors.Is(err, unix.EROFS) {
			t.Errorf("%s gives %v, want %v", name, err, unix.EROFS)
		}
	}
	writeFile(t, filepath.Join(source, "file")) // the source is unchanged
}

func TestBindOptionsHold(t *testing.T) {
	source, target := t.TempDir(), t.TempDir()
	script := filepath.Join(source, "script")
	testkit.Must(t, os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755))
	mustBind(t, source, target, BindOptions{Options: []string{"nosuid", "nodev", "noexec", "noatime", "nodiratime", "nosymfollow"}})
	e, _ := mustAt(t, target)
	if e.ReadOnly() || !contains(e.Options, "nosuid", "nodev", "noexec", "noatime", "nodiratime", "nosymfollow") {
		t.Errorf("mounted %+v", e)
	}
	testkit.WantError(t, "running a program", exec.Command(filepath.Join(target, "script")).Run(), unix.EACCES)
	again := t.TempDir()
	mustBind(t, target, again, BindOptions{Options: []string{"exec", "relatime"}})
	if e, _ := mustAt(t, again); !contains(e.Options, "relatime", "nosuid") || contains(e.Options, "noexec") || contains(e.Options, "noatime") {
		t.Errorf("a bind of a bind is %+v, want exec and relatime changed and all else kept", e)
	}
}

func TestBindOfADeviceNode(t *testing.T) {
	device, target := newDevice(t, "ext4"), filepath.Join(t.TempDir(), "device")
	writeFile(t, target)
	mustBind(t, device, target, BindOptions{ReadOnly: true})
	major, minor, err := blockdev.Rdev(target)
	testkit.Must(t, err)
	if wantMajor, wantMinor, err := blockdev.Rdev(device); err != nil || major != wantMajor || minor != wantMinor {
		t.Errorf("%s is %d:%d, want %d:%d (err %v)", target, major, minor, wantMajor, wantMinor, err)
	}
	f := testkit.Open(os.Open(target))(t)
	testkit.Value(io.ReadFull(f, make([]byte, 4096)))(t)
}

func TestBindRefusals(t *testing.T) {
	dir := t.TempDir()
	file, nothing := filepath.Join(dir, "file"), filepath.Join(dir, "nothing")
	writeFile(t, file)
	for name, c := range map[string]struct {
		source, target string
		options        []string
		kind           error
		word           string
	}{
		"no source":             {nothing, dir, nil, errs.Precondition, "must exist"},
		"no target":             {dir, nothing, nil, errs.Precondition, "must exist"},
		"file on a directory":   {file, dir, nil, errs.Precondition, "both files"},
		"directory on a file":   {dir, file, nil, errs.Precondition, "both files"},
		"option of file system": {dir, dir, []string{"discard"}, errs.Invalid, "discard"},
	} {
		t.Run(name, func(t *testing.T) {
			wantError(t, Bind(t.Context(), c.source, c.target, BindOptions{Options: c.options}), c.kind, c.word)
		})
	}
	if _, mounted := mustAt(t, dir); mounted {
		t.Error("something is mounted after refusals alone")
	}
}

func TestUnmountTakesEveryLayer(t *testing.T) {
	a, b, target := t.TempDir(), t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(b, "b"))
	mustBind(t, a, target, BindOptions{})
	mustBind(t, b, target, BindOptions{Options: []string{"noexec"}})
	if e, ok := mustAt(t, target); !ok || !contains(e.Options, "noexec") {
		t.Errorf("at the target is %+v, want the upper mount", e)
	}
	mustUnmount(t, target)
	if err := os.Remove(target); err != nil {
		t.Errorf("the mount point is not free: %v", err)
	}
	mustUnmount(t, target)
}

// Repeated until the search for users was complete.
func refusedUnmount(t *testing.T, target string) (err error) {
	t.Helper()
	testkit.Eventually(t, "a whole search", func() bool {
		err = Unmount(t.Context(), target)
		return err == nil || !strings.Contains(err.Error(), "not found in time")
	})
	return err
}

func TestBusyUnmountNamesTheUsers(t *testing.T) {
	device, target := newDevice(t, "ext4"), t.TempDir()
	mustMount(t, Spec{Source: device, Target: target, FSType: "ext4"})
	path := filepath.Join(target, "held")
	f, err := os.Create(path)
	testkit.Must(t, err)
	defer f.Close()
	err = refusedUnmount(t, target)
	wantError(t, err, ErrBusy, target, "this process", path)
	wantError(t, err, errs.Precondition)
	if _, mounted := mustAt(t, target); !mounted {
		t.Error("a refused unmount was carried out")
	}
	f.Close()

	child := filepath.Join(target, "child")
	mkdir(t, child)
	mustBind(t, t.TempDir(), child, BindOptions{})
	wantError(t, refusedUnmount(t, target), ErrBusy, "a mount of", child)
	mustUnmount(t, child)

	cmd := exec.Command("sh", "-c", "echo ready; read -r _") // its name is known after the output
	cmd.Dir = target
	testkit.Value(cmd.StdinPipe())(t)
	holder := testkit.Start(t, cmd)
	holder.WaitFor(t, "ready")
	err = refusedUnmount(t, target)
	holder.Kill()
	wantError(t, err, ErrBusy, "(sh)", "working directory")
	mustUnmount(t, target)
}

func TestUnmountWaitsForAShortUse(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	source, target := t.TempDir(), t.TempDir()
	mustBind(t, source, target, BindOptions{})
	waitsForAShortUse(t, 100*time.Millisecond, func() (io.Closer, error) { return os.Create(filepath.Join(target, "file")) },
		func() error { return Unmount(t.Context(), target) })
	if _, mounted := mustAt(t, target); mounted {
		t.Error("it is still mounted")
	}
}

// The call succeeds while something is used briefly; repeated if the use took
// too long.
func waitsForAShortUse(t *testing.T, moment time.Duration, use func() (io.Closer, error), call func() error) {
	t.Helper()
	for {
		used, err := use()
		testkit.Must(t, err)
		began, ended := time.Now(), make(chan time.Time, 1)
		time.AfterFunc(moment, func() { used.Close(); ended <- time.Now() })
		err = call()
		took := (<-ended).Sub(began)
		switch {
		case err == nil:
			return
		case took < 250*time.Millisecond:
			t.Fatalf("used for %v: %v", took, err)
		}
	}
}

func TestUnmountLeavesLinksAlone(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	mkdir(t, target)
	testkit.Must(t, os.Symlink(target, link))
	mustBind(t, t.TempDir(), target, BindOptions{})
	if err := Unmount(t.Context(), link); err != nil {
		t.Errorf("unmount of a link: %v", err)
	}
	if _, mounted := mustAt(t, target); !mounted {
		t.Error("the mount behind the link is gone")
	}
	for _, target := range []string{"", "relative", "/", "/.."} {
		wantError(t, Unmount(t.Context(), target), errs.Invalid)
	}
}

func TestDeadFileSystem(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs"} {
		t.Run(fsType, func(t *testing.T) {
			device, target := newDevice(t, fsType), t.TempDir()
			mustMount(t, Spec{Source: device, Target: target, FSType: fsType})
			scratchfs.ShutDown(t, target)
			if e, ok := mustAt(t, target); !ok || e.Source != device {
				t.Errorf("at the target is %+v (%t), want the dead file system", e, ok)
			}
			mustUnmount(t, target)
		})
	}
}

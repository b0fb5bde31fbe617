package loop

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

const testSize = 64 << 20

func newFile(t testing.TB, size int64) *os.File {
	t.Helper()
	f := testkit.Open(os.Create(filepath.Join(t.TempDir(), "volume")))(t)
	testkit.Must(t, f.Truncate(size))
	return f
}

// mustAttach detaches after the test.
func mustAttach(t testing.TB, c Config) (Device, *os.File) {
	t.Helper()
	d, f, err := Attach(t.Context(), c)
	testkit.Must(t, err)
	t.Cleanup(func() {
		f.Close()
		if err := Detach(context.Background(), d); err != nil {
			t.Error(err)
		}
	})
	return d, f
}

func mustFind(t testing.TB, b Backing) []Device {
	t.Helper()
	return testkit.Value(Find(t.Context(), b))(t)
}

func TestAttachFindDetach(t *testing.T) {
	file := newFile(t, testSize)
	backing := testkit.Value(BackingOf(file))(t)
	if found := mustFind(t, backing); len(found) != 0 {
		t.Fatalf("before the attach there is %v", found)
	}
	d, f := mustAttach(t, Config{File: file})
	if d.Backing != backing || d.ReadOnly || d.AutoClear || d.Major != 7 {
		t.Errorf("attached %+v, want a writable device of %v", d, backing)
	}
	testkit.Diff(t, "found", []Device{d}, mustFind(t, backing))
	want := bytes.Repeat([]byte("cleat"), 4096)
	testkit.Value(f.WriteAt(want, 1<<20))(t)
	testkit.Must(t, Flush(t.Context(), d))
	got := make([]byte, len(want))
	if _, err := file.ReadAt(got, 1<<20); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file does not hold what was written to the device (err %v)", err)
	}
	f.Close()
	for range 2 {
		if err := Detach(t.Context(), d); err != nil {
			t.Fatalf("detach: %v", err)
		}
	}
	if found := mustFind(t, backing); len(found) != 0 {
		t.Errorf("after the detach there is %v", found)
	}
}

func TestAttachGivesLargeSectorsAndDirectIO(t *testing.T) {
	d, f := mustAttach(t, Config{File: newFile(t, testSize)})
	if sector, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET); err != nil || sector != SectorSize {
		t.Errorf("sectors of %d bytes (err %v), want %d", sector, err, SectorSize)
	}
	if !d.DirectIO {
		t.Errorf("no direct I/O on the file system of %s: run the tests where TMPDIR has it (ext4, xfs, btrfs)", t.TempDir())
	}
}

func TestAttachRefusesFilesThatMakeNoDevice(t *testing.T) {
	dir := testkit.Open(os.Open(t.TempDir()))(t)
	for name, file := range map[string]*os.File{
		"empty": newFile(t, 0), "part of a sector": newFile(t, SectorSize+512), "directory": dir,
	} {
		t.Run(name, func(t *testing.T) {
			_, f, err := Attach(t.Context(), Config{File: file})
			if !errors.Is(err, errs.Invalid) {
				t.Errorf("err %v, want %v", err, errs.Invalid)
			}
			if err == nil {
				f.Close()
			}
		})
	}
}

func TestEndedContextChangesNothing(t *testing.T) {
	d, _ := mustAttach(t, Config{File: newFile(t, testSize)})
	ctx := testkit.Canceled(t)
	_, _, attachErr := Attach(ctx, Config{File: newFile(t, testSize)})
	_, listErr := List(ctx)
	_, sizeErr := Size(ctx, d)
	for call, err := range map[string]error{
		"Attach": attachErr, "Detach": Detach(ctx, d), "List": listErr, "Size": sizeErr, "Resize": Resize(ctx, d),
		"SetReadOnly": SetReadOnly(ctx, d, true),
	} {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: err %v, want %v", call, err, context.Canceled)
		}
	}
	testkit.Diff(t, "the device changed", []Device{d}, mustFind(t, d.Backing))
}

func TestFindGoesByInodeNotByPath(t *testing.T) {
	file := newFile(t, testSize)
	d, _ := mustAttach(t, Config{File: file})
	testkit.Must(t, os.Rename(file.Name(), file.Name()+".moved"))
	testkit.Diff(t, "after the rename", []Device{d}, mustFind(t, d.Backing))
	testkit.Must(t, os.Remove(file.Name()+".moved"))
	testkit.Diff(t, "after the unlink", []Device{d}, mustFind(t, d.Backing))
}

func TestListHoldsDevicesInOrder(t *testing.T) {
	a, _ := mustAttach(t, Config{File: newFile(t, testSize)})
	b, _ := mustAttach(t, Config{File: newFile(t, testSize)})
	all := testkit.Value(List(t.Context()))(t)
	seen := map[Backing]bool{}
	for i, d := range all {
		seen[d.Backing] = true
		if i > 0 && all[i-1].Number >= d.Number {
			t.Errorf("%s is listed after %s", d.Path, all[i-1].Path)
		}
	}
	if !seen[a.Backing] || !seen[b.Backing] {
		t.Errorf("of %s and %s at least one is missing in %v", a.Path, b.Path, all)
	}
}

func TestReadOnly(t *testing.T) {
	file := newFile(t, testSize)
	readOnly := testkit.Open(os.Open(file.Name()))(t)
	d, _ := mustAttach(t, Config{File: readOnly, ReadOnly: true})
	if !d.ReadOnly {
		t.Errorf("attached %+v, want it read-only", d)
	}
	testkit.WantError(t, "a read-only device took a write", writeTo(d), nil)
}

func TestSetReadOnly(t *testing.T) {
	d, _ := mustAttach(t, Config{File: newFile(t, testSize)})
	for _, on := range []bool{true, false} {
		testkit.Must(t, SetReadOnly(t.Context(), d, on))
		if now := mustFind(t, d.Backing)[0]; now.ReadOnly != on {
			t.Errorf("read-only is %t, want %t", now.ReadOnly, on)
		}
		if err := writeTo(d); (err != nil) != on {
			t.Errorf("read-only %t: a write gives %v", on, err)
		}
	}
}

func writeTo(d Device) error {
	f, err := os.OpenFile(d.Path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(make([]byte, SectorSize)); err != nil {
		return err
	}
	return f.Sync()
}

func TestResize(t *testing.T) {
	file := newFile(t, testSize)
	d, _ := mustAttach(t, Config{File: file})
	if size, err := Size(t.Context(), d); err != nil || size != testSize {
		t.Fatalf("size %d (err %v), want %d", size, err, testSize)
	}
	testkit.Must(t, file.Truncate(2*testSize), Resize(t.Context(), d))
	if size, err := Size(t.Context(), d); err != nil || size != 2*testSize {
		t.Errorf("size %d (err %v), want %d", size, err, 2*testSize)
	}
}

// wantBusy : the detach left the device as it was.
func wantBusy(t *testing.T, d Device, words ...string) {
	t.Helper()
	var err error
	testkit.Eventually(t, "a complete search for users", func() bool {
		err = Detach(t.Context(), d)
		return err == nil || !strings.Contains(err.Error(), "not found in time")
	})
	testkit.WantError(t, "Detach", err, ErrBusy, append(words, d.Path)...)
	testkit.WantError(t, "Detach", err, errs.Precondition)
	testkit.Diff(t, "a refused detach changed the device", []Device{d}, mustFind(t, d.Backing))
}

func TestDetachRefusesAnOpenDevice(t *testing.T) {
	t.Parallel()
	d, f := mustAttach(t, Config{File: newFile(t, testSize)})
	wantBusy(t, d, "this process")
	f.Close()
	if found := mustFind(t, d.Backing); len(found) != 1 {
		t.Errorf("the refused detach was carried out later: found %v", found)
	}
	testkit.Must(t, Detach(t.Context(), d))
}

func TestDetachRefusesADeviceOpenElsewhere(t *testing.T) {
	t.Parallel()
	d, f := mustAttach(t, Config{File: newFile(t, testSize)})
	f.Close()
	stop := startHolder(t, nil, `exec 3<"$1"; echo ready; read line`, d.Path)
	wantBusy(t, d, "(sh)")
	stop()
	testkit.Must(t, Detach(t.Context(), d))
}

func TestDetachRefusesADeviceMountedInAnotherNamespace(t *testing.T) {
	t.Parallel()
	d, f := mustAttach(t, Config{File: newFile(t, testSize)})
	f.Close()
	testkit.Run(t, "mkfs.ext4", "-q", d.Path)
	dir := t.TempDir()
	stop := startCopy(t, d.Path, dir)
	wantBusy(t, d, dir, "mount namespace")
	stop()
	testkit.Must(t, Detach(t.Context(), d))
}

// A container runtime copies the mounts of the host, and drops the copies when it
// has changed the root of the new container.
func TestDetachOutlastsAProcessThatIsBeingStarted(t *testing.T) {
	t.Parallel()
	d, f := mustAttach(t, Config{File: newFile(t, testSize)})
	f.Close()
	testkit.Run(t, "mkfs.ext4", "-q", d.Path)
	dir := t.TempDir()
	for {
		testkit.Run(t, "mount", d.Path, dir)
		began, ended := time.Now(), make(chan time.Time, 1)
		stop := startCopy(t, "", "")
		testkit.Unmount(t, dir)
		time.AfterFunc(time.Until(began.Add(2*time.Second)), func() { stop(); ended <- time.Now() })
		err := Detach(t.Context(), d)
		if took := (<-ended).Sub(began); err == nil || took < 4*time.Second {
			if err != nil {
				t.Errorf("the copy ended %v after the start of its process: %v", took, err)
			}
			return
		}
		// The process took too long on this machine.
	}
}

func TestDetachWaitsForAShortUse(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	d, f := mustAttach(t, Config{File: newFile(t, testSize)})
	for {
		began, closed := time.Now(), make(chan time.Time, 1)
		time.AfterFunc(100*time.Millisecond, func() { f.Close(); closed <- time.Now() })
		err := Detach(t.Context(), d)
		if used := (<-closed).Sub(began); err == nil || used < 500*time.Millisecond {
			if err != nil {
				t.Errorf("used for %v: %v", used, err)
			}
			return
		}
		// The use took too long on this machine.
		f = testkit.Value(os.Open(d.Path))(t)
	}
}

func TestDetachEndsWithItsContext(t *testing.T) {
	d, _ := mustAttach(t, Config{File: newFile(t, testSize)})
	ended := testkit.Canceled(t)
	testkit.WantError(t, "with a context that has ended", Detach(ended, d), context.Canceled)
	// Shorter than a second, after which the error would not include the
	// context's.
	var err error
	wait := 20 * time.Millisecond
	for range 50 {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		err = Detach(ctx, d)
		cancel()
		if errors.Is(err, ErrBusy) && errors.Is(err, context.DeadlineExceeded) {
			return
		}
		wait = min(2*wait, time.Second/2)
	}
	t.Errorf("err %v, want both %v and the end of the context", err, ErrBusy)
}

func TestAutoClear(t *testing.T) {
	d, f := mustAttach(t, Config{File: newFile(t, testSize), AutoClear: true})
	if !d.AutoClear {
		t.Fatalf("attached %+v, want auto-clear", d)
	}
	testkit.Run(t, "mkfs.ext4", "-q", d.Path)
	dir := t.TempDir()
	testkit.Run(t, "mount", d.Path, dir)
	f.Close()
	if found := mustFind(t, d.Backing); len(found) != 1 {
		t.Errorf("with a mount there are %v, want the device", found)
	}
	testkit.Unmount(t, dir)
	wantGone(t, d)
}

// Another program can have the device open briefly while it scans devices.
func wantGone(t *testing.T, d Device) {
	t.Helper()
	testkit.Eventually(t, "the device is detached", func() bool { return len(mustFind(t, d.Backing)) == 0 })
}

func TestSetAutoClear(t *testing.T) {
	d, f := mustAttach(t, Config{File: newFile(t, testSize), AutoClear: true})
	testkit.Must(t, SetAutoClear(t.Context(), d, false))
	f.Close()
	if found := mustFind(t, d.Backing); len(found) != 1 || found[0].AutoClear || !found[0].DirectIO {
		t.Fatalf("found %+v, want the device without auto-clear and with all else", found)
	}
	testkit.Must(t, SetAutoClear(t.Context(), d, true))
	wantGone(t, d)
}

// The script prints "ready" and keeps something in use until stop or the end of
// the test.
// startCopy starts a process with a copy of this test's mounts, and optionally one
// more. It unmounts the copies of other tests' mounts at once, which would keep
// those tests' devices busy.
func startCopy(t *testing.T, device, dir string) (stop func()) {
	t.Helper()
	return startHolder(t, &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNS},
		`mount --make-rprivate / && while read -r _ _ _ _ target _; do
			case "$target" in "$3"/*) ;; "$4"/*) umount -l "$target" 2>/dev/null;; esac
		done </proc/self/mountinfo
		if [ -n "$1" ]; then mount "$1" "$2"; fi && echo ready && read line`, device, dir, filepath.Dir(t.TempDir()), os.TempDir())
}

func startHolder(t *testing.T, attr *syscall.SysProcAttr, script string, args ...string) (stop func()) {
	t.Helper()
	cmd := exec.Command("sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.SysProcAttr = attr
	stdin := testkit.Value(cmd.StdinPipe())(t)
	holder := testkit.Start(t, cmd)
	stop = func() {
		stdin.Close()
		_ = holder.Wait() // read fails at the end of the input
	}
	t.Cleanup(stop)
	holder.WaitFor(t, "ready")
	return stop
}

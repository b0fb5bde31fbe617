package loop

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/blockdev"
	"github.com/cleatproject/cleat/test/testkit"
)

// The number was free just before; reattach returns false if another program
// has taken it meanwhile.
func reattach(t *testing.T, number int, file *os.File) (Device, bool) {
	t.Helper()
	control := testkit.Value(host().openControl())(t)
	defer control.Close()
	_ = unix.IoctlSetInt(int(control.Fd()), unix.LOOP_CTL_ADD, number) // it can have been removed
	d, f, err := host().attachTo(t.Context(), control, number, Config{File: file})
	if lostRace(err) || errors.Is(err, ErrReattach) {
		return Device{}, false
	}
	testkit.Must(t, err)
	f.Close()
	t.Cleanup(func() { testkit.Must(t, Detach(context.Background(), d)) })
	return d, true
}

func TestCallsLeaveAReusedNumberAlone(t *testing.T) {
	for range 10 {
		old, f := mustAttach(t, Config{File: newFile(t, testSize)})
		f.Close()
		testkit.Must(t, Detach(t.Context(), old))
		file := newFile(t, testSize)
		now, ok := reattach(t, old.Number, file)
		if !ok {
			continue
		}
		_, sizeErr := Size(t.Context(), old)
		for call, err := range map[string]error{
			"Size": sizeErr, "Flush": Flush(t.Context(), old), "Resize": Resize(t.Context(), old),
			"SetAutoClear": SetAutoClear(t.Context(), old, true), "SetReadOnly": SetReadOnly(t.Context(), old, true),
			"SetReadAhead": SetReadAhead(t.Context(), old, 8), "SetDiscard": SetDiscard(t.Context(), old, false),
		} {
			if !errors.Is(err, ErrGone) {
				t.Errorf("%s: err %v, want %v", call, err, ErrGone)
			}
		}
		if err := Detach(t.Context(), old); err != nil {
			t.Errorf("Detach of what is gone: %v", err)
		}
		if found := mustFind(t, now.Backing); len(found) != 1 || found[0] != now {
			t.Errorf("the new device is %+v, want it untouched: %+v", found, now)
		}
		if err := Detach(t.Context(), now); err != nil {
			t.Error(err)
		}
		return
	}
	t.Fatal("others took the number ten times")
}

// Another program that lists loop devices has an unusable device open; without
// the wait the file would have two devices.
func TestReleaseWaitsForOtherOpeners(t *testing.T) {
	file := newFile(t, testSize)
	d, f := mustAttach(t, Config{File: file})
	other := testkit.Value(os.Open(d.Path))(t)
	released := make(chan error, 1)
	go func() { released <- host().release(t.Context(), f, d.Number, file) }()
	testkit.Eventually(t, "the kernel was asked to unbind", func() bool {
		info, err := unix.IoctlLoopGetStatus64(int(other.Fd()))
		return err == nil && info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0
	})
	select {
	case err := <-released:
		t.Errorf("released (%v) while the file still has %v", err, mustFind(t, d.Backing))
		released <- err
	default:
	}
	testkit.Must(t, other.Close(), testkit.Receive(t, "the release", released))
	if found := mustFind(t, d.Backing); len(found) != 0 {
		t.Errorf("the file has %v after the release", found)
	}
}

func TestAttachInheritsNothing(t *testing.T) {
	var fresh string
	for round := range 3 {
		d, f := mustAttach(t, Config{File: newFile(t, testSize), AutoClear: true})
		if d.ReadOnly {
			t.Errorf("round %d: %s is read-only", round, d.Path)
		}
		readAhead := queueValue(t, d, "read_ahead_kb")
		if fresh == "" {
			fresh = readAhead
		}
		if readAhead != fresh || queueValue(t, d, "discard_max_bytes") == "0" {
			t.Errorf("round %d: %s has read-ahead %s and discards up to %s, want %s and above 0",
				round, d.Path, readAhead, queueValue(t, d, "discard_max_bytes"), fresh)
		}
		for _, err := range []error{
			SetReadOnly(t.Context(), d, true), SetReadAhead(t.Context(), d, 8192), SetDiscard(t.Context(), d, false),
		} {
			testkit.Must(t, err)
		}
		f.Close()                            // the kernel detaches and reuses the number
		t.Cleanup(func() { host().tidy(d) }) // or another program's
	}
}

func queueValue(t *testing.T, d Device, attribute string) string {
	t.Helper()
	text := testkit.Value(os.ReadFile(host().block(d.Number, "queue", attribute)))(t)
	return strings.TrimSpace(string(text))
}

func TestSetReadAhead(t *testing.T) {
	d, _ := mustAttach(t, Config{File: newFile(t, testSize)})
	for _, kib := range []int{0, 64, 4096} {
		testkit.Must(t, SetReadAhead(t.Context(), d, kib))
		if got := queueValue(t, d, "read_ahead_kb"); got != fmt.Sprint(kib) {
			t.Errorf("read-ahead is %s KiB, want %d", got, kib)
		}
	}
	testkit.WantError(t, "a read-ahead of -1 KiB was taken", SetReadAhead(t.Context(), d, -1), nil)
}

func TestSetDiscardKeepsAFullyAllocatedFile(t *testing.T) {
	file := newFile(t, testSize)
	testkit.Must(t, unix.Fallocate(int(file.Fd()), 0, 0, testSize))
	d, _ := mustAttach(t, Config{File: file})
	testkit.Must(t, SetReadAhead(t.Context(), d, 64), SetDiscard(t.Context(), d, false))
	if got := queueValue(t, d, "read_ahead_kb"); got != "64" {
		t.Errorf("read-ahead is %s KiB after the change, want 64 as before", got)
	}
	testkit.Run(t, "mkfs.ext4", "-q", "-E", "discard", d.Path)
	if got := allocated(t, file); got < testSize {
		t.Errorf("%d bytes are allocated, want at least %d", got, testSize)
	}
	if err := SetDiscard(t.Context(), d, true); err != nil && !errors.Is(err, ErrReattach) {
		t.Errorf("discards on again: %v", err)
	}
}

func TestDiscardPunchesByDefault(t *testing.T) {
	file := newFile(t, testSize)
	testkit.Must(t, unix.Fallocate(int(file.Fd()), 0, 0, testSize))
	d, _ := mustAttach(t, Config{File: file})
	testkit.Run(t, "mkfs.ext4", "-q", "-E", "discard", d.Path)
	if got := allocated(t, file); got >= testSize {
		t.Errorf("%d bytes are allocated after a discard of all, want fewer than %d", got, testSize)
	}
}

func allocated(t *testing.T, f *os.File) int64 {
	t.Helper()
	var st unix.Stat_t
	testkit.Must(t, unix.Fstat(int(f.Fd()), &st))
	return st.Blocks * 512
}

func TestRivalsGetDevicesOfTheirOwn(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	const rivals = 16
	var wg sync.WaitGroup
	devices := make([]Device, rivals)
	for i := range rivals {
		file := newFile(t, testSize)
		wg.Go(func() {
			d, f, err := Attach(t.Context(), Config{File: file})
			if err != nil {
				t.Error(err)
				return
			}
			f.Close()
			devices[i] = d
		})
	}
	wg.Wait()
	numbers := map[int]bool{}
	for _, d := range devices {
		if d.Path == "" {
			continue
		}
		numbers[d.Number] = true
		if found := mustFind(t, d.Backing); len(found) != 1 || found[0] != d {
			t.Errorf("found %v, want %v alone", found, d)
		}
		wg.Go(func() {
			if err := Detach(t.Context(), d); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(numbers) != rivals {
		t.Errorf("%d rivals got %d devices", rivals, len(numbers))
	}
}

func TestMissingNodesAreMade(t *testing.T) {
	k := kernel{dev: t.TempDir(), sys: "/sys"}
	d, f, err := k.attach(t.Context(), Config{File: newFile(t, testSize)})
	testkit.Must(t, err)
	f.Close()
	defer func() {
		if err := k.detach(t.Context(), d); err != nil {
			t.Error(err)
		}
	}()
	if major, minor, err := blockdev.Rdev(d.Path); err != nil || major != d.Major || minor != d.Minor {
		t.Errorf("%s is device %d:%d (err %v), want %d:%d", d.Path, major, minor, err, d.Major, d.Minor)
	}
	if filepath.Dir(d.Path) != k.dev {
		t.Errorf("the device is at %s, want it in %s", d.Path, k.dev)
	}
}

func TestStaleNodeIsRefused(t *testing.T) {
	d, _ := mustAttach(t, Config{File: newFile(t, testSize)})
	k := kernel{dev: t.TempDir(), sys: "/sys"}
	testkit.Must(t, unix.Mknod(k.node(d.Number), unix.S_IFBLK|0o600, int(unix.Mkdev(7, d.Minor+1))))
	f, err := k.openNode(d.Number, unix.O_RDONLY)
	if err == nil {
		f.Close()
		t.Fatal("a node with the number of another device was opened")
	}
	if !strings.Contains(err.Error(), "remove it") && !lostRace(err) {
		t.Errorf("err %v, want one that says what to do", err)
	}
}

func TestKernelWithoutLoopDevices(t *testing.T) {
	k := kernel{dev: t.TempDir(), sys: t.TempDir()}
	_, _, err := k.attach(t.Context(), Config{File: newFile(t, testSize)})
	if err == nil || !strings.Contains(err.Error(), "modprobe loop") {
		t.Errorf("err %v, want one that says what to load", err)
	}
}

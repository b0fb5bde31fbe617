package kernelcall_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/flock"
	"github.com/cleatproject/cleat/internal/linux/fstrim"
	"github.com/cleatproject/cleat/internal/linux/growfs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm/disk"
	"github.com/cleatproject/cleat/test/vm/disk/fusefile"
)

const (
	mib = mkfstest.MiB
	// fsSize is enough for ext4, and a third of the disk.
	fsSize = 16 * mib
	// workerEnv has the work of a process that stands for the driver.
	workerEnv = "CLEAT_TEST_WORK"
)

type work struct {
	Hang               int // in hangs
	Image              string
	Device             loop.Device // of the image
	Dir                string
	DriverLock, Object string // files
	FIFO               string // written instead, if set
	Tools              string // directory with an e2fsck for Image, which runs instead
}

// hangs are calls on a disk that does not answer: all requests, or those that
// write. Its file system is smaller; without a type it is not mounted.
var hangs = []struct {
	name    string
	syscall int
	disk    disk.Fault
	fs      mkfs.Type
	prepare func(t *testing.T, medium string)
	busy    bool // another process waits for the disk before
	do      func(ctx context.Context, w work) error
}{
	{name: "direct read", syscall: unix.SYS_READ, disk: all, fs: mkfs.XFS, do: func(ctx context.Context, w work) error {
		return testkit.Err(kernelcall.ReadDirect(ctx, w.Device.Path, 4096))
	}},
	{name: "growth of XFS", syscall: unix.SYS_IOCTL, disk: all, fs: mkfs.XFS, do: func(ctx context.Context, w work) error {
		return testkit.Err(growfs.Grow(ctx, w.Dir, mkfs.XFS))
	}},
	{name: "growth of btrfs", syscall: unix.SYS_IOCTL, disk: all, fs: mkfs.Btrfs, do: func(ctx context.Context, w work) error {
		return testkit.Err(growfs.Grow(ctx, w.Dir, mkfs.Btrfs))
	}},
	{name: "trim", syscall: unix.SYS_IOCTL, disk: all, fs: mkfs.Ext4, do: func(ctx context.Context, w work) error {
		return testkit.Err(fstrim.Trim(ctx, w.Dir))
	}},
	{name: "attach of a loop device", syscall: unix.SYS_IOCTL, disk: all, do: func(ctx context.Context, w work) error {
		f, err := os.OpenFile(w.Image, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, _, err = loop.Attach(ctx, loop.Config{File: f, AutoClear: true})
		return err
	}},
	{name: "change of auto-clear", syscall: unix.SYS_IOCTL, disk: all, busy: true, do: func(ctx context.Context, w work) error {
		return loop.SetAutoClear(ctx, w.Device, !w.Device.AutoClear)
	}},
	{name: "change of discards", syscall: unix.SYS_WRITE, disk: all, busy: true, do: func(ctx context.Context, w work) error {
		return loop.SetDiscard(ctx, w.Device, false)
	}},
	{name: "format", syscall: unix.SYS_FSYNC, disk: writes, do: func(ctx context.Context, w work) error { return w.format(ctx) }},
	{name: "format after an interrupted one", syscall: unix.SYS_FALLOCATE, disk: writes, prepare: formatMarker, do: func(ctx context.Context, w work) error { return w.format(ctx) }},
	{name: "undo of a growth", syscall: unix.SYS_FSYNC, disk: writes, prepare: growthMarker, do: func(ctx context.Context, w work) error {
		return mkfs.CheckAndGrow(ctx, mkfs.GrowRequest{Device: w.Device.Path, Scratch: w.Object + ".scratch"})
	}},
}

var (
	writes = disk.Fault{Writes: true, Flushes: true}
	all    = disk.Fault{Reads: true, Writes: true, Flushes: true}
)

const uuid = "0f0e0d0c-0b0a-4908-8706-050403020100"

func (w work) format(ctx context.Context) error {
	return mkfs.Format(ctx, mkfs.FormatRequest{Device: w.Device.Path, Type: mkfs.Ext4, UUID: uuid, Scratch: w.Object + ".scratch"})
}

// formatMarker is what a killed Format left.
func formatMarker(t *testing.T, medium string) {
	testkit.Must(t, os.WriteFile(medium, append([]byte("cleat: mkfs is not complete, UUID "+uuid+"\n"), make([]byte, 4096)...), 0o600))
}

// growthMarker is what a killed CheckAndGrow left before it changed the file
// system: a log with the superblock and the first page.
func growthMarker(t *testing.T, medium string) {
	mkfstest.Make(t, medium, mkfs.Ext4)
	f := testkit.Open(os.OpenFile(medium, os.O_RDWR, 0))(t)
	page := make([]byte, 4096)
	testkit.Value(f.ReadAt(page, 0))(t)
	log := slices.Concat(page[1024:2048], make([]byte, 8), page)
	testkit.Value(f.WriteAt(log, fsSize))(t)
	marker := fmt.Sprintf("cleat: an interrupted growth of ext4 is undone from the log of %d bytes at byte %d, SHA-256 %x\n", len(log), fsSize, sha256.Sum256(log))
	testkit.Value(f.WriteAt([]byte(marker), 0))(t)
}

// run holds the lock of a driver, as of its state, and that of an object.
func (w work) run() error {
	driver, err := os.Open(w.DriverLock)
	if err == nil {
		err = flock.Try(driver)
	}
	object, objectErr := os.Open(w.Object)
	if objectErr == nil {
		objectErr = flock.Try(object)
	}
	if err := errors.Join(err, objectErr); err != nil {
		return err
	}
	ctx := kernelcall.Holding(context.Background(), w.Object, object)
	switch {
	case w.Tools != "":
		return mkfs.Tools{Path: w.Tools + ":" + mkfs.DefaultPath}.CheckAndGrow(ctx, mkfs.GrowRequest{Device: w.Image, Scratch: w.Object + ".scratch"})
	case w.FIFO != "":
		return kernelcall.Write(ctx, w.FIFO, "x", kernelcall.Key{})
	}
	return hangs[w.Hang].do(ctx, w)
}

// The driver is killed during a call that waits for a disk. Its process ends,
// and only the lock of the call's object is kept until the disk answers.
func TestKilledDuringACall(t *testing.T) {
	for i, h := range hangs {
		t.Run(h.name, func(t *testing.T) {
			w, d := newWork(t, i)
			release := d.Stall(h.disk)
			t.Cleanup(release)
			if h.busy {
				readInFlight(t, w.Device)
			}
			driver := w.command(t, "/proc/self/exe")
			testkit.Must(t, driver.Start())
			ended := make(chan error, 1)
			go func() { ended <- driver.Wait() }()
			testkit.EventuallyNil(t, "the call waits", func() error {
				if d.Stalled() == 0 { // a call before it waits for something else
					return errors.New("no request waits at the disk")
				}
				return waits(w.Object, h.syscall)
			})
			testkit.Must(t, driver.Process.Kill())
			testkit.Receive(t, "the end of the driver's process", ended)
			testkit.Must(t, flock.Try(testkit.Open(os.Open(w.DriverLock))(t)))
			object := testkit.Open(os.Open(w.Object))(t)
			testkit.WantError(t, "the lock of the call's object", flock.Try(object), flock.ErrHeld)
			testkit.EventuallyNil(t, "no signal ends the call", func() error { return waits(w.Object, h.syscall) })
			release()
			testkit.EventuallyNil(t, "the end of the call", func() error { return flock.Try(object) })
		})
	}
}

func (w *work) createLocks(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	w.DriverLock, w.Object = filepath.Join(dir, "driver"), filepath.Join(dir, "object")
	testkit.Must(t, os.WriteFile(w.DriverLock, nil, 0o600), os.WriteFile(w.Object, nil, 0o600))
}

// command starts the worker, itself or with a program that does.
func (w work) command(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(testkit.Value(json.Marshal(w))(t)))
	cmd.Stderr = os.Stderr
	return cmd
}

// newWork attaches a disk, and mounts its file system.
func newWork(t *testing.T, hang int) (work, *disk.Disk) {
	t.Helper()
	dir := t.TempDir()
	fs, size := hangs[hang].fs, int64(3*fsSize)
	medium := mkfstest.File(t, dir, "medium", max(fsSize, mkfs.MinSize(fs)))
	if fs != "" {
		mkfstest.Make(t, medium, fs)
		size = max(size, mkfs.MinSize(fs)+100*mib)
	}
	if prepare := hangs[hang].prepare; prepare != nil {
		prepare(t, medium)
	}
	testkit.Must(t, os.Truncate(medium, size))
	d := testkit.Open(disk.Open(disk.Spec{Path: medium, Size: size}))(t)
	w := work{Hang: hang, Image: fusefile.Serve(t, d)}
	w.createLocks(t)
	if fs != "" {
		v := mkfstest.Mount(t, w.Image, fs)
		w.Device, w.Dir = v.Device, v.Dir
	} else {
		w.Device = mkfstest.Attach(t, w.Image).Device
	}
	return w, d
}

// readInFlight returns when a read of the device waits.
func readInFlight(t *testing.T, d loop.Device) {
	t.Helper()
	const name = "read in flight"
	lock := testkit.Open(os.Open(d.Path))(t)
	ended := make(chan error, 1)
	go func() {
		ended <- testkit.Err(kernelcall.ReadDirect(kernelcall.Holding(context.Background(), name, lock), d.Path, 4096))
	}()
	testkit.EventuallyNil(t, name, func() error { return waits(name, unix.SYS_READ) })
	t.Cleanup(func() { testkit.Must(t, testkit.Receive(t, name, ended)) })
}

// running returns the process of the call for an object.
func running(object string) (pid int, err error) {
	var operation string
	text := kernelcall.Running(object)
	if _, err := fmt.Sscanf(text, "%s in process %d", &operation, &pid); err != nil {
		return 0, fmt.Errorf("running: %q, want a call", text)
	}
	return pid, nil
}

// waits returns nil if the call for an object waits in a system call, other than
// for its request and of leaving the cgroups.
func waits(object string, syscall int) error {
	pid, err := running(object)
	if err != nil {
		return err
	}
	var number, fd int
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", pid))
	if _, err := fmt.Sscanf(string(text), "%d 0x%x", &number, &fd); err != nil || number != syscall {
		return fmt.Errorf("process %d is in %q, want system call %d", pid, text, syscall)
	}
	file, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%d", pid, fd))
	if err != nil || fd == 0 || filepath.Base(file) == "cgroup.procs" {
		return fmt.Errorf("process %d uses %q (error: %v), the call has not begun", pid, file, err)
	}
	return nil
}

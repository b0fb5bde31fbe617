package kernelcall_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
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
}

// hangs are calls on a disk that does not answer. Its file system is smaller.
var hangs = []struct {
	name    string
	syscall int
	fs      mkfs.Type
	busy    bool // another process waits for the disk before
	do      func(ctx context.Context, w work) error
}{
	{"direct read", unix.SYS_READ, mkfs.XFS, false, func(ctx context.Context, w work) error {
		return testkit.Err(kernelcall.ReadDirect(ctx, w.Device.Path, 4096))
	}},
	{"growth of XFS", unix.SYS_IOCTL, mkfs.XFS, false, func(ctx context.Context, w work) error {
		return testkit.Err(growfs.Grow(ctx, w.Dir, mkfs.XFS))
	}},
	{"growth of btrfs", unix.SYS_IOCTL, mkfs.Btrfs, false, func(ctx context.Context, w work) error {
		return testkit.Err(growfs.Grow(ctx, w.Dir, mkfs.Btrfs))
	}},
	{"trim", unix.SYS_IOCTL, mkfs.Ext4, false, func(ctx context.Context, w work) error {
		return testkit.Err(fstrim.Trim(ctx, w.Dir))
	}},
	{"attach of a loop device", unix.SYS_IOCTL, mkfs.Ext4, false, func(ctx context.Context, w work) error {
		f, err := os.OpenFile(w.Image, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		defer f.Close()
		_, _, err = loop.Attach(ctx, loop.Config{File: f, AutoClear: true})
		return err
	}},
	{"change of auto-clear", unix.SYS_IOCTL, mkfs.Ext4, true, func(ctx context.Context, w work) error {
		return loop.SetAutoClear(ctx, w.Device, !w.Device.AutoClear)
	}},
	{"change of discards", unix.SYS_WRITE, mkfs.Ext4, true, func(ctx context.Context, w work) error {
		return loop.SetDiscard(ctx, w.Device, false)
	}},
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
	if w.FIFO != "" {
		return kernelcall.Write(ctx, w.FIFO, "x", kernelcall.Key{})
	}
	return hangs[w.Hang].do(ctx, w)
}

// The driver is killed during a call that waits for a disk. Its process ends,
// and only the lock of the call's object is kept until the disk answers.
func TestKilledDuringACall(t *testing.T) {
	for i, h := range hangs {
		t.Run(h.name, func(t *testing.T) {
			w, stall := newWork(t, i, h.fs)
			release := stall()
			t.Cleanup(release)
			if h.busy {
				readInFlight(t, w.Device)
			}
			driver := w.command(t, "/proc/self/exe")
			testkit.Must(t, driver.Start())
			ended := make(chan error, 1)
			go func() { ended <- driver.Wait() }()
			testkit.EventuallyNil(t, "the call waits", func() error { return waits(w.Object, h.syscall) })
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

// command starts the worker, itself or with a program that does.
func (w work) command(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), workerEnv+"="+string(testkit.Value(json.Marshal(w))(t)))
	cmd.Stderr = os.Stderr
	return cmd
}

// newWork mounts a file system on a disk that stall makes hang.
func newWork(t *testing.T, hang int, fs mkfs.Type) (w work, stall func() (release func())) {
	t.Helper()
	const size, fsSize = 400 * mib, 300 * mib
	dir := t.TempDir()
	medium := mkfstest.File(t, dir, "medium", fsSize)
	mkfstest.Make(t, medium, fs)
	testkit.Must(t, os.Truncate(medium, size))
	d := testkit.Open(disk.Open(disk.Spec{Path: medium, Size: size}))(t)
	image := fusefile.Serve(t, d)
	var v mkfstest.Volume
	t.Cleanup(func() { testkit.Must(t, loop.Detach(context.Background(), v.Device)) }) // without auto-clear
	v = mkfstest.Mount(t, image, fs)
	w = work{Hang: hang, Image: image, Device: v.Device, Dir: v.Dir, DriverLock: filepath.Join(dir, "driver"), Object: filepath.Join(dir, "object")}
	testkit.Must(t, os.WriteFile(w.DriverLock, nil, 0o600), os.WriteFile(w.Object, nil, 0o600))
	return w, d.Stall
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

package loop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/blockdev"
)

type kernel struct {
	dev string
	sys string
}

func host() kernel { return kernel{dev: "/dev", sys: "/sys"} }

const controlName = "loop-control"

func (k kernel) node(number int) string {
	return filepath.Join(k.dev, "loop"+strconv.Itoa(number))
}

func (k kernel) block(number int, rest ...string) string {
	return filepath.Join(append([]string{k.sys, "block", "loop" + strconv.Itoa(number)}, rest...)...)
}

func (k kernel) openControl() (*os.File, error) {
	f, err := k.openOrCreate(filepath.Join(k.dev, controlName), filepath.Join(k.sys, "class/misc", controlName, "dev"), unix.S_IFCHR, unix.O_RDWR)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errs.Errorf(errs.Unsupported, "this kernel offers no loop devices (%w): load the module with `modprobe loop`", err)
	}
	return f, err
}

func (k kernel) openNode(number, flags int) (*os.File, error) {
	f, err := k.openOrCreate(k.node(number), k.block(number, "dev"), unix.S_IFBLK, flags)
	if err != nil {
		return nil, err
	}
	if err := k.checkNode(f, number); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// checkNode rejects a stale node, which a /dev without devtmpfs can contain.
func (k kernel) checkNode(f *os.File, number int) error {
	major, minor, err := blockdev.RdevOf(f)
	if err != nil {
		return err
	}
	wantMajor, wantMinor, err := readDevNumber(k.block(number, "dev"))
	if err == nil && (major != wantMajor || minor != wantMinor) {
		err = staleNode(k.node(number), major, minor)
	}
	return err
}

func staleNode(path string, major, minor uint32) error {
	return fmt.Errorf("stale device node %s with number %d:%d is not this loop device: remove it, and it will be created again", path, major, minor)
}

// openOrCreate opens a device node, and creates it if it is missing: only
// devtmpfs adds new nodes by itself.
func (k kernel) openOrCreate(path, devFile string, kind uint32, flags int) (*os.File, error) {
	f, err := open(path, flags)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	major, minor, err := readDevNumber(devFile)
	if err != nil {
		return nil, err
	}
	if err := unix.Mknod(path, kind|0o600, int(unix.Mkdev(major, minor))); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("create the missing device node: %w", &os.PathError{Op: "mknod", Path: path, Err: err})
	}
	return open(path, flags)
}

// open saves seven system calls per device of each scan: os.OpenFile tries
// epoll, which does not support devices.
func open(path string, flags int) (*os.File, error) {
	for {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0)
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}

// readDevNumber reads a "major:minor" file of sysfs. The number cannot be
// computed: the module parameter max_part changes the minors.
func readDevNumber(path string) (major, minor uint32, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, 0, err
	}
	if _, err := fmt.Sscanf(string(text), "%d:%d", &major, &minor); err != nil {
		return 0, 0, fmt.Errorf("%s holds %q, want major:minor", path, text)
	}
	return major, minor, nil
}

func (k kernel) list(ctx context.Context, keep func(Device) bool) ([]Device, error) {
	numbers, err := k.boundNumbers()
	if err != nil {
		return nil, err
	}
	var found []Device
	for _, number := range numbers {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		f, d, err := k.openNumber(number, 0)
		if isUnbound(err) {
			continue // unbound since sysfs was read
		}
		if err != nil {
			return nil, fmt.Errorf("list loop devices: %s: %w", k.node(number), err)
		}
		f.Close()
		if keep(d) {
			found = append(found, d)
		}
	}
	return found, nil
}

// boundNumbers does not open unbound devices, which would trigger udev.
func (k kernel) boundNumbers() ([]int, error) {
	dir, err := os.Open(filepath.Join(k.sys, "block"))
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list loop devices: %w", err)
	}
	var numbers []int
	for _, name := range names {
		digits, isLoop := strings.CutPrefix(name, "loop")
		number, err := strconv.Atoi(digits)
		if !isLoop || err != nil {
			continue
		}
		if unix.Access(k.block(number, "loop"), unix.F_OK) == nil {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

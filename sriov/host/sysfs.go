package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// write writes a value below sysfs, unless the context has ended.
func (h *Host) write(ctx context.Context, c *call, value string, name ...string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	path := filepath.Join(append([]string{h.config.Sysfs}, name...)...)
	shown := strings.TrimSpace(value)
	c.at("write %q to %s", shown, path)
	err := h.config.Write(path, value)
	c.at("read the effect of %q in %s", shown, path)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) {
		return fmt.Errorf("write %q: %w: sysfs must be mounted writable, and the process be root in the machine's user namespace", shown, err)
	}
	if err != nil {
		return fmt.Errorf("write %q: %w", shown, err)
	}
	return nil
}

// write writes a sysfs attribute by one write(2).
func write(name, value string) error {
	fail := func(err error) error { return &fs.PathError{Op: "write", Path: name, Err: err} }
	// Without O_NONBLOCK, open would block on a FIFO.
	fd, err := unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	for errors.Is(err, unix.EINTR) {
		fd, err = unix.Open(name, unix.O_WRONLY|unix.O_CLOEXEC|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	}
	if err != nil {
		return fail(err)
	}
	defer func() { _ = unix.Close(fd) }()
	var stat unix.Stat_t
	if err := unix.Fstat(fd, &stat); err != nil {
		return fail(err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG {
		return fail(errors.New("not a regular file"))
	}
	n, err := unix.Write(fd, []byte(value))
	if err != nil {
		return fail(err)
	}
	if n != len(value) {
		return fail(fmt.Errorf("the kernel took %d of %d bytes", n, len(value)))
	}
	return nil
}

// load loads the module of a driver that the kernel does not have.
func (h *Host) load(ctx context.Context, c *call, bus, driver string) error {
	has, err := h.hasDriver(bus, driver)
	if err != nil || has {
		return err
	}
	c.at("load the module %s", driver)
	loadErr := h.config.LoadModule(ctx, driver)
	if has, err = h.hasDriver(bus, driver); err != nil || has {
		return err
	}
	if loadErr != nil {
		return fmt.Errorf("the kernel has no driver %s: %w", driver, loadErr)
	}
	return fmt.Errorf("the kernel has no driver %s, even with the module of that name loaded: want one of %s/drivers", driver, bus)
}

func (h *Host) hasDriver(bus, driver string) (bool, error) {
	dir, err := sysfs.Open(filepath.Join(h.config.Sysfs, bus, "drivers", driver))
	if err != nil {
		if sysfs.IsAbsent(err) {
			return false, nil
		}
		return false, err
	}
	dir.Close()
	return true, nil
}

// maxOutput bounds what an error has of modprobe's output.
const maxOutput = 400

// modprobe loads a module by the program of kmod or busybox.
func modprobe(ctx context.Context, name string) error {
	for _, path := range []string{"/sbin/modprobe", "/usr/sbin/modprobe"} {
		if _, err := os.Stat(path); err != nil {
			continue
		}
		cmd := exec.CommandContext(ctx, path, "--", name)
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %s: %w: %.*s: it must see /lib/modules of the running kernel; or have the machine load the module at boot (/etc/modules-load.d)",
				path, name, err, maxOutput, strings.TrimSpace(string(out)))
		}
		return nil
	}
	return fmt.Errorf("load the module %s: /sbin and /usr/sbin have no modprobe: have the machine load it at boot (/etc/modules-load.d)", name)
}

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

func (h *Host) write(ctx context.Context, c *call, value string, name ...string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	path := filepath.Join(append([]string{h.config.Sysfs}, name...)...)
	shown := strings.TrimSpace(value)
	c.setCurrent("write %q to %s", shown, path)
	err := h.config.Write(path, value)
	c.setCurrent("read the effect of %q in %s", shown, path)
	if errors.Is(err, unix.EACCES) || errors.Is(err, unix.EROFS) {
		return fmt.Errorf("write %q: %w: sysfs must be mounted writable, and the process be root in the machine's user namespace", shown, err)
	}
	if err != nil {
		return fmt.Errorf("write %q: %w", shown, err)
	}
	return nil
}

func write(name, value string) error {
	// Without O_NONBLOCK, open would block on a FIFO.
	file, err := os.OpenFile(name, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("not a regular file")
	}
	if err == nil {
		var n int
		if n, err = unix.Write(int(file.Fd()), []byte(value)); err == nil && n != len(value) {
			err = fmt.Errorf("the kernel took %d of %d bytes", n, len(value))
		}
	}
	if err != nil {
		return &fs.PathError{Op: "write", Path: name, Err: err}
	}
	return nil
}

func (h *Host) load(ctx context.Context, c *call, bus, driver string) error {
	has, err := h.hasDriver(bus, driver)
	if err != nil || has {
		return err
	}
	c.setCurrent("load the module %s", driver)
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
	_, err := os.Stat(filepath.Join(h.config.Sysfs, bus, "drivers", driver))
	if sysfs.IsAbsent(err) {
		return false, nil
	}
	return err == nil, err
}

package host

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// write writes an attribute, which the kernel takes as a whole or not at all.
func write(name, value string) error {
	fail := func(err error) error { return &fs.PathError{Op: "write", Path: name, Err: err} }
	// Without O_NONBLOCK a FIFO in its place would be waited for.
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
		return fail(errors.New("it is no file"))
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

// mostComplaint bounds what is kept of a program's complaint.
const mostComplaint = 400

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
				path, name, err, mostComplaint, strings.TrimSpace(string(out)))
		}
		return nil
	}
	return fmt.Errorf("load the module %s: there is no modprobe in /sbin and /usr/sbin: have the machine load it at boot (/etc/modules-load.d)", name)
}

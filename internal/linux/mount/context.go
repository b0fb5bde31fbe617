package mount

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// fsContext is a context of fsopen(2) or fspick(2).
type fsContext struct {
	fd  int
	log *kernelLog
}

func (c *fsContext) close() {
	unix.Close(c.fd)
	c.log.close()
}

// openContext creates a context for a new file system; source selects kernel
// messages.
func openContext(fsType, source string) (*fsContext, error) {
	journal := openKernelLog(filepath.Base(source))
	fd, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err == nil {
		return &fsContext{fd, journal}, nil
	}
	journal.close()
	switch {
	case errors.Is(err, unix.ENODEV):
		return nil, errs.Errorf(errs.Unsupported, "the kernel does not support the file system %q: load its module with `modprobe %[1]s`", fsType)
	case errors.Is(err, unix.ENOSYS):
		return nil, errs.Errorf(errs.Unsupported, "fsopen: %w: Linux 5.12 or later is needed", err)
	}
	return nil, fmt.Errorf("fsopen %q: %w", fsType, err)
}

// set's errors never include its value, which can be a secret.
func (c *fsContext) set(option string) error {
	name, value, hasValue := parseOption(option)
	var err error
	if hasValue {
		err = unix.FsconfigSetString(c.fd, name, value)
	} else {
		err = unix.FsconfigSetFlag(c.fd, name)
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EINVAL) && isLabel(name):
		return errs.Errorf(errs.Invalid, "mount option %s: %w: SELinux is off on this machine, or its policy does not have this label%s", name, err, c.kernelMessages())
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.EOPNOTSUPP):
		return errs.Errorf(errs.Invalid, "mount option %s: %w%s", errs.Clip(name, 64), err, c.kernelMessages())
	}
	return fmt.Errorf("mount option %s: %w%s", errs.Clip(name, 64), err, c.kernelMessages())
}

func (c *fsContext) command(name string, run func(fd int) error) error {
	err := run(c.fd)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		return errs.Errorf(errs.Precondition, "%s: %w: %w%s", name, ErrBusy, err, c.kernelMessages())
	case isRefusal(err):
		return errs.Errorf(errs.Precondition, "%s: %w%s", name, err, c.kernelMessages())
	}
	return fmt.Errorf("%s: %w%s", name, err, c.kernelMessages())
}

// isRefusal: the content or the state of the device is the cause.
func isRefusal(err error) bool {
	for _, e := range []error{unix.EINVAL, unix.EUCLEAN, unix.ENOSYS, unix.EROFS, unix.EACCES, unix.ENOENT, unix.ENOTBLK, unix.ENXIO, unix.EOPNOTSUPP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// kernelMessages is formatted to append to an error.
func (c *fsContext) kernelMessages() string {
	messages := append(c.messages(), c.log.since()...)
	if len(messages) == 0 {
		return ""
	}
	return "; kernel messages: " + strings.Join(messages, " / ")
}

// messages drains the context's log, such as "e xfs: Unknown parameter".
func (c *fsContext) messages() []string {
	var all []string
	buffer := make([]byte, 4096)
	for len(all) < maxMessages {
		n, err := unix.Read(c.fd, buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			break // ENODATA: the log is empty
		}
		text := strings.TrimSpace(string(buffer[:n]))
		if _, rest, ok := strings.Cut(text, " "); ok {
			text = rest // strip the severity letter
		}
		all = append(all, text)
	}
	return all
}

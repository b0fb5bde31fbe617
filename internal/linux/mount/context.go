package mount

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// fsContext is a file system being set up, from fsopen(2) or fspick(2), with
// what the kernel says about it.
type fsContext struct {
	fd      int
	journal *kernelLog
}

func (c *fsContext) close() {
	unix.Close(c.fd)
	c.journal.close()
}

// openContext begins a new file system; source is for the kernel's words only.
func openContext(fsType, source string) (*fsContext, error) {
	journal := openKernelLog(filepath.Base(source))
	fd, err := unix.Fsopen(fsType, unix.FSOPEN_CLOEXEC)
	if err == nil {
		return &fsContext{fd, journal}, nil
	}
	journal.close()
	switch {
	case errors.Is(err, unix.ENODEV):
		return nil, errs.Errorf(errs.Unsupported, "the running kernel has no file system %q: load its module with `modprobe %[1]s`", fsType)
	case errors.Is(err, unix.ENOSYS):
		return nil, errs.Errorf(errs.Unsupported, "fsopen: %w: Linux 5.12 or later is needed", err)
	}
	return nil, fmt.Errorf("fsopen %q: %w", fsType, err)
}

// set gives one option. Its value, which may be a secret, is in no message.
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
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ERANGE), errors.Is(err, unix.EOPNOTSUPP):
		return errs.Errorf(errs.Invalid, "mount option %s: %w%s", errs.Clip(name, 64), err, c.words())
	}
	return fmt.Errorf("mount option %s: %w%s", errs.Clip(name, 64), err, c.words())
}

// command runs FSCONFIG_CMD_CREATE or _RECONFIGURE.
func (c *fsContext) command(name string, run func(fd int) error) error {
	err := run(c.fd)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		return errs.Errorf(errs.Precondition, "%s: %w: %w%s", name, ErrBusy, err, c.words())
	case isRefusal(err):
		return errs.Errorf(errs.Precondition, "%s: %w%s", name, err, c.words())
	}
	return fmt.Errorf("%s: %w%s", name, err, c.words())
}

// isRefusal tells an answer to what the device holds, or to its state, from a
// fault.
func isRefusal(err error) bool {
	for _, e := range []error{unix.EINVAL, unix.EUCLEAN, unix.ENOSYS, unix.EROFS, unix.EACCES, unix.ENOENT, unix.ENOTBLK, unix.ENXIO, unix.EOPNOTSUPP} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// words returns what the kernel said about the last refusal, ready to stand
// behind an error.
func (c *fsContext) words() string {
	said := append(c.messages(), c.journal.since()...)
	if len(said) == 0 {
		return ""
	}
	return "; the kernel says: " + strings.Join(said, " / ")
}

// messages empties the message log of the context: "e xfs: Unknown parameter".
func (c *fsContext) messages() []string {
	var all []string
	buffer := make([]byte, 4096)
	for len(all) < maxWords {
		n, err := unix.Read(c.fd, buffer)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n <= 0 {
			break // ENODATA: that was all
		}
		text := strings.TrimSpace(string(buffer[:n]))
		if _, rest, ok := strings.Cut(text, " "); ok {
			text = rest // the letter in front is the severity
		}
		all = append(all, text)
	}
	return all
}

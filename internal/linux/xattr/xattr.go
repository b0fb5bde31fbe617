// Package xattr reads and writes cleat's extended attributes, short texts under
// user.cleat. They stay with the backing file, so that any process that opens
// it finds its settings.
package xattr

import (
	"errors"
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// Prefix is the required prefix of all names.
const Prefix = "user.cleat."

// MaxValue is the maximum value length in bytes. ext4 stores all attributes of
// a file in one block of at least 1024 bytes.
const MaxValue = 512

// ErrUnsupported: the file system does not support user attributes.
var ErrUnsupported = errors.New("the file system does not support extended attributes in the user namespace")

// Get returns the value of an attribute; ok is false if it is not set.
func Get(f *os.File, name string) (value string, ok bool, err error) {
	if err := checkName(name); err != nil {
		return "", false, err
	}
	var buf [MaxValue]byte
	n, err := unix.Fgetxattr(int(f.Fd()), name, buf[:])
	runtime.KeepAlive(f)
	switch {
	case err == unix.ENODATA:
		return "", false, nil
	case err == unix.ERANGE:
		return "", false, errs.Errorf(errs.Internal, "attribute %s of %s is longer than %d bytes, so cleat did not write it", name, f.Name(), MaxValue)
	case err != nil:
		return "", false, explain("read", f, name, err)
	}
	return string(buf[:n]), true, nil
}

// Set sets an attribute, durable after an fsync of the file.
func Set(f *os.File, name, value string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if len(value) > MaxValue {
		return errs.Errorf(errs.Invalid, "the value for attribute %s is %d bytes long, at most %d are allowed", name, len(value), MaxValue)
	}
	err := unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0)
	runtime.KeepAlive(f)
	if err != nil {
		return explain("write", f, name, err)
	}
	return nil
}

// Remove removes an attribute. It is idempotent.
func Remove(f *os.File, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	err := unix.Fremovexattr(int(f.Fd()), name)
	runtime.KeepAlive(f)
	if err != nil && err != unix.ENODATA {
		return explain("remove", f, name, err)
	}
	return nil
}

// checkName accepts only names in this package's namespace, up to the kernel's
// limit of 255 bytes.
func checkName(name string) error {
	rest, ok := strings.CutPrefix(name, Prefix)
	if !ok || rest == "" || len(name) > 255 || strings.ContainsRune(name, 0) {
		return errs.Errorf(errs.Invalid, "attribute name %.64q: want %s followed by a name, at most 255 bytes in total", name, Prefix)
	}
	return nil
}

func explain(verb string, f *os.File, name string, err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return errs.Errorf(errs.Unsupported, "%s attribute %s of %s: %w; put the pool on XFS, ext4 or btrfs", verb, name, f.Name(), ErrUnsupported)
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		return errs.Errorf(errs.Exhausted, "%s attribute %s of %s: no space left in the file system: %w", verb, name, f.Name(), err)
	}
	return errs.Errorf(errs.Internal, "%s attribute %s of %s: %w", verb, name, f.Name(), err)
}

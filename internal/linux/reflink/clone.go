// Package reflink copies files by sharing their blocks, or byte by byte with
// holes preserved.
package reflink

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// ErrUnsupported: the files cannot share blocks (no reflinks, or different file
// systems). CopySparse works on all.
var ErrUnsupported = errors.New("the file system cannot share blocks between these files")

// Clone shares all blocks of src atomically: writers to src block meanwhile,
// about 0.1 s per 1,000 extents. dst must be empty: bytes after the end of src
// remain. Durable after an fsync of dst. Errors: ErrUnsupported,
// errs.Exhausted.
func Clone(dst, src *os.File) error {
	err := unix.IoctlFileClone(int(dst.Fd()), int(src.Fd()))
	runtime.KeepAlive(dst)
	runtime.KeepAlive(src)
	switch {
	case err == nil:
		return nil
	case err == unix.EOPNOTSUPP, err == unix.ENOTTY, err == unix.EXDEV, err == unix.EINVAL:
		return errs.Errorf(errs.Unsupported, "clone %s to %s: %w (%w)", src.Name(), dst.Name(), ErrUnsupported, err)
	}
	return explain("clone", dst, src, err)
}

// Supported reports whether files in dir can share blocks. It clones between
// unnamed files, so a crash leaves nothing. A full file system of unknown type
// is errs.Exhausted.
func Supported(dir *os.Root) (bool, error) {
	err := try(dir)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, ErrUnsupported):
		return false, nil
	case isNoSpace(err):
		return supportedByKind(dir, err)
	}
	return false, fmt.Errorf("check whether %s supports reflinks: %w", dir.Name(), err)
}

func try(dir *os.Root) error {
	src, err := scratch(dir)
	if err != nil {
		return err
	}
	defer src.Close()
	dst, err := scratch(dir)
	if err != nil {
		return err
	}
	defer dst.Close()
	if _, err := src.Write(make([]byte, 4096)); err != nil && !isNoSpace(err) {
		return err
	}
	// Cloning an empty src (full file system) still detects missing support.
	return Clone(dst, src)
}

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

func scratch(dir *os.Root) (*os.File, error) {
	d, err := dir.Open(".")
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", dir.Name(), err)
	}
	defer d.Close()
	fd, err := unix.Openat(int(d.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return os.NewFile(uintptr(fd), dir.Name()+"/(unnamed)"), nil
	}
	if err != unix.EOPNOTSUPP && err != unix.EISDIR && err != unix.EINVAL {
		return nil, fmt.Errorf("create a temporary file in %s: %w", dir.Name(), err)
	}
	name := ".cleat-reflink-" + uuid.NewString()
	f, err := dir.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fmt.Errorf("create a temporary file in %s: %w", dir.Name(), err)
	}
	if err := dir.Remove(name); err != nil {
		f.Close()
		return nil, fmt.Errorf("remove the temporary file: %w", err)
	}
	return f, nil
}

func explain(verb string, dst, src *os.File, err error) error {
	if isNoSpace(err) {
		return errs.Errorf(errs.Exhausted, "%s %s to %s: no space left in the file system: %w", verb, src.Name(), dst.Name(), err)
	}
	return errs.Errorf(errs.Internal, "%s %s to %s: %w", verb, src.Name(), dst.Name(), err)
}

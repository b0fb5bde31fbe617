package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// checkTarget rejects a target that is not free, before anything is written.
// The volume would hide its content, and unpublish could not remove it.
func checkTarget(ctx context.Context, path string, block bool, d Device) error {
	if err := checkKind(path, block); err != nil {
		return err
	}
	var there bool
	var err error
	if block {
		there, err = nodeAt(ctx, path, d)
	} else {
		_, there, err = mountAt(ctx, path, d)
	}
	if err != nil || there {
		return err
	}
	return checkEmpty(path)
}

// checkEmpty accepts missing targets.
func checkEmpty(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return errs.Errorf(errs.Precondition, "target_path %s cannot be used: %w", path, err)
	case info.Mode().IsRegular() && info.Size() == 0:
		return nil
	case !info.IsDir():
		return errs.Errorf(errs.Precondition, "target_path %s is not an empty file: it is %s, which the volume would hide; move it away", path, fileKind(info))
	}
	dir, err := os.Open(path)
	if err != nil {
		return errs.Errorf(errs.Precondition, "target_path %s cannot be used: %w", path, err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(1)
	switch {
	case errors.Is(err, io.EOF):
		return nil
	case err != nil:
		return errs.Errorf(errs.Precondition, "target_path %s cannot be read: %w", path, err)
	}
	return errs.Errorf(errs.Precondition, "target_path %s is not empty: it contains %q, which the volume would hide; move it away", path, names[0])
}

// checkKind rejects a target of the wrong type, or that cannot be created.
func checkKind(path string, block bool) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return checkDirectory("the directory above target_path,", filepath.Dir(path))
	case err != nil:
		return errs.Errorf(errs.Precondition, "target_path %s cannot be used: %w", path, err)
	case block && info.IsDir():
		return errs.Errorf(errs.Precondition, "target_path %s is a directory; a block volume needs a path that does not exist yet, or an empty file", path)
	case !block && !info.IsDir():
		return errs.Errorf(errs.Precondition, "target_path %s is not a directory", path)
	}
	return nil
}

// makeTarget creates the target, or uses an existing one of the right type.
func makeTarget(path string, block bool) error {
	const onlyRoot = 0o600
	const searchable = 0o750
	var err error
	if block {
		var f *os.File
		if f, err = os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, onlyRoot); err == nil {
			err = f.Close()
		}
	} else {
		err = os.Mkdir(path, searchable)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return errs.Errorf(errs.Precondition, "target_path %s cannot be created: %w", path, err)
	}
	return checkKind(path, block)
}

// removeTarget never removes content.
func removeTarget(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENOTDIR):
		return nil
	case err != nil:
		return errs.Errorf(errs.Unavailable, "remove target_path %s: %w", path, err)
	case info.IsDir():
		err = unix.Rmdir(path)
	case info.Mode().IsRegular() && info.Size() == 0:
		err = unix.Unlink(path)
	default:
		return errs.Errorf(errs.Precondition, "target_path %s is not removed: it is %s, which does not belong to the volume; move it away", path, fileKind(info))
	}
	switch {
	case err == nil, errors.Is(err, unix.ENOENT):
		return nil
	case errors.Is(err, unix.EBUSY):
		return errs.Errorf(errs.Precondition, "target_path %s is covered by a mount that does not belong to this volume; unmount it first", path)
	case errors.Is(err, unix.ENOTEMPTY), errors.Is(err, unix.EEXIST):
		return errs.Errorf(errs.Precondition, "target_path %s is unmounted but not removed: the directory contains files that do not belong to the volume; move them away", path)
	}
	return errs.Errorf(errs.Precondition, "remove target_path %s: %w", path, err)
}

func fileKind(info fs.FileInfo) string {
	switch info.Mode().Type() {
	case 0:
		return fmt.Sprintf("a file of %d bytes", info.Size())
	case fs.ModeSymlink:
		return "a symbolic link"
	case fs.ModeNamedPipe:
		return "a named pipe"
	case fs.ModeSocket:
		return "a socket"
	}
	return "a device"
}

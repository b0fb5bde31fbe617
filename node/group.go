package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// isGroupApplied reads the root, which applyGroup changes last.
func isGroupApplied(dir string, gid int) (bool, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return false, fmt.Errorf("volume_mount_group %d: %w", gid, err)
	}
	return hasGroup(info, gid), nil
}

func hasGroup(info fs.FileInfo, gid int) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Gid) == gid && info.Mode() == withGroup(info.Mode())
}

// withGroup adds read and write, execute if any, and setgid for directories, so
// that new files get the group.
func withGroup(mode fs.FileMode) fs.FileMode {
	switch {
	case mode&fs.ModeSymlink != 0:
		return mode
	case mode.IsDir():
		return mode | 0o070 | fs.ModeSetgid
	case mode&0o111 != 0:
		return mode | 0o070
	default:
		return mode | 0o060
	}
}

// applyGroup logs which files keep their group.
func (g filesystem) applyGroup(ctx context.Context, dir string, gid int) error {
	w, err := applyGroup(ctx, dir, gid)
	if w.refused > 0 {
		g.log.WarnContext(ctx, "mount group not applied to all files", "path", w.example, "count", w.refused, "err", unix.EPERM)
	}
	return err
}

// groupWalk counts the files whose change the file system refuses, such as
// immutable ones. As with fsGroup of the kubelet, they keep their group.
type groupWalk struct {
	gid     int
	refused int
	example string // one of them, below the volume's root
}

// applyGroup changes the group of everything in a volume, the root last, which
// so shows completion. Symbolic links are not followed. Other nodes can change a
// shared file system meanwhile: a file that was removed is no error.
func applyGroup(ctx context.Context, dir string, gid int) (groupWalk, error) {
	w := groupWalk{gid: gid}
	root, err := os.OpenRoot(dir)
	if err == nil {
		defer root.Close()
		err = w.applyBelow(ctx, root, "")
	}
	if err == nil {
		err = applyGroupTo(root, ".", gid)
	}
	if err != nil {
		err = fmt.Errorf("volume_mount_group %d: %w", gid, err)
	}
	return w, err
}

func (w *groupWalk) applyBelow(ctx context.Context, dir *os.Root, path string) error {
	list, err := dir.Open(".")
	if err != nil {
		return err
	}
	defer list.Close()
	for {
		const batch = 256
		entries, err := list.ReadDir(batch)
		for _, e := range entries {
			if err := ctx.Err(); err != nil {
				return err
			}
			if err := w.apply(ctx, dir, filepath.Join(path, e.Name()), e.IsDir()); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (w *groupWalk) apply(ctx context.Context, dir *os.Root, path string, isDir bool) error {
	name := filepath.Base(path)
	if isDir {
		below, err := dir.OpenRoot(name)
		if err != nil {
			return err
		}
		err = w.applyBelow(ctx, below, path)
		below.Close()
		if err != nil {
			return err
		}
	}
	err := applyGroupTo(dir, name, w.gid)
	if errors.Is(err, unix.EPERM) {
		w.refused, w.example = w.refused+1, path
		return nil
	}
	return err
}

// chown clears the setuid and setgid bits, so the mode is set after it.
func applyGroupTo(dir *os.Root, name string, gid int) error {
	info, err := dir.Lstat(name)
	if err != nil {
		return err
	}
	if hasGroup(info, gid) {
		return nil
	}
	const sameOwner = -1
	if err := dir.Lchown(name, sameOwner, gid); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		return nil
	}
	return dir.Chmod(name, withGroup(info.Mode()))
}

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// applyGroup changes the root last.
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

// applyGroup changes the group of everything in a volume, the root last, which
// so shows completion. Symbolic links are not followed. Other nodes can change a
// shared file system meanwhile: a file that was removed is no error.
func applyGroup(ctx context.Context, dir string, gid int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("volume_mount_group %d: %w", gid, err)
	}
	defer root.Close()
	if err := applyGroupBelow(ctx, root, gid); err != nil {
		return fmt.Errorf("volume_mount_group %d: %w", gid, err)
	}
	if err := applyGroupTo(root, ".", gid); err != nil {
		return fmt.Errorf("volume_mount_group %d: %w", gid, err)
	}
	return nil
}

func applyGroupBelow(ctx context.Context, dir *os.Root, gid int) error {
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
			if err := applyGroupEntry(ctx, dir, e, gid); err != nil && !errors.Is(err, fs.ErrNotExist) {
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

func applyGroupEntry(ctx context.Context, dir *os.Root, e fs.DirEntry, gid int) error {
	if e.IsDir() {
		below, err := dir.OpenRoot(e.Name())
		if err != nil {
			return err
		}
		err = applyGroupBelow(ctx, below, gid)
		below.Close()
		if err != nil {
			return err
		}
	}
	return applyGroupTo(dir, e.Name(), gid)
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

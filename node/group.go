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

// isGiven reports whether the root of a volume belongs to a group in the way
// that give leaves it. As give does the root last, everything else is done too.
func isGiven(dir string, gid int) (bool, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return false, fmt.Errorf("volume_mount_group %d: %w", gid, err)
	}
	return belongs(info, gid), nil
}

func belongs(info fs.FileInfo, gid int) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(st.Gid) == gid && info.Mode() == withGroup(info.Mode())
}

// withGroup returns the mode that lets a group read and write: what somebody
// may execute the group may too, and what is made in a directory goes to the
// directory's group.
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

// give makes everything in a volume belong to a group. It goes from the leaves
// up and does the root last, whose group so shows that all is done. It follows
// no symbolic link.
func give(ctx context.Context, dir string, gid int) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("volume_mount_group %d: %w", gid, err)
	}
	defer root.Close()
	if err := giveBelow(ctx, root, gid); err != nil {
		return fmt.Errorf("volume_mount_group %d: %w", gid, err)
	}
	if err := giveOne(root, ".", gid); err != nil {
		return fmt.Errorf("volume_mount_group %d: %w", gid, err)
	}
	return nil
}

// giveBelow does what lies in a directory, but not the directory.
func giveBelow(ctx context.Context, dir *os.Root, gid int) error {
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
			if err := giveEntry(ctx, dir, e, gid); err != nil {
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

func giveEntry(ctx context.Context, dir *os.Root, e fs.DirEntry, gid int) error {
	if e.IsDir() {
		below, err := dir.OpenRoot(e.Name())
		if err != nil {
			return err
		}
		err = giveBelow(ctx, below, gid)
		below.Close()
		if err != nil {
			return err
		}
	}
	return giveOne(dir, e.Name(), gid)
}

// giveOne does one entry. Changing the group clears the bits that run a program
// as somebody else, so the mode is written after it.
func giveOne(dir *os.Root, name string, gid int) error {
	info, err := dir.Lstat(name)
	if err != nil {
		return err
	}
	if belongs(info, gid) {
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

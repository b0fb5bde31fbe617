package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/internal/linux/blockdev"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
)

// usedFiles describes the files of the pool, also deleted ones, that are bound to
// a loop device. This includes raw block volumes and mounts in other mount
// namespaces.
func (p *pool) usedFiles(ctx context.Context, files []string) (used []string, err error) {
	names := map[loop.Backing]string{}
	for _, name := range files {
		b, err := p.backing(name)
		if err != nil {
			return nil, err
		}
		names[b] = name
	}
	top, err := p.backing(".")
	if err != nil {
		return nil, err
	}
	devices, err := loop.List(ctx)
	if err != nil {
		return nil, err
	}
	for _, d := range devices {
		name, known := names[d.Backing]
		if !known || d.Silent != "" {
			if name, err = p.deletedName(d, top.Dev); err != nil {
				return nil, err
			}
		}
		if name == "" {
			continue
		}
		u, err := useThrough(ctx, []loop.Device{d})
		if err != nil {
			return nil, err
		}
		published, err := publishedAt(ctx, d)
		if err != nil {
			return nil, err
		}
		used = append(used, name+" ("+u.String()+published+")")
	}
	return used, nil
}

// publishedAt lists the paths of a raw block volume: bind mounts of the device
// file.
func publishedAt(ctx context.Context, d loop.Device) (text string, err error) {
	table, err := mount.Table(ctx)
	if err != nil {
		return "", err
	}
	for _, m := range table {
		if m.Root == "/" || m.FSType != "devtmpfs" && m.FSType != "tmpfs" {
			continue // another file system can be unreachable, and lstat would hang
		}
		if major, minor, err := blockdev.Rdev(m.Target); err == nil && major == d.Major && minor == d.Minor {
			text += ", block device at " + m.Target
		}
	}
	return text, nil
}

func (p *pool) backing(name string) (loop.Backing, error) {
	f, err := p.root.Open(name)
	if err != nil {
		return loop.Backing{}, err
	}
	defer f.Close()
	return loop.BackingOf(f)
}

// deletedName returns the former name of a file of the pool that is deleted or
// does not respond, or "".
func (p *pool) deletedName(d loop.Device, dev uint64) (string, error) {
	if d.Silent != "" {
		if strings.HasPrefix(d.Silent, p.path+"/") {
			return d.Silent, nil
		}
		return "", nil
	}
	if d.Backing.Dev != dev {
		return "", nil
	}
	path, deleted, err := loop.BackingName(d)
	if errors.Is(err, loop.ErrGone) {
		return "", nil
	}
	if err != nil || p.ownMount { // then every file is of the pool
		return path, err
	}
	dir, base := filepath.Split(path)
	if !deleted || !slices.Contains([]string{volumesDir, snapshotsDir, incomingDir}, filepath.Base(dir)) {
		return "", nil
	}
	// An invisible directory can be the pool in another mount namespace.
	here, err := p.root.Stat(".")
	if err != nil {
		return "", err
	}
	if there, err := os.Stat(filepath.Dir(filepath.Clean(dir))); err == nil && !os.SameFile(here, there) {
		return "", nil
	}
	return filepath.Base(dir) + "/" + base + ", deleted", nil
}

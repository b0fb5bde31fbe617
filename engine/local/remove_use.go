package local

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/loop"
)

// checkUnused returns an error if a file of the pool, also a deleted one, is
// bound to a loop device. This includes raw block volumes and mounts in other
// mount namespaces.
func (p *pool) checkUnused(ctx context.Context, files []string) error {
	names := map[loop.Backing]string{}
	for _, name := range files {
		b, err := p.backing(name)
		if err != nil {
			return err
		}
		names[b] = name
	}
	top, err := p.backing(".")
	if err != nil {
		return err
	}
	devices, err := loop.List(ctx)
	if err != nil {
		return err
	}
	var used []string
	for _, d := range devices {
		name, known := names[d.Backing]
		if !known || d.Silent != "" {
			if name, err = p.deletedName(d, top.Dev); err != nil {
				return err
			}
		}
		if name == "" {
			continue
		}
		u, err := useThrough(ctx, []loop.Device{d})
		if err != nil {
			return err
		}
		used = append(used, name+" ("+u.String()+")")
	}
	if len(used) > 0 {
		return errs.Errorf(errs.Precondition, "files of the pool are in use (%d): %s; detach these volumes first (start the driver for that, and stop it again), or end their users", len(used), firstNames(used))
	}
	return nil
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

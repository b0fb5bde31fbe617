package node

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
)

// systemTrees must not contain volumes.
var systemTrees = []string{
	"/proc", "/sys", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/boot",
}

// systemDirectories cannot be covered, though some can contain volumes.
var systemDirectories = []string{
	"/", "/dev", "/dev/pts", "/dev/shm", "/run", "/tmp", "/var", "/var/lib", "/var/lib/kubelet", "/var/tmp",
}

// checkPath rejects paths in or over the driver's private or system
// directories, following symbolic links. Invalid: such a path. Precondition: it
// cannot be resolved.
func (m *Manager) checkPath(field, path string) error {
	resolved, err := resolve(field, path)
	if err != nil {
		return err
	}
	for _, private := range m.config.Private {
		dir := realPath(private)
		switch {
		case isWithin(resolved, dir):
			return errs.Errorf(errs.Invalid, "%s %s is inside %s, a directory of the driver; use a path outside of it", field, path, dir)
		case isWithin(dir, resolved):
			return errs.Errorf(errs.Invalid, "%s %s would hide %s, a directory of the driver; use a path outside of it", field, path, dir)
		}
	}
	if dir, ok := systemPath(resolved); ok {
		return errs.Errorf(errs.Invalid, "%s %s belongs to the operating system (%s); use a directory for volumes", field, path, dir)
	}
	return nil
}

// checkApart rejects, as Invalid, a target inside or above the staged volume.
func checkApart(target, staging string) error {
	to, err := resolve("target_path", target)
	if err != nil {
		return err
	}
	from, err := resolve("staging_target_path", staging)
	if err != nil {
		return err
	}
	if isWithin(to, from) || isWithin(from, to) {
		return errs.Errorf(errs.Invalid, "target_path %s is inside staging_target_path %s or above it; use a target outside of it", target, staging)
	}
	return nil
}

func resolve(field, path string) (string, error) {
	resolved, err := mount.Resolve(path)
	if err == nil {
		return resolved, nil
	}
	if err := checkDirectory("the directory above "+field+",", filepath.Dir(path)); err != nil {
		return "", err
	}
	return "", errs.Errorf(errs.Precondition, "%s %s cannot be used: %w", field, path, err)
}

func systemPath(path string) (dir string, ok bool) {
	if slices.Contains(systemDirectories, path) {
		return path, true
	}
	i := slices.IndexFunc(systemTrees, func(tree string) bool { return isWithin(path, tree) })
	if i < 0 {
		return "", false
	}
	return systemTrees[i], true
}

// isWithin needs resolved paths.
func isWithin(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, strings.TrimSuffix(dir, "/")+"/")
}

// realPath resolves as far as the directory exists.
func realPath(dir string) string {
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		return real
	}
	return filepath.Clean(dir)
}

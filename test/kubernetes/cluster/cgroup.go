package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const cgroupRoot = "/sys/fs/cgroup"

// hierarchies returns the roots of the cgroup hierarchies: one for version 2,
// several for version 1.
func hierarchies() (roots []string, unified bool, err error) {
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.controllers")); err == nil {
		return []string{cgroupRoot}, true, nil
	}
	entries, err := os.ReadDir(cgroupRoot)
	if err != nil {
		return nil, false, fmt.Errorf("read the cgroup root: %w", err)
	}
	for _, e := range entries {
		root := filepath.Join(cgroupRoot, e.Name())
		if _, err := os.Stat(filepath.Join(root, "cgroup.procs")); err == nil && e.Name() != "unified" && e.Type()&fs.ModeSymlink == 0 {
			roots = append(roots, root)
		}
	}
	if len(roots) == 0 {
		return nil, false, fmt.Errorf("no cgroups are mounted below %s; the kubelet needs them", cgroupRoot)
	}
	return roots, false, nil
}

// makeCgroups creates the node's group, with one group for pods and one for the
// node's processes: the caller's group can have a memory limit too low for a
// cluster. The first node's group is the cluster's.
func (s *site) makeCgroups() error {
	roots, unified, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		group := filepath.Join(root, s.nodeCgroup())
		parent := filepath.Dir(group)
		if unified {
			if err := enableControllers(parent); err != nil {
				return err
			}
		}
		if err := os.Mkdir(group, 0o755); err != nil {
			return fmt.Errorf("create a cgroup: %w", err)
		}
		if unified {
			if err := enableControllers(group); err != nil {
				return err
			}
		}
		daemons := filepath.Join(group, "daemons")
		if filepath.Base(root) == "cpuset" {
			if err := inheritCPUs(parent, group); err != nil {
				return err
			}
		}
		if err := os.Mkdir(daemons, 0o755); err != nil {
			return fmt.Errorf("create a cgroup: %w", err)
		}
		if filepath.Base(root) == "cpuset" {
			if err := inheritCPUs(group, daemons); err != nil {
				return err
			}
		}
	}
	return nil
}

// enableControllers enables all controllers of a version 2 group for its
// children.
func enableControllers(group string) error {
	text, err := os.ReadFile(filepath.Join(group, "cgroup.controllers"))
	if err != nil {
		return err
	}
	for _, c := range strings.Fields(string(text)) {
		if err := os.WriteFile(filepath.Join(group, "cgroup.subtree_control"), []byte("+"+c), 0o644); err != nil {
			return fmt.Errorf("cgroup %s: enable controller %s: %w", group, c, err)
		}
	}
	return nil
}

// inheritCPUs copies CPUs and memory nodes: a new cpuset group has none and
// accepts no process.
func inheritCPUs(from, to string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// joinCgroup moves a process to the group of the node's processes; its later
// children inherit the group.
func (s *site) joinCgroup(pid int) error {
	roots, _, err := hierarchies()
	if err != nil {
		return err
	}
	for _, root := range roots {
		procs := filepath.Join(root, s.nodeCgroup(), "daemons", "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("join a cgroup: %w", err)
		}
	}
	return nil
}

// pids returns the processes in all groups below dir, numbered in this PID
// namespace.
func pids(dir string) ([]int, error) {
	var all []int
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		if err != nil || !e.IsDir() {
			return err
		}
		text, err := os.ReadFile(filepath.Join(path, "cgroup.procs"))
		if err != nil {
			return nil
		}
		for line := range bytes.Lines(text) {
			if pid, err := strconv.Atoi(strings.TrimSpace(string(line))); err == nil && pid > 0 {
				all = append(all, pid)
			}
		}
		return nil
	})
	return all, err
}

// removeCgroups removes the cluster's groups, deepest first, including those of
// a version 2 hierarchy mounted beside version 1, which only the runtime uses.
func (s *site) removeCgroups() error {
	return removeGroups(s.Cgroup)
}

// removePodCgroups removes the groups of the node's pods, as a crash does. The
// kubelet would spend seconds on each left-over group.
func (s *site) removePodCgroups() error {
	return removeGroups(filepath.Join(s.nodeCgroup(), "kubepods"))
}

// removeGroups removes the groups of a name and those below it in every
// hierarchy.
func removeGroups(name string) error {
	tops, err := filepath.Glob(filepath.Join(cgroupRoot, "*", name))
	if err != nil {
		return err
	}
	var failed []error
	for _, top := range append(tops, filepath.Join(cgroupRoot, name)) {
		if _, err := os.Stat(top); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var groups []string
		err := filepath.WalkDir(top, func(path string, e fs.DirEntry, err error) error {
			if err == nil && e.IsDir() {
				groups = append(groups, path)
			}
			return nil
		})
		if err != nil {
			failed = append(failed, err)
		}
		for _, g := range slices.Backward(groups) {
			if err := os.Remove(g); err != nil && !errors.Is(err, fs.ErrNotExist) {
				failed = append(failed, fmt.Errorf("remove cgroup %s: %w", g, err))
			}
		}
	}
	return errors.Join(failed...)
}

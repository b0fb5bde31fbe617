package kubernetes

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// processes returns the ids of processes whose arguments match; the first
// argument is a base name. A forked child that has not called exec yet still
// has its parent's arguments and is ignored.
func processes(wanted func(args []string) bool) ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // the process has ended
		}
		args := strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
		args[0] = filepath.Base(args[0])
		if wanted(args) {
			if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file))); err == nil {
				found = append(found, pid)
			}
		}
	}
	slices.Sort(found)
	hasEnded := func(pid int) bool { // and another has begun, while the files were read
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		return err != nil || len(text) == 0
	}
	return slices.DeleteFunc(slices.Clone(found), func(pid int) bool { return hasEnded(pid) || slices.Contains(found, parent(pid)) }), nil
}

// with matches processes with all of these arguments.
func with(words ...string) func(args []string) bool {
	return func(args []string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(args, w) })
	}
}

// processesWith returns the processes with all of these arguments.
func processesWith(t *testing.T, words ...string) []int {
	t.Helper()
	found := testkit.Value(processes(with(words...)))(t)
	return found
}

// processesOf waits until this many processes have all of these arguments: one that
// ends, as after it has lost its Lease, is started again.
func (s *space) processesOf(count int, words ...string) (found []int) {
	s.Helper()
	s.until(fmt.Sprintf("processes of %q", words), func(context.Context) (err error) {
		if found, err = processes(with(words...)); err == nil && len(found) != count {
			err = fmt.Errorf("%d processes, want %d", len(found), count)
		}
		return err
	})
	return found
}

// processOf waits for the process with an argument and an id other than other,
// and returns its id.
func (s *space) processOf(argument string, other int) (pid int) {
	s.Helper()
	s.until("a process with "+argument, func(context.Context) error {
		found, err := processes(with(argument))
		if err != nil {
			return err
		}
		i := slices.IndexFunc(found, func(p int) bool { return p != other })
		if i < 0 {
			return errors.New("no process")
		}
		pid = found[i]
		return nil
	})
	return pid
}

// parent returns the parent of a process, or 0 if the process has ended.
func parent(pid int) (of int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in parentheses, can contain any characters.
	_, after, _ := strings.Cut(string(text[max(0, bytes.LastIndexByte(text, ')')):]), " ")
	var state string
	if _, err := fmt.Sscan(after, &state, &of); err != nil {
		return 0
	}
	return of
}

// kernelStatus returns /proc/PID/status.
func kernelStatus(t *testing.T, pid int) map[string]string {
	t.Helper()
	text := testkit.Value(os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)))(t)
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		all[key] = strings.Join(strings.Fields(value), " ")
	}
	return all
}

// hasReadOnlyRoot reports whether the root of a process is mounted read-only.
func hasReadOnlyRoot(t *testing.T, pid int) bool {
	t.Helper()
	text := testkit.Value(os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid)))(t)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); f[4] == "/" {
			return slices.Contains(strings.Split(f[5], ","), "ro")
		}
	}
	return false
}

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

// processes returns the ids of the processes whose arguments, the first without
// its directory, are as wanted. A child looks like its parent until it has become
// mkfs, or whatever it is to be, and is left out.
func processes(wanted func(args []string) bool) ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
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
	return slices.DeleteFunc(slices.Clone(found), func(pid int) bool { return slices.Contains(found, parent(pid)) }), nil
}

// with wants all of these words among the arguments.
func with(words ...string) func(args []string) bool {
	return func(args []string) bool {
		return !slices.ContainsFunc(words, func(w string) bool { return !slices.Contains(args, w) })
	}
}

// processesWith are those that have all of these words among their arguments.
func processesWith(t *testing.T, words ...string) []int {
	t.Helper()
	found := testkit.Value(processes(with(words...)))(t)
	return found
}

// processOf waits for the process with that argument, one that is not the other,
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
			return errors.New("there is none")
		}
		pid = found[i]
		return nil
	})
	return pid
}

// parent returns the process that started another, 0 when that has ended.
func parent(pid int) (of int) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in brackets, may hold anything.
	_, after, _ := strings.Cut(string(text[max(0, bytes.LastIndexByte(text, ')')):]), " ")
	var state string
	if _, err := fmt.Sscan(after, &state, &of); err != nil {
		return 0
	}
	return of
}

// kernelStatus is what the kernel says of a process.
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

// hasReadOnlyRoot says whether the process sees its root read-only.
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

// Package kernel talks to the kernel of a test guest through the files by which
// it is told and asked: sysfs, configfs and /proc.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/vm"
)

const (
	// callTime bounds one call into a guest that shares two cores with others.
	callTime = time.Minute
	// waitTime bounds what has no event to wait for.
	waitTime = 2 * time.Minute
	// tailLines is how much of the kernel's log a failed test shows.
	tailLines = 40
)

// Kernel is a guest's. Its methods fail the test when they fail, unless they
// return an error.
type Kernel struct {
	testing.TB
	Guest *vm.Guest
}

// Of speaks to a guest's kernel. When the test fails, it shows the end of the
// kernel's log if the guest still runs.
func Of(t testing.TB, g *vm.Guest) *Kernel {
	k := &Kernel{t, g}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the kernel's log ends with:\n%s", k.log(tailLines))
		}
	})
	return k
}

// log is the end of the kernel's log. The test's own context may be over.
func (k *Kernel) log(lines int) string {
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	text, err := k.Guest.Run(ctx, "dmesg")
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Try runs a program and returns what it printed, without the space around it.
func (k *Kernel) Try(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(k.Context(), callTime)
	defer cancel()
	out, err := k.Guest.Run(ctx, argv...)
	return strings.TrimSpace(out), err
}

// Run is Try of what has to work.
func (k *Kernel) Run(argv ...string) string {
	k.Helper()
	out, err := k.Try(argv...)
	if err != nil {
		k.Fatal(err)
	}
	return out
}

// Read returns what a file says, without the space around it.
func (k *Kernel) Read(path string) string {
	k.Helper()
	return k.Run("cat", path)
}

// Write tells a file a value, in one write without a line end.
func (k *Kernel) Write(path, value string) {
	k.Helper()
	if err := k.TryWrite(path, value); err != nil {
		k.Fatal(err)
	}
}

// TryWrite is Write of what the kernel may refuse; see Refused.
func (k *Kernel) TryWrite(path, value string) error {
	if _, err := k.Try("sh", "-c", `echo -n "$1" > "$0"`, path, value); err != nil {
		return fmt.Errorf("write %q to %s: %w", value, path, err)
	}
	return nil
}

// Refused wants err to be that of a program which met the error number.
func (k *Kernel) Refused(err error, want syscall.Errno) {
	k.Helper()
	var exit *vm.ExitError
	if !errors.As(err, &exit) || !strings.Contains(strings.ToLower(exit.Output), want.Error()) {
		k.Errorf("got %v, want a refusal with %q", err, want)
	}
}

// Names lists a directory; one that is not there is empty.
func (k *Kernel) Names(dir string) []string {
	k.Helper()
	return strings.Fields(k.Run("sh", "-c", `if [ -d "$0" ]; then ls "$0"; fi`, dir))
}

// Await asks until it is so.
func (k *Kernel) Await(what string, so func() bool) {
	k.Helper()
	deadline := time.After(waitTime)
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-k.Guest.Done():
			k.Fatalf("the guest went down before %s", what)
		case <-deadline:
			k.Fatalf("not in %v: %s", waitTime, what)
		}
	}
}

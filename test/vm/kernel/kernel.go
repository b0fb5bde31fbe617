// Package kernel accesses sysfs, configfs and /proc of a test guest.
package kernel

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/vm"
)

const (
	// callTimeout limits one call to a guest, which shares two cores with others.
	callTimeout = time.Minute
	// waitTimeout limits polling for a condition.
	waitTimeout = 2 * time.Minute
	// tailLines is how many lines of the kernel log a failed test shows.
	tailLines = 40
)

// Kernel is the kernel of a guest. Methods without an error result fail the
// test.
type Kernel struct {
	testing.TB
	Guest *vm.Guest
}

// Of returns a guest's kernel. When the test fails and the guest still runs,
// the end of the kernel log is logged.
func Of(t testing.TB, g *vm.Guest) *Kernel {
	k := &Kernel{t, g}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("end of the kernel log:\n%s", k.log(tailLines))
		}
	})
	return k
}

// log returns the end of the kernel log. It does not use the test's context,
// which has ended in cleanups.
func (k *Kernel) log(lines int) string {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	text, err := k.Guest.Run(ctx, "dmesg")
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Try runs a program and returns its trimmed output.
func (k *Kernel) Try(argv ...string) (string, error) {
	ctx, cancel := context.WithTimeout(k.Context(), callTimeout)
	defer cancel()
	out, err := k.Guest.Run(ctx, argv...)
	return strings.TrimSpace(out), err
}

// Run runs a program that must succeed and returns its trimmed output.
func (k *Kernel) Run(argv ...string) string {
	k.Helper()
	out, err := k.Try(argv...)
	if err != nil {
		k.Fatal(err)
	}
	return out
}

// Read returns the trimmed contents of a file.
func (k *Kernel) Read(path string) string {
	k.Helper()
	return k.Run("cat", path)
}

// Write writes a value to a file, in one write without a newline.
func (k *Kernel) Write(path, value string) {
	k.Helper()
	if err := k.TryWrite(path, value); err != nil {
		k.Fatal(err)
	}
}

// TryWrite is Write for values that the kernel can refuse; see WantErrno.
func (k *Kernel) TryWrite(path, value string) error {
	if _, err := k.Try("sh", "-c", `echo -n "$1" > "$0"`, path, value); err != nil {
		return fmt.Errorf("write %q to %s: %w", value, path, err)
	}
	return nil
}

// WantErrno verifies that err is a program's failure with the error number.
func (k *Kernel) WantErrno(err error, want syscall.Errno) {
	k.Helper()
	var exit *vm.ExitError
	if !errors.As(err, &exit) || !strings.Contains(strings.ToLower(exit.Output), want.Error()) {
		k.Errorf("got %v, want error %q", err, want)
	}
}

// Names lists a directory; a missing one is empty.
func (k *Kernel) Names(dir string) []string {
	k.Helper()
	return strings.Fields(k.Run("sh", "-c", `if [ -d "$0" ]; then ls "$0"; fi`, dir))
}

// Await polls until the condition is true.
func (k *Kernel) Await(what string, so func() bool) {
	k.Helper()
	err := testkit.Poll(waitTimeout, k.Guest.Done(), func() error {
		if !so() {
			return errors.New("not yet")
		}
		return nil
	})
	if err != nil {
		k.Fatalf("the guest ended, or %v passed, while waiting for: %s", waitTimeout, what)
	}
}

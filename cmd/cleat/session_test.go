package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/cleatproject/cleat/test/testkit"
)

// execute runs a command in this process.
func execute(t *testing.T, c *cobra.Command, stdin string, args ...string) (out, notices string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	c.SilenceUsage, c.SilenceErrors = true, true
	c.SetArgs(args)
	c.SetIn(strings.NewReader(stdin))
	c.SetOut(&stdout)
	c.SetErr(&stderr)
	err = c.ExecuteContext(t.Context())
	return stdout.String(), stderr.String(), err
}

// cleat runs a command line in this process.
func cleat(t *testing.T, args ...string) (out string, err error) {
	t.Helper()
	out, _, err = execute(t, newRootCommand(), "", args...)
	return out, err
}

// commands runs the commands of a group against one server, set by a flag or an
// environment variable.
type commands struct{ group, named, server string }

func (c commands) run(t *testing.T, stdin string, args ...string) (out, notices string, err error) {
	t.Helper()
	line := append([]string{c.group}, args...)
	if strings.HasPrefix(c.named, "--") {
		line = append(line, c.named, c.server)
	} else {
		t.Setenv(c.named, c.server)
	}
	return execute(t, newRootCommand(), stdin, line...)
}

// says runs a command that must succeed with exactly this output.
func (c commands) says(t *testing.T, want string, args ...string) {
	t.Helper()
	out, _, err := c.run(t, "", args...)
	if err != nil || out != want {
		t.Errorf("cleat %s %s: %v\n%s", c.group, strings.Join(args, " "), err, cmp.Diff(want, out))
	}
}

// refuses runs a command that must fail with all words in its error, and no output.
func (c commands) refuses(t *testing.T, words []string, args ...string) error {
	t.Helper()
	out, _, err := c.run(t, "", args...)
	if out != "" || err == nil || !saysAll(err, words...) {
		t.Errorf("cleat %s %s: %v, %q; want an error with %q", c.group, strings.Join(args, " "), err, out, words)
	}
	return err
}

// A call is retried with backoff until it succeeds, its error is final, or the timeout
// expires; each new error is reported once.
func TestRetry(t *testing.T) {
	busy, final, hangs := errors.New("busy"), errors.New("final"), errors.New("hangs")
	for name, c := range map[string]struct {
		errs    []error // the last one repeats
		says    string
		calls   int
		notices string
	}{
		"at once":   {[]error{nil}, "", 1, ""},
		"at last":   {[]error{busy, busy, busy, busy, busy, nil}, "", 6, "busy; retrying"},
		"final":     {[]error{busy, final}, "final", 2, ""},
		"too late":  {[]error{busy}, "busy (gave up after 10s: context deadline exceeded)", 13, "busy; retrying"},
		"no answer": {[]error{hangs}, "context deadline exceeded", 1, ""},
		"an answer": {[]error{busy, hangs}, "busy (gave up after 10s: context deadline exceeded)", 2, ""},
		"a timeout": {[]error{busy, context.DeadlineExceeded}, "context deadline exceeded", 2, ""}, // not of this command
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			var notices []string
			calls := 0
			err := retry(ctx, time.Second, func(line string) { notices = append(notices, line) },
				func(err error, _ time.Duration) bool { return errors.Is(err, busy) },
				func(ctx context.Context) error {
					calls++
					err := c.errs[min(calls, len(c.errs))-1]
					if err == hangs {
						<-ctx.Done()
						return ctx.Err()
					}
					return err
				})
			if got := strings.Join(notices, ", "); err == nil != (c.says == "") || err != nil && err.Error() != c.says || calls != c.calls || got != c.notices {
				t.Errorf("%s: %v after %d calls, notices %q", name, err, calls, got)
			}
		})
	}
}

// The number of arguments is derived from the use line.
func TestArgsOf(t *testing.T) {
	for use, takes := range map[string][2]int{"x": {0, 0}, "x A B": {2, 2}, "x A [B]": {1, 2}, "x [A]": {0, 1}, "x A B...": {2, 9}, "x [A...]": {0, 9}} {
		for n := range 10 {
			err := argsOf(use)(&cobra.Command{Use: "x"}, make([]string, n))
			if want := n >= takes[0] && n <= takes[1]; (err == nil) != want {
				t.Errorf("%s with %d arguments: %v", use, n, err)
			}
		}
	}
}

func TestVersion(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--version", "cleat " + release},
		{"version", "CSI specification " + specification},
		{"version -o json", `"csi": "` + specification + `"`},
	} {
		if out, err := cleat(t, strings.Fields(c.args)...); err != nil || !strings.Contains(out, c.want) {
			t.Errorf("cleat %s: %q, %v; want %q", c.args, out, err, c.want)
		}
	}
	_, err := cleat(t, "completion", "foo")
	testkit.WantError(t, "the completion of an unknown shell", err, nil, `no command "foo"`)
}

// A signal ends a command with one line, not with the error of each layer.
func TestInterruptedCommand(t *testing.T) {
	c := &cobra.Command{}
	c.SetContext(t.Context())
	err := (&session{}).run(c, "", func(ctx context.Context, _ func(string)) error {
		testkit.Must(t, syscall.Kill(os.Getpid(), syscall.SIGINT))
		<-ctx.Done()
		return fmt.Errorf("list volumes: %w", ctx.Err())
	})
	if want := "interrupted by a signal"; err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %q", err, want)
	}
}

package mkfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// DefaultPath is the default search path for tools.
const DefaultPath = "/usr/sbin:/sbin:/usr/bin:/bin"

// Tools runs the programs that create and repair file systems. The zero value
// uses the installed ones.
type Tools struct {
	// Path lists the directories to search, separated by colons; empty is
	// DefaultPath. It is also the PATH of the programs.
	Path string
}

// ErrNoTool: a program is not installed. The error names it and its Debian
// package.
var ErrNoTool = errors.New("not installed")

// debianPackage returns the package of a tool.
func debianPackage(tool string) string {
	switch tool {
	case "mkfs.ext4", "e2fsck", "resize2fs":
		return "e2fsprogs"
	case "mkfs.xfs":
		return "xfsprogs"
	}
	return "btrfs-progs"
}

func (t Tools) path() string {
	if t.Path == "" {
		return DefaultPath
	}
	return t.Path
}

func (t Tools) find(tool string) (string, error) {
	for _, dir := range filepath.SplitList(t.path()) {
		name := filepath.Join(dir, tool)
		if !filepath.IsAbs(name) {
			continue
		}
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return name, nil
		}
	}
	return "", errs.Errorf(errs.Precondition, "%s is %w: not found in %s; install the Debian package %s (or the package with %[1]s of your distribution)",
		tool, ErrNoTool, t.path(), debianPackage(tool))
}

// command is one run of a tool.
type command struct {
	tool string
	args []string
	// outlive lets the tool continue if this process dies, for work that must
	// not be interrupted.
	outlive bool
	// hold is inherited by the tool, so that a lock on it lasts as long as the
	// tool runs.
	hold *os.File
}

// result is the exit code and the combined output of a tool, shortened in the
// middle.
type result struct {
	code   int
	output string
}

// run executes a tool without a shell, without input and with a clean
// environment. A cancelled context kills the tool and its children. A nonzero
// exit code is not an error here, as its meaning differs between tools.
func (t Tools) run(ctx context.Context, c command) (result, error) {
	if err := ctx.Err(); err != nil {
		return result{}, fmt.Errorf("%s was not started: %w", c.tool, err)
	}
	program, err := t.find(c.tool)
	if err != nil {
		return result{}, err
	}
	var output clipped
	cmd := exec.CommandContext(ctx, program, c.args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + t.path(), "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if !c.outlive {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
		// The kernel sends the signal when the thread that started the tool
		// exits; locking keeps the thread until run returns.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	if c.hold != nil {
		cmd.ExtraFiles = []*os.File{c.hold}
	}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	res := result{output: output.String()}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return res, fmt.Errorf("%s was stopped: %w", c.tool, ctx.Err())
	case errors.As(err, &exit) && exit.Exited():
		res.code = exit.ExitCode()
	case err != nil:
		return res, fmt.Errorf("%s did not exit normally: %w%s", c.tool, err, quoteOutput(res.output))
	}
	return res, nil
}

// clipped keeps the beginning and the end of its input.
type clipped struct {
	head, tail []byte
	lost       bool
}

const clip = 2 << 10 // bytes kept of each end

func (c *clipped) Write(p []byte) (int, error) {
	n := len(p)
	if free := clip - len(c.head); free > 0 {
		take := min(free, len(p))
		c.head, p = append(c.head, p[:take]...), p[take:]
	}
	c.tail = append(c.tail, p...)
	if over := len(c.tail) - clip; over > 0 {
		c.tail = append(c.tail[:0], c.tail[over:]...)
		c.lost = true
	}
	return n, nil
}

func (c *clipped) String() string {
	if c.lost {
		return string(c.head) + "\n…\n" + string(c.tail)
	}
	return string(c.head) + string(c.tail)
}

// quoteOutput formats a tool's output as one line to append to an error. The
// usage text of mkfs.xfs is dropped.
func quoteOutput(output string) string {
	output, _, _ = strings.Cut(output, "Usage:")
	var lines []string
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return ": " + strings.ToValidUTF8(strings.Join(lines, "; "), "?")
}

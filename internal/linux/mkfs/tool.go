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

// Tools runs the programs that create and repair file systems.
type Tools struct {
	// Path is the search path, also of the programs; empty is DefaultPath.
	Path string
}

// ErrNoTool: a program is not installed. The error names it and its Debian
// package.
var ErrNoTool = errors.New("not installed")

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

type command struct {
	tool string
	args []string
	// The tool continues if this process dies.
	outlive bool
	// hold is inherited by the tool: a lock on it lasts as long as the tool.
	hold *os.File
}

type result struct {
	code   int
	output string
}

// run uses no shell, no input and a clean environment. A cancelled context
// kills the tool and its children. A nonzero exit code is not an error here.
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
		// exits: keep it.
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

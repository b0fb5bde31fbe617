package mkfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
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
	case "mkfs.ext4", "e2fsck", "e2image", "resize2fs":
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
	// The tool continues if the context ends or this process dies.
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
	cmd := exec.CommandContext(ctx, program, c.args...)
	if c.outlive {
		cmd = exec.CommandContext(context.WithoutCancel(ctx), program, c.args...)
	}
	cmd.Dir = "/"
	// resize2fs leaves new inode tables to the kernel, also where the module of
	// ext4 is not loaded.
	cmd.Env = []string{"PATH=" + t.path(), "LC_ALL=C", "RESIZE2FS_FORCE_LAZY_ITABLE_INIT=1"}
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if c.hold != nil {
		cmd.ExtraFiles = []*os.File{c.hold}
	}
	if c.outlive {
		return leave(ctx, cmd, c.tool)
	}
	var output clipped
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	// The kernel sends the signal when the thread that started the tool exits:
	// keep it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	if ctx.Err() != nil {
		return result{output: output.String()}, fmt.Errorf("%s was stopped: %w", c.tool, ctx.Err())
	}
	return finished(c.tool, err, output.String())
}

func finished(tool string, err error, output string) (result, error) {
	res := result{output: output}
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.Exited():
		res.code = exit.ExitCode()
	case err != nil:
		return res, fmt.Errorf("%s did not exit normally: %w%s", tool, err, quoteOutput(output))
	}
	return res, nil
}

// leave runs a tool that continues when the context ends, or the pod of this
// process. Its output goes to memory that it shares: a pipe without a reader
// would kill it.
func leave(ctx context.Context, cmd *exec.Cmd, tool string) (result, error) {
	fd, err := unix.MemfdCreate(tool, unix.MFD_CLOEXEC)
	if err != nil {
		return result{}, fmt.Errorf("memory for the output of %s: %w", tool, err)
	}
	memory := os.NewFile(uintptr(fd), tool)
	defer memory.Close()
	cmd.Stdout, cmd.Stderr = memory, memory
	if err := cmd.Start(); err != nil {
		return result{}, fmt.Errorf("start %s: %w", tool, err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	if err := kernelcall.LeaveCgroups(ctx, cmd.Process.Pid); err != nil {
		return result{}, errs.Errorf(errs.Busy, "%s continues (process %d), but could not leave the pod: %w", tool, cmd.Process.Pid, err)
	}
	select {
	case <-ctx.Done():
		return result{}, errs.Errorf(errs.Busy, "%s has not ended within the time of the call and continues (process %d); try again: %v", tool, cmd.Process.Pid, ctx.Err())
	case err = <-exited:
	}
	var output clipped
	_, _ = memory.Seek(0, io.SeekStart) // memory
	_, _ = io.Copy(&output, memory)
	return finished(tool, err, output.String())
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

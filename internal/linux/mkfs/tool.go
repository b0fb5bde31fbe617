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

// DefaultPath is where tools are looked for.
const DefaultPath = "/usr/sbin:/sbin:/usr/bin:/bin"

// Tools runs the programs that make and mend file systems. The zero value
// takes those of the system.
type Tools struct {
	// Path lists the directories to look in, separated by colons; empty is
	// DefaultPath. It is also the PATH that the programs see.
	Path string
}

// ErrNoTool: a program is not installed. The error's text names it and the
// Debian package that brings it.
var ErrNoTool = errors.New("not installed")

// debianPackage brings a tool.
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
	return "", errs.Errorf(errs.Precondition, "%s is %w: it is in none of %s; install the Debian package %s (or what brings %[1]s elsewhere)",
		tool, ErrNoTool, t.path(), debianPackage(tool))
}

// command is one run of a tool.
type command struct {
	tool string
	args []string
	// outlive lets the tool go on when this process dies, for work that is
	// worse half done than done twice.
	outlive bool
	// hold is passed to the tool as an open file, so that a lock on it lasts
	// as long as the tool.
	hold *os.File
}

// result is how a run ended: the exit code, and what the tool said on both
// streams, cut in the middle where it said too much.
type result struct {
	code   int
	output string
}

// run starts a tool without a shell, without input and with a clean
// environment, and waits for it. A cancelled context kills the tool and what
// it started. An exit code that is not zero is no error here: it means other
// things in other tools.
func (t Tools) run(ctx context.Context, c command) (result, error) {
	if err := ctx.Err(); err != nil {
		return result{}, fmt.Errorf("%s was not started: %w", c.tool, err)
	}
	program, err := t.find(c.tool)
	if err != nil {
		return result{}, err
	}
	var said clipped
	cmd := exec.CommandContext(ctx, program, c.args...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + t.path(), "LC_ALL=C"}
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	if !c.outlive {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
		// The kernel sends that signal when the thread that started the tool
		// ends; a locked thread lasts as long as this call.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
	}
	if c.hold != nil {
		cmd.ExtraFiles = []*os.File{c.hold}
	}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = 5 * time.Second
	err = cmd.Run()
	res := result{output: said.String()}
	var exit *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return res, fmt.Errorf("%s was stopped: %w", c.tool, ctx.Err())
	case errors.As(err, &exit) && exit.Exited():
		res.code = exit.ExitCode()
	case err != nil:
		return res, fmt.Errorf("%s did not end by itself: %w%s", c.tool, err, quoteOutput(res.output))
	}
	return res, nil
}

// clipped keeps the beginning and the end of what is written to it.
type clipped struct {
	head, tail []byte
	lost       bool
}

const clip = 2 << 10 // bytes kept of either end

func (c *clipped) Write(p []byte) (int, error) {
	n := len(p)
	if room := clip - len(c.head); room > 0 {
		take := min(room, len(p))
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

// quoteOutput puts a tool's words on one line behind an error; the list of
// options that mkfs.xfs appends to every complaint is no help there.
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

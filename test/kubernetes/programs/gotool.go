package programs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// buildFlags returns the flags of every build: reproducible, and go.mod is not
// changed.
func buildFlags() []string { return []string{"-trimpath", "-buildvcs=false", "-mod=readonly"} }

// goModule runs the go command for a module.
func (b *builder) goModule(ctx context.Context, m module, scratch, command string, args ...string) (string, error) {
	modfile := filepath.Join(b.root, m.modfile)
	if filepath.Base(modfile) == "go.mod" {
		return b.goTool(ctx, filepath.Dir(modfile), scratch, append([]string{command}, args...)...)
	}
	// A go.mod next to others is for the tree's root.
	return b.goTool(ctx, b.root, scratch, append([]string{command, "-modfile=" + modfile}, args...)...)
}

// goTool runs the go command and returns its output. Its error has the last
// lines of the output. Temporary files are in scratch, to be removed with it
// after a kill; the command ends with this process, but its children can write
// for some more seconds.
func (b *builder) goTool(ctx context.Context, dir, scratch string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off")
	if scratch != "" {
		cmd.Env = append(cmd.Env, "GOTMPDIR="+scratch)
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	runtime.LockOSThread() // Pdeathsig refers to the starting thread
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), dir, err, lastLines(stdout.String()+stderr.String()))
	}
	return stdout.String(), nil
}

// lastLines returns the last lines of the go command's output, without
// downloads.
func lastLines(text string) string {
	const maxLines = 20
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(text), "\n"), func(line string) bool {
		return strings.HasPrefix(line, "go: downloading ")
	})
	return strings.Join(lines[max(0, len(lines)-maxLines):], "\n")
}

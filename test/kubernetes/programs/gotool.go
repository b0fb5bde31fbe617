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

// buildFlags are those of every build: nothing of this machine gets into a
// program, and no build changes a go.mod.
func buildFlags() []string { return []string{"-trimpath", "-buildvcs=false", "-mod=readonly"} }

// goModule runs the go command for a module.
func (b *builder) goModule(ctx context.Context, m module, scratch, command string, args ...string) (string, error) {
	modfile := filepath.Join(b.root, m.modfile)
	if filepath.Base(modfile) == "go.mod" {
		return b.goTool(ctx, filepath.Dir(modfile), scratch, append([]string{command}, args...)...)
	}
	// A go.mod beside others serves the tree's root.
	return b.goTool(ctx, b.root, scratch, append([]string{command, "-modfile=" + modfile}, args...)...)
}

// goTool runs the go command and returns what it prints. Its error ends with
// the last lines of its complaints. Its own temporary files lie in scratch, so
// that they go with it when the command is killed; it ends with this process,
// and only what it has started may write on for some seconds.
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
	runtime.LockOSThread() // the kernel's "parent" is the thread that starts it
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), dir, err, complaints(stdout.String()+stderr.String()))
	}
	return stdout.String(), nil
}

// complaints are the last lines of what the go command prints, without what it
// downloads.
func complaints(text string) string {
	const most = 20
	lines := slices.DeleteFunc(strings.Split(strings.TrimSpace(text), "\n"), func(line string) bool {
		return strings.HasPrefix(line, "go: downloading ")
	})
	return strings.Join(lines[max(0, len(lines)-most):], "\n")
}

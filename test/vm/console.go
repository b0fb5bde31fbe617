package vm

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tailLines is how many console lines an error shows: enough for a panic with
// its trace.
const tailLines = 60

// Console returns the serial console so far: messages of the kernel and of the
// agent.
func (g *Guest) Console() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.savedConsole != nil {
		return *g.savedConsole
	}
	data, err := os.ReadFile(g.files.console)
	if err != nil {
		return fmt.Sprintf("no console: %v", err)
	}
	return strings.ReplaceAll(string(data), "\r", "")
}

// saveConsole saves the console before the scratch directory is removed.
func (g *Guest) saveConsole() {
	text := g.Console()
	g.mu.Lock()
	g.savedConsole = &text
	g.mu.Unlock()
}

// diagnostics returns QEMU's messages and the end of the console, to be appended
// to errors.
func (g *Guest) diagnostics() string {
	var b strings.Builder
	if said := strings.TrimSpace(g.stderr.String()); said != "" {
		fmt.Fprintf(&b, "\nQEMU output: %s", said)
	}
	if g.process == nil {
		return b.String()
	}
	lines := strings.Split(strings.TrimSpace(g.Console()), "\n")
	fmt.Fprintf(&b, "\nthe console of guest %s ends with:\n\t%s", g.spec.Name, strings.Join(lines[max(0, len(lines)-tailLines):], "\n\t"))
	return b.String()
}

// reportFailure logs the end of the console and stores all of it in the test's
// artifact directory.
func (g *Guest) reportFailure(t testing.TB, dir string) {
	t.Log(strings.TrimSpace(g.diagnostics()))
	path := filepath.Join(dir, g.spec.Name+".console")
	if err := os.WriteFile(path, []byte(g.Console()), 0o644); err != nil {
		t.Log(err)
	}
}

// keepVariable is the environment variable that keeps the guest of a failed
// test for debugging.
const keepVariable = "CLEAT_VM_KEEP"

// keepForDebugging blocks a failed test, if keepVariable is set, until the guest
// powers off or exceeds its lifetime. Interrupting the test ends the guest too.
func (g *Guest) keepForDebugging(out io.Writer) {
	if os.Getenv(keepVariable) == "" {
		return
	}
	if err := g.Shell(context.Background()); err != nil {
		fmt.Fprintln(out, "no guest to keep:", err)
		return
	}
	fmt.Fprintf(out, "guest %s is kept; a shell is on its console (poweroff -f ends it): socat -,raw,echo=0,escape=0x1d UNIX-CONNECT:%s\n", g.spec.Name, g.files.serial)
	<-g.gone
}

// Shell starts a shell on the guest's serial console.
func (g *Guest) Shell(ctx context.Context) error {
	_, err := g.Start(ctx, Command{Argv: []string{"sh", "-c", "exec setsid cttyhack sh -i </dev/ttyS0 >/dev/ttyS0 2>&1"}, Dir: "/root"})
	return err
}

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

// tailLines is how much of a console an error shows: a panic with its trace.
const tailLines = 60

// Console is what the guest has written to its serial console so far: the
// kernel's messages and the agent's.
func (g *Guest) Console() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lastWords != nil {
		return *g.lastWords
	}
	data, err := os.ReadFile(g.files.console)
	if err != nil {
		return fmt.Sprintf("no console: %v", err)
	}
	return strings.ReplaceAll(string(data), "\r", "")
}

// keepLastWords holds the console for after the scratch directory has gone.
func (g *Guest) keepLastWords() {
	text := g.Console()
	g.mu.Lock()
	g.lastWords = &text
	g.mu.Unlock()
}

// evidence is what an error about the guest ends with.
func (g *Guest) evidence() string {
	var b strings.Builder
	if said := strings.TrimSpace(g.stderr.String()); said != "" {
		fmt.Fprintf(&b, "\nQEMU says: %s", said)
	}
	if g.process == nil {
		return b.String()
	}
	lines := strings.Split(strings.TrimSpace(g.Console()), "\n")
	fmt.Fprintf(&b, "\nthe console of guest %s ends with:\n\t%s", g.spec.Name, strings.Join(lines[max(0, len(lines)-tailLines):], "\n\t"))
	return b.String()
}

// reportFailure shows the console's end and keeps the whole where go test
// -artifacts keeps such.
func (g *Guest) reportFailure(t testing.TB, dir string) {
	t.Log(strings.TrimSpace(g.evidence()))
	path := filepath.Join(dir, g.spec.Name+".console")
	if err := os.WriteFile(path, []byte(g.Console()), 0o644); err != nil {
		t.Log(err)
	}
}

// keepVariable asks to keep a guest whose test failed, for a person to look at.
const keepVariable = "CLEAT_VM_KEEP"

// keepForPerson holds up the end of a failed test, if a person wants that,
// until the guest goes down or its lifetime is over. Interrupting the test ends
// it too.
func (g *Guest) keepForPerson(out io.Writer) {
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

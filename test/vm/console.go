package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// tailLines is how much of a console an error shows.
const tailLines = 30

// Console is what the guest has written to its serial console so far: the
// kernel's messages and the agent's.
func (g *Guest) Console() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.lastWords != "" {
		return g.lastWords
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
	g.lastWords = text
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

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// What the kit exports changes with a reason only, and names nothing internal.
func TestListing(t *testing.T) {
	lines, err := list(whole())
	testkit.Must(t, err)
	want := string(testkit.Value(os.ReadFile(filepath.Join(testkit.Root(t), "driver/api.txt")))(t))
	if got := strings.Join(lines, "\n") + "\n"; got != want {
		t.Errorf("driver/api.txt does not list what is exported: make generate, and say in CHANGELOG.md what engines have to change; differences:\n%s", difference(want, got))
	}
}

func difference(want, got string) string {
	var lines []string
	for sign, texts := range map[string][2]string{"- ": {want, got}, "+ ": {got, want}} {
		for line := range strings.Lines(texts[0]) {
			if !strings.Contains(texts[1], line) {
				lines = append(lines, sign+line)
			}
		}
	}
	return strings.Join(lines, "")
}

// The rule is broken by packages that are not for other modules.
func TestInternalTypesAreFound(t *testing.T) {
	for path, want := range map[string]string{
		"csi":            "names the type internal/op.Operations, which is not public",
		"fence/endpoint": "names the type internal/server.Server, which is not public",
	} {
		_, err := list([]string{path})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}

package local

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// crashPoints are the instants of this package at which a crash test kills the
// process, by call. Between any two lies something durable, or something that
// the kernel keeps.
var crashPoints = []string{
	// Create of an empty volume, or of one that shares blocks; cloned and
	// formatted exclude each other.
	"create.begun", "create.cloned", "create.formatted", "create.filled", "create.recorded",
	"place.renamed", // of volumes and snapshots
	// A cut of what is mounted.
	"cut.intent", "cut.frozen", "cut.cloned", "cut.thawed",
	// CreateSnapshot and CreateGroup where blocks are shared.
	"snapshot.begun", "snapshot.filled", "snapshot.recorded",
	// Copies: Create from a source, CreateSnapshot and CreateGroup elsewhere.
	"copy.intent", "copy.pinned", "copy.recorded", "copy.synced", "copy.filled", "copy.finishing", "copy.unpinned",
	"delete.marked", "delete.removed", "delete.recorded",
	"delete-snapshot.marked", "delete-group.marked", "delete-snapshot.removed", "delete-snapshot.recorded", // the last two also DeleteGroup
	"expand.allocated", "expand.grown", "expand.recorded",
	"modify.intent", "modify.thickened", "modify.noted", "modify.applied",
	// Open.
	"image.allocated", "image.filled", "image.renamed", "image.attached", "image.mounted", "image.grown",
	"recover.thawed", "recover.incoming", "recover.volume", "recover.group", "recover.snapshot",
	"remove.mounted", "remove.file", "remove.directories", "remove.records", "remove.forgotten", "remove.identity", "remove.unmounted", "remove.image",
}

// TestCrashPoints holds the list to what the code has.
func TestCrashPoints(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	hit := regexp.MustCompile(`crashpoint\.Hit\("([^"]+)"\)`)
	found := map[string]bool{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range hit.FindAllStringSubmatch(string(text), -1) {
			found[m[1]] = true
		}
	}
	if diff := cmp.Diff(slices.Sorted(slices.Values(crashPoints)), slices.Sorted(maps.Keys(found))); diff != "" {
		t.Errorf("the list of crash points and the code differ:\n%s", diff)
	}
}

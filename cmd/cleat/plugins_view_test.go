package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/kubelet/remote"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

// samplePlugins returns one plugin of each kind that a table shows differently.
func samplePlugins() []watch.Status {
	at := time.Date(2026, 11, 20, 15, 4, 5, 0, time.Local)
	plugin := func(kind, name, socket string, phase watch.Phase) watch.Status {
		return watch.Status{
			Plugin: watch.Plugin{Type: kind, Name: name, Socket: "/run/cleat/plugins/" + socket, Endpoint: "/run/" + name + ".sock", Versions: []string{"1.0.0"}},
			Phase:  phase, Found: at, Since: at, Attempts: 1,
		}
	}
	dead := plugin("CSIPlugin", "csi.dead.dev", "dead.sock", watch.Registered)
	dead.Dead = true
	dead.Reason = "the socket is stale"
	failed := watch.Status{
		Plugin: watch.Plugin{Socket: "/run/cleat/plugins/sub/stale.sock"}, Phase: watch.Failed, Step: watch.Asking, Since: at, Attempts: 3,
		Error: "connection refused", Reason: "no process listens:\n\x1b[31ma left-over file", NextTry: at.Add(4 * time.Second),
	}
	return []watch.Status{
		plugin("CSIPlugin", "csi.cleat.dev", "csi.cleat.dev-reg.sock", watch.Registered), dead,
		plugin("DRAPlugin", "gpu.example.com", "gpu.sock", watch.Registering), failed,
	}
}

// golden compares with a file in testdata; UPDATE_GOLDEN=1 rewrites it.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		testkit.Must(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want := testkit.Value(os.ReadFile(path))(t)
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func TestLiveTable(t *testing.T) {
	var text strings.Builder
	for _, rows := range []int{24, 7, 6, 4, 1} {
		lines := liveLines("/run/cleat/plugins", samplePlugins(), rows)
		if len(lines) > max(rows, 3) {
			t.Errorf("%d lines on %d rows", len(lines), rows)
		}
		fmt.Fprintf(&text, "-- %d rows\n%s\n", rows, strings.Join(lines, "\n"))
	}
	fmt.Fprintf(&text, "-- nothing\n%s\n", strings.Join(liveLines("/run/cleat/plugins", nil, 24), "\n"))
	golden(t, "live_table.txt", text.String())
}

// Every plugin is shown or counted, for any number of plugins and rows.
func TestLiveTableCountsAll(t *testing.T) {
	for n := range 12 {
		for rows := 3; rows < 30; rows++ {
			var all []watch.Status
			for i := range n {
				p := samplePlugins()[i%4]
				p.Socket += fmt.Sprint(i)
				all = append(all, p)
			}
			text, more := strings.Join(liveLines("/run/cleat/plugins", all, rows), "\n"), 0
			if _, last, found := strings.Cut(text, "… and "); found {
				testkit.Value(fmt.Sscanf(last, "%d more", &more))(t)
			}
			if shown := strings.Count(text, ".sock"); shown+more != n {
				t.Errorf("%d plugins on %d rows: %d shown and %d more", n, rows, shown, more)
			}
		}
	}
}

func sampleChanges() []remote.Change {
	all := []remote.Change{}
	for _, p := range samplePlugins() {
		all = append(all, remote.Change{Kind: remote.Present, Time: p.Since, Plugin: &p})
	}
	gone := samplePlugins()[0]
	gone.Phase = watch.Gone
	return append(all, remote.Change{Kind: remote.Synced, Time: gone.Since}, remote.Change{Kind: remote.Gone, Time: gone.Since, Plugin: &gone})
}

func yielding(all []remote.Change, err error) changes {
	return func(yield func(remote.Change, error) bool) {
		for _, c := range all {
			if !yield(c, nil) {
				return
			}
		}
		if err != nil {
			yield(remote.Change{}, err)
		}
	}
}

func TestLinesAndDocuments(t *testing.T) {
	var lines, documents bytes.Buffer
	if err := writeLines(&lines, yielding(sampleChanges(), nil)); err != nil {
		t.Error(err)
	}
	golden(t, "plugin_lines.txt", lines.String())
	if err := writeDocuments(&documents, yielding(sampleChanges(), nil)); err != nil {
		t.Error(err)
	}
	if n := strings.Count(documents.String(), "\n"); n != len(sampleChanges()) || strings.ContainsRune(documents.String(), 0x1b) {
		t.Errorf("%d documents: %s", n, documents.String())
	}
	lost := errors.New("lost")
	for _, write := range []func(changes) error{
		func(all changes) error { return writeLines(&lines, all) },
		func(all changes) error { return writeDocuments(&documents, all) },
	} {
		if err := write(yielding(sampleChanges(), lost)); !errors.Is(err, lost) {
			t.Errorf("%v", err)
		}
	}
}

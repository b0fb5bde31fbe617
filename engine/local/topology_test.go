package local

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// PersistentVolumes require their segments, and would never be deleted without
// them.
func TestTopologyOfVolumes(t *testing.T) {
	tests := map[string]struct {
		before, after map[string]string
		volumes       bool
		refused       string // part of the message
		logged        []string
	}{
		"the first":              {after: map[string]string{"zone": "a"}, volumes: true, logged: []string{`msg="topology of this node"`, `segments=map[zone:a]`}},
		"the same":               {before: map[string]string{"zone": "a"}, after: map[string]string{"zone": "a"}, volumes: true, logged: []string{`msg="topology of this node"`}},
		"one more":               {before: map[string]string{"zone": "a"}, after: map[string]string{"zone": "a", "rack": "r"}, volumes: true, logged: []string{`msg="topology changed"`, `before=map[zone:a]`}},
		"one less":               {before: map[string]string{"zone": "a", "rack": "r"}, after: map[string]string{"zone": "a"}, volumes: true, refused: `topology segment "rack=r"`},
		"another value":          {before: map[string]string{"zone": "a"}, after: map[string]string{"zone": "b"}, volumes: true, refused: `topology segment "zone=a"`},
		"one less of an empty":   {before: map[string]string{"zone": "a"}, after: map[string]string{}, logged: []string{`msg="topology changed"`, `before=map[zone:a]`}},
		"all others of an empty": {before: map[string]string{"zone": "a"}, after: map[string]string{"rack": "b"}, logged: []string{`msg="topology changed"`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var log bytes.Buffer
			c := config(t.TempDir())
			c.Logger = slog.New(slog.NewTextHandler(&log, nil))
			e := open(t, c)
			if test.volumes {
				create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: 1 << 20}})
			}
			if test.before != nil {
				testkit.Must(t, e.ServeTopology(t.Context(), dir, test.before))
			}
			log.Reset()
			err := e.ServeTopology(t.Context(), dir, test.after)
			if test.refused != "" {
				testkit.WantError(t, "serve", err, errs.Precondition, test.refused)
				// A refused topology is not recorded.
				testkit.WantError(t, "serve again", e.ServeTopology(t.Context(), dir, test.after), errs.Precondition)
				return
			}
			testkit.Must(t, err)
			for _, line := range test.logged {
				if !strings.Contains(log.String(), line) {
					t.Errorf("the log has no %q:\n%s", line, &log)
				}
			}
			log.Reset()
			if err := e.ServeTopology(t.Context(), dir, test.after); err != nil || strings.Contains(log.String(), "changed") {
				t.Errorf("the next start: %v\n%s", err, &log)
			}
		})
	}
}

func TestTopologyThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, topologyFile), []byte("{"), 0o600))
	e := open(t, config(t.TempDir()))
	err := e.ServeTopology(t.Context(), dir, map[string]string{"zone": "a"})
	testkit.WantError(t, "serve", err, nil, filepath.Join(dir, topologyFile))
}

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/test/testkit"
)

// A topology that was served from a pool with volumes is not served without one of its
// segments: their PersistentVolumes name it, and nobody would delete them.
func TestTopologyOfVolumes(t *testing.T) {
	tests := map[string]struct {
		before, after map[string]string
		volumes       bool
		refused       string // part of the message
		logged        []string
	}{
		"the first":              {after: map[string]string{"zone": "a"}, volumes: true, logged: []string{`msg="topology of this node" segments=map[zone:a]`}},
		"the same":               {before: map[string]string{"zone": "a"}, after: map[string]string{"zone": "a"}, volumes: true, logged: []string{`msg="topology of this node"`}},
		"one more":               {before: map[string]string{"zone": "a"}, after: map[string]string{"zone": "a", "rack": "r"}, volumes: true, logged: []string{`msg="topology changed" before=map[zone:a]`}},
		"one less":               {before: map[string]string{"zone": "a", "rack": "r"}, after: map[string]string{"zone": "a"}, volumes: true, refused: `topology segment "rack=r"`},
		"another value":          {before: map[string]string{"zone": "a"}, after: map[string]string{"zone": "b"}, volumes: true, refused: `topology segment "zone=a"`},
		"one less of an empty":   {before: map[string]string{"zone": "a"}, after: map[string]string{}, logged: []string{`msg="topology changed" before=map[zone:a]`}},
		"all others of an empty": {before: map[string]string{"zone": "a"}, after: map[string]string{"rack": "b"}, logged: []string{`msg="topology changed"`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			var log bytes.Buffer
			logger, err := server.NewLogger(&log, "text", "info")
			testkit.Must(t, err)
			holds := func(context.Context) (bool, error) { return test.volumes, nil }
			if test.before != nil {
				testkit.Must(t, checkTopology(t.Context(), dir, test.before, holds, logger))
			}
			log.Reset()
			err = checkTopology(t.Context(), dir, test.after, holds, logger)
			if test.refused != "" {
				if err == nil || !strings.Contains(err.Error(), test.refused) {
					t.Errorf("%v, want a refusal of %s", err, test.refused)
				}
				// What is refused is not remembered: the next start refuses it too.
				if err := checkTopology(t.Context(), dir, test.after, holds, logger); err == nil {
					t.Error("the second time it is served")
				}
				return
			}
			testkit.Must(t, err)
			for _, line := range test.logged {
				if !strings.Contains(log.String(), line) {
					t.Errorf("the log has no %q:\n%s", line, &log)
				}
			}
			log.Reset()
			if err := checkTopology(t.Context(), dir, test.after, holds, logger); err != nil || strings.Contains(log.String(), "changed") {
				t.Errorf("the next start: %v\n%s", err, &log)
			}
		})
	}
}

func TestTopologyThatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, topologyFile), []byte("{"), 0o600))
	logger, err := server.NewLogger(new(bytes.Buffer), "text", "info")
	testkit.Must(t, err)
	err = checkTopology(t.Context(), dir, map[string]string{"zone": "a"}, func(context.Context) (bool, error) { return false, errors.New("not asked") }, logger)
	if err == nil || !strings.Contains(err.Error(), filepath.Join(dir, topologyFile)) {
		t.Errorf("%v", err)
	}
}

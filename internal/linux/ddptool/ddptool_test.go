package ddptool

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func install(t *testing.T, text string) {
	t.Helper()
	dir := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"+text), 0o755))
	t.Setenv("PATH", dir+":/bin:/usr/bin")
}

const address = "0000:02:00.0"

func TestProfile(t *testing.T) {
	for name, c := range map[string]struct{ script, want, says string }{
		"a profile": {`[ "$*" = "-l -a -j -s 0000:02:00.0" ] && echo '{"DDPInventory":{"device":"1572","DDPpackage":{"track_id":"80000008","name":"GTP"}}}'`, "GTP", ""},
		"none":      {"exit 8", "", ""},
		"no name":   {`echo '{"DDPInventory":{"device":"1572"}}'`, "", ""},
		"it fails":  {"exit 4", "", "ddptool -s 0000:02:00.0: exit status 4"},
		"not JSON":  {"echo usage", "", "not JSON of the expected form"},
		"no end":    {"yes '{' | head -c 1000000", "", "not JSON of the expected form"},
	} {
		t.Run(name, func(t *testing.T) {
			install(t, c.script)
			got, err := (&Tool{Within: time.Minute}).Profile(t.Context(), address)
			if got != c.want || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q, %v; want %q, %q", got, err, c.want, c.says)
			}
		})
	}
}

func TestNotInstalled(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := new(Tool).Profile(t.Context(), address); !errors.Is(err, ErrNotInstalled) || Installed() {
		t.Error(err)
	}
}

// Scans do not query the firmware each time.
func TestAnswersAreCached(t *testing.T) {
	install(t, `echo run >> "$(dirname "$0")/runs"; exit 8`)
	tool := &Tool{Within: time.Minute}
	for range 3 {
		testkit.Value(tool.Profile(t.Context(), address))(t)
	}
	runs, err := os.ReadFile(filepath.Join(strings.Split(os.Getenv("PATH"), ":")[0], "runs"))
	if err != nil || string(runs) != "run\n" {
		t.Errorf("%q, %v; want one run", runs, err)
	}
}

func TestProgramThatHangs(t *testing.T) {
	install(t, "exec sleep 600")
	_, err := (&Tool{Within: 50 * time.Millisecond}).Profile(t.Context(), address)
	if err == nil || !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "killed") {
		t.Errorf("%v; want a timeout", err)
	}
}

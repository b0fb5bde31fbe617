package demo

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func logFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), logName)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func failed(t *testing.T, err error, log string) Report {
	t.Helper()
	r := Report{Held: true, Dir: "/d", Steps: []Result{{State: Held}, {State: Failed}, {State: NotRun}}}
	r.fail(step{name: "restore", title: "restore it"}, err, log)
	return r
}

func TestReports(t *testing.T) {
	log := logFile(t, "level=INFO msg=one\nlevel=ERROR msg=two\n")
	whole := Report{Held: true, Steps: []Result{{State: Held}}, Proved: []string{"water is wet"}, Seconds: 4.07}
	kept := whole
	stays := Kept{
		Driver: "csi.cleat.dev", Host: "unix:///d/host/host.sock", Endpoint: "unix:///d/csi/csi.sock", StateDir: "/d/client",
		PID: 7, HostPID: 8, Flags: []string{"csi", "--pool", "/d/pool"}, HostFlags: []string{"host", "-o", "none"}, Command: "bin/cleat",
	}
	kept.Dir, kept.Kept = "/d", &stays
	dead, headless := kept, kept
	ended, lonely := stays, stays
	ended.PID, lonely.PID, lonely.HostPID = 0, 0, 0
	dead.Kept, headless.Kept = &ended, &lonely
	uncleaned := whole
	uncleaned.Held, uncleaned.Left = false, []string{"a mount at /d/pool"}
	for what, c := range map[string]struct {
		report Report
		holds  bool
		words  []string
		not    []string
	}{
		"held": {whole, true, []string{"All 1 steps held, in 4.07 s", "- water is wet"}, []string{"log", "cleaned"}},
		"kept": {kept, true, []string{"(process 7)", "(process 8)", "bin/cleat volume list $at", `host="--host unix:///d/host/host.sock"`,
			`at="--driver csi.cleat.dev $host --state-dir /d/client"`, "bin/cleat demo --remove /d\n"}, []string{" &\n"}},
		"kept, dead":  {dead, true, []string{"has ended", "bin/cleat csi --pool /d/pool &\n", "demo --remove /d\n"}, []string{"cleat host"}},
		"both dead":   {headless, true, []string{"bin/cleat host -o none &\n", "bin/cleat csi --pool /d/pool &\n"}, nil},
		"failed":      {failed(t, errors.New("it differs"), log), false, []string{"1 of 3 steps held", `"restore it"`, "it differs", log, "msg=two", "All but this log"}, []string{"All 1"}},
		"no log":      {failed(t, errors.New("it differs"), "/nowhere"), false, []string{"it differs", "no file is left"}, []string{"/nowhere"}},
		"interrupted": {failed(t, errInterrupted, log), false, []string{`Interrupted at step "restore it"`, "no file is left"}, []string{log}},
		"uncleaned":   {uncleaned, false, []string{"Not all could be cleaned up", "a mount at /d/pool"}, nil},
	} {
		var b strings.Builder
		if err := c.report.Summary(&b); err != nil {
			t.Fatal(err)
		}
		for _, w := range c.words {
			if !strings.Contains(b.String(), w) {
				t.Errorf("%s: the summary lacks %q:\n%s", what, w, b.String())
			}
		}
		for _, w := range c.not {
			if strings.Contains(b.String(), w) {
				t.Errorf("%s: the summary holds %q:\n%s", what, w, b.String())
			}
		}
		if err := c.report.err(); (err == nil) != c.holds || err != nil && !errors.Is(err, ErrFailed) {
			t.Errorf("%s: error %v, holds is %v", what, err, c.holds)
		}
	}
}

func TestLastLines(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "a\n": "a", "a\nb\nc\n": "b|c", "a\nb\nhalf": "b|half",
		strings.Repeat("x", 100<<10) + "\ny\nz\n": "y|z",
	} {
		if got := strings.Join(lastLines(logFile(t, text), 2), "|"); got != want {
			t.Errorf("of %d bytes: %q, want %q", len(text), got, want)
		}
	}
}

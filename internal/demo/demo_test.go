package demo

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/volume"
)

func TestTreeVerifies(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	files, err := writeTree(t.Context(), dir, 3, 5, mib)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != 5 || files.bytes() < mib || files.bytes() > mib+100 {
		t.Errorf("%d files with %d bytes, want 5 with about %d", len(files), files.bytes(), mib)
	}
	if err := files.verify(t.Context(), dir); err != nil {
		t.Fatalf("nothing was changed: %v", err)
	}
	names, err := filesIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, names[2])
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	spoiled := slices.Clone(whole)
	spoiled[len(spoiled)/2] ^= 1
	for what, spoil := range map[string]func() error{
		"one bit":      func() error { return os.WriteFile(path, spoiled, 0o644) },
		"one byte":     func() error { return os.Truncate(path, int64(len(whole)-1)) },
		"missing file": func() error { return os.Remove(path) },
		"extra file":   func() error { return os.WriteFile(filepath.Join(dir, "extra"), nil, 0o644) },
	} {
		if err := spoil(); err != nil {
			t.Fatal(err)
		}
		if err := files.verify(t.Context(), dir); err == nil {
			t.Errorf("%s: verify saw nothing", what)
		}
		if err := errors.Join(os.RemoveAll(filepath.Join(dir, "extra")), os.WriteFile(path, whole, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeAll(dir); err != nil {
		t.Fatal(err)
	}
	if names, err := filesIn(dir); err != nil || len(names) > 0 {
		t.Errorf("after removeAll: %v, %v", names, err)
	}
}

func TestSeedsDiffer(t *testing.T) {
	var a, b, again [64]byte
	for seed, out := range map[byte]*[64]byte{1: &a, 2: &b} {
		if _, err := random(seed).Read(out[:]); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := random(1).Read(again[:]); err != nil {
		t.Fatal(err)
	}
	if a == b || a != again {
		t.Error("a seed must give the same bytes again, another seed others")
	}
}

func TestCheckDelta(t *testing.T) {
	written := []volume.Range{{Offset: 4096, Length: 8192}, {Offset: mib, Length: 4096}}
	for what, c := range map[string]struct {
		changed []volume.Range
		want    string // of the error, empty for none
	}{
		"exact":             {written, ""},
		"wider":             {[]volume.Range{{Offset: 0, Length: 65536}, {Offset: mib, Length: 65536}}, ""},
		"in pieces":         {[]volume.Range{{Offset: 4096, Length: 4096}, {Offset: 8192, Length: 4096}, {Offset: mib, Length: 4096}}, ""},
		"nothing":           {nil, "was written"},
		"a gap":             {[]volume.Range{{Offset: 4096, Length: 4096}, {Offset: 12288, Length: 4096}, {Offset: mib, Length: 4096}}, "[4096,12288) was written"},
		"the end is cut":    {[]volume.Range{{Offset: 4096, Length: 8192}, {Offset: mib, Length: 4095}}, "[1048576,1052672) was written"},
		"the whole of it":   {[]volume.Range{{Offset: 0, Length: rawSize}}, "more than"},
		"one far too wide ": {[]volume.Range{{Offset: 0, Length: mib}, {Offset: mib, Length: 4096}}, "more than"},
	} {
		err := checkDelta(written, c.changed)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", what, err, c.want)
		}
	}
	if last := rawWrites()[len(rawWrites())-1]; last.End() != rawSize {
		t.Errorf("the last write ends at %d, want the last byte of the device", last.End())
	}
	if !slices.IsSortedFunc(rawWrites(), func(a, b volume.Range) int { return int(a.Offset - b.Offset) }) {
		t.Error("checkDelta wants sorted writes")
	}
}

func TestShort(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0.0 ms", 1240 * time.Microsecond: "1.2 ms", 45 * time.Millisecond: "45 ms", 1634 * time.Millisecond: "1.63 s",
		12345 * time.Millisecond: "12.3 s", 3 * time.Minute: "180 s",
	} {
		if got := short(d); got != want {
			t.Errorf("%s: %q, want %q", d, got, want)
		}
	}
}

func TestStepsAreWellFormed(t *testing.T) {
	seen, ending := map[string]bool{}, false
	for _, s := range steps(DPU{Double: "double"}, SRIOV{Double: "double"}) {
		if s.name == "" || strings.ContainsAny(s.name, " _") || s.title == "" || s.run == nil || seen[s.name] {
			t.Errorf("step %+v: wants a name of its own, a title and something to do", s)
		}
		if ending && !s.ends {
			t.Errorf("step %s stands behind those that take things away", s.name)
		}
		seen[s.name], ending = true, s.ends
	}
}

func TestSettingsOfTheCallerAreLeftOut(t *testing.T) {
	got := withoutSettings([]string{"PATH=/bin", "CLEAT_POOL=/precious", "CSI_ENDPOINT=unix:///x", "CLEATED=1"})
	if diff := cmp.Diff([]string{"PATH=/bin", "CLEATED=1"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestProgressLines(t *testing.T) {
	held := Result{Title: "write files", State: Held, Seconds: 0.045, Proved: "24 files"}
	for terminal, want := range map[bool]string{
		false: "  4  write files    45 ms  24 files\n",
		true:  "  4  write files ...\r\x1b[K  4  write files    45 ms  24 files\n",
	} {
		var b bytes.Buffer
		p := progress{w: &b, terminal: terminal, width: len("write files")}
		p.start(4, held.Title)
		p.end(4, held)
		if b.String() != want {
			t.Errorf("terminal %v: %q, want %q", terminal, b.String(), want)
		}
	}
	var b bytes.Buffer
	progress{w: &b}.end(5, Result{Title: "stats", State: Failed, Error: "long"})
	if !strings.Contains(b.String(), "FAILED") {
		t.Errorf("a failed step shows as %q", b.String())
	}
}

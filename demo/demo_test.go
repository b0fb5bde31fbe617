package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// test/demo injects faults into the running demo; these tests cover its checks.

func TestTreeVerifyDetectsChanges(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "tree")
	files, err := writeTree(dir, 3, 5, mib)
	if err == nil {
		err = files.verify(dir)
	}
	if err != nil || len(files) != 5 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	path := must(filesIn(dir))[2]
	whole := must(os.ReadFile(path))
	corrupted := slices.Clone(whole)
	corrupted[len(corrupted)/2] ^= 1
	extra := filepath.Join(dir, "extra")
	for name, corrupt := range map[string]func() error{
		"one bit":      func() error { return os.WriteFile(path, corrupted, 0o644) },
		"one byte":     func() error { return os.Truncate(path, int64(len(whole)-1)) },
		"missing file": func() error { return os.Remove(path) },
		"extra file":   func() error { return os.WriteFile(extra, nil, 0o644) },
	} {
		check(corrupt())
		if files.verify(dir) == nil {
			t.Errorf("%s: verify found nothing", name)
		}
		check(errors.Join(os.RemoveAll(extra), os.WriteFile(path, whole, 0o644)))
	}
}

func TestCheckCompleteDetectsLostAndDuplicateRecords(t *testing.T) {
	for want, records := range map[string][]uint64{
		"":                        {1, 2, 2, 3}, // the acknowledgement of 2 was lost
		"arrived as number 2":     {1, 3},
		"arrived as number 3":     {1, 2, 1, 3},
		"3 records were acknowle": {1, 2},
	} {
		err := checkComplete(records, 3)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v, want %q", records, err, want)
		}
	}
}

func TestCheckChangesDetectsUnexpectedChanges(t *testing.T) {
	changes := []nodeChange{{NumVFs: 0}, {NumVFs: 8}, {NumVFs: 0}, {NumVFs: 6}}
	six := make([]string, 6)
	for name, c := range map[string]struct {
		answer nodeAnswer
		since  int
		want   []int
		err    string
	}{
		"all":                       {nodeAnswer{Functions: six, Changes: changes}, 0, []int{0, 8, 0, 6}, ""},
		"none since":                {nodeAnswer{Functions: six, Changes: changes}, 4, nil, ""},
		"one too many":              {nodeAnswer{Functions: six, Changes: changes}, 1, []int{0, 6}, "[8 0 6]"},
		"one too few":               {nodeAnswer{Functions: six, Changes: changes}, 2, []int{0, 6, 0}, "[0 6]"},
		"functions remain":          {nodeAnswer{Functions: six[:4], Changes: changes}, 2, []int{0, 6}, "machine has 4"},
		"offered during the change": {nodeAnswer{Changes: []nodeChange{{NumVFs: 0, Offered: 1}}}, 0, []int{0}, "offered 1 functions"},
	} {
		_, err := recovered(t.Context(), func(context.Context) string { checkChanges(c.answer, c.since, c.want...); return "" })
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", name, err, c.err)
		}
	}
}

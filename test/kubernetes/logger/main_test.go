package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A log that is damaged anywhere is not continued; an incomplete last line is.
func TestRead(t *testing.T) {
	l := &log{}
	var lines []string
	for _, text := range []string{"1 a 10 ", "2 a 20 ", "3 b 30 "} {
		l.sum = l.checksum([]byte(text))
		lines = append(lines, text+fmt.Sprintf("%08x", l.sum)+"\n")
	}
	whole := strings.Join(lines, "")
	for name, c := range map[string]struct {
		text string
		want uint64 // 0: an error
	}{
		"whole":      {whole, 3},
		"incomplete": {whole + "4 b 4", 3},
		"changed":    {strings.Replace(whole, "20", "21", 1), 0},
		"gap":        {lines[0] + lines[2], 0},
		"twice":      {lines[0] + lines[1] + lines[1], 0},
		"other line": {whole + "\n", 0},
	} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		got := &log{file: f}
		if err := got.read(); (err == nil) != (c.want != 0) || err == nil && (got.number != c.want || got.end != int64(len(whole))) {
			t.Errorf("%s: %d records to %d, %v", name, got.number, got.end, err)
		}
	}
}

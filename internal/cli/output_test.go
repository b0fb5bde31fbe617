package cli

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/test/testkit"
)

type listed struct {
	ID   string `json:"id"`
	Size int64  `json:"size"`
}

func TestPrint(t *testing.T) {
	table := Table{
		Header: []string{"ID", "SIZE", "NOTE"},
		Rows:   [][]string{{"vol-1", "1 GiB", "für Ü"}, {"volume-two", "", "x\x1b[31m\tred\n"}, {"v3", "2 B", `say "hi"`}},
	}
	document := []listed{{"vol-1", 1 << 62}}
	for format, want := range map[Format]string{
		FormatTable: "ID           SIZE    NOTE\nvol-1        1 GiB   für Ü\nvolume-two   -       x\\x1b[31m\\tred\\n\nv3           2 B     say \"hi\"\n",
		"":          "ID           SIZE    NOTE\nvol-1        1 GiB   für Ü\nvolume-two   -       x\\x1b[31m\\tred\\n\nv3           2 B     say \"hi\"\n",
		FormatJSON:  "[\n  {\n    \"id\": \"vol-1\",\n    \"size\": 4611686018427387904\n  }\n]\n",
		FormatYAML:  "- id: vol-1\n  size: 4611686018427387904\n",
	} {
		var out bytes.Buffer
		if err := Print(&out, format, table, document); err != nil {
			t.Errorf("%s: %v", format, err)
		}
		if diff := cmp.Diff(want, out.String()); diff != "" {
			t.Errorf("%s: %s", format, diff)
		}
	}
	var out bytes.Buffer
	testkit.WantError(t, "xml is written", Print(&out, "xml", table, nil), nil)
	for _, f := range []Format{FormatJSON, FormatYAML} {
		if err := Print(&out, f, table, func() {}); err == nil {
			t.Errorf("%s: a function is written", f)
		}
	}
	for _, f := range []Format{FormatTable, FormatJSON, FormatYAML} {
		if err := Print(broken{}, f, table, document); !errors.Is(err, errBroken) {
			t.Errorf("%s: %v", f, err)
		}
	}
}

var errBroken = errors.New("broken pipe")

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errBroken }

func TestFormatAsAFlag(t *testing.T) {
	f := FormatTable
	for _, word := range []string{"json", "yaml", "table"} {
		if err := f.Set(word); err != nil || f.String() != word {
			t.Errorf("%s: got %s, %v", word, f, err)
		}
	}
	if err := f.Set("jsn"); err == nil || !strings.Contains(err.Error(), `mean "json"`) || f != FormatTable {
		t.Errorf("got %s, %v", f, err)
	}
	if f.Type() != "table|json|yaml" {
		t.Error(f.Type())
	}
}

func testScreen(columns, rows int) (*Screen, *bytes.Buffer) {
	var out bytes.Buffer
	return &Screen{out: &out, size: func() (int, int) { return columns, rows }}, &out
}

func TestScreenDrawsInPlace(t *testing.T) {
	s, out := testScreen(10, 4)
	s.Show([]string{"one", "two"})
	_, _ = s.Write([]byte("log\n"))
	s.Show([]string{"1234567890", "12345678901", "three", "four"})
	s.Show(nil)
	_, _ = s.Write([]byte("end\n"))
	const noWrap, wrap = "\x1b[?7l", "\x1b[?7h"
	want := noWrap + "one\ntwo\n" + wrap +
		"\x1b[2A\r\x1b[Jlog\n" + noWrap + "one\ntwo\n" + wrap +
		"\x1b[2A\r\x1b[J" + noWrap + "1234567890\n123456789…\nthree\n" + wrap +
		"\x1b[3A\r\x1b[J" + noWrap + wrap +
		"end\n" + noWrap + wrap
	if out.String() != want {
		t.Errorf("got  %q\nwant %q", out.String(), want)
	}
}

func TestScreenOfOneRow(t *testing.T) {
	s, out := testScreen(1, 1)
	s.Show([]string{"ab", "c"})
	if !strings.Contains(out.String(), "…\n") || s.Rows() != 1 || s.drawn != 1 {
		t.Errorf("%q, %d rows, %d drawn", out.String(), s.Rows(), s.drawn)
	}
}

func TestClip(t *testing.T) {
	for _, c := range []struct {
		line string
		most int
		want string
	}{{"abc", 3, "abc"}, {"abcd", 3, "ab…"}, {"äöü", 3, "äöü"}, {"äöüß", 3, "äö…"}, {"a", 0, "…"}, {"", 0, ""}, {"ab\xff\xfe", 3, "ab…"}} {
		if got := Clip(c.line, c.most); got != c.want {
			t.Errorf("Clip(%q, %d) = %q, want %q", c.line, c.most, got, c.want)
		}
	}
}

func TestNoTerminal(t *testing.T) {
	if IsTerminal(&bytes.Buffer{}) {
		t.Error("a buffer is a terminal")
	}
}

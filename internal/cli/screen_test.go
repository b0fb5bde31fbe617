package cli

import (
	"bytes"
	"strings"
	"testing"
)

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

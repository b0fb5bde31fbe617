package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Screen keeps some lines at the end of a terminal's output that are redrawn in
// place. Text that is written to it scrolls above them. Write errors are ignored: a
// lost terminal is no reason to stop.
type Screen struct {
	out  io.Writer
	size func() (columns, rows int)

	mu    sync.Mutex
	lines []string
	drawn int // lines on the terminal; the cursor is after them
}

// NewScreen makes a Screen of a terminal.
func NewScreen(terminal *os.File) *Screen {
	return &Screen{out: terminal, size: func() (int, int) {
		size, err := unix.IoctlGetWinsize(int(terminal.Fd()), unix.TIOCGWINSZ)
		if err != nil || size.Col == 0 || size.Row == 0 {
			return 80, 24
		}
		return int(size.Col), int(size.Row)
	}}
}

// Rows is how many lines can be shown now.
func (s *Screen) Rows() int {
	_, rows := s.size()
	return max(1, rows-1) // the cursor needs one
}

// Show replaces the lines; those that do not fit the terminal are clipped.
func (s *Screen) Show(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = lines
	var b bytes.Buffer
	s.erase(&b)
	s.draw(&b)
	_, _ = s.out.Write(b.Bytes())
}

// Write puts text above the lines; it should end with a newline.
func (s *Screen) Write(text []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b bytes.Buffer
	s.erase(&b)
	b.Write(text)
	s.draw(&b)
	_, _ = s.out.Write(b.Bytes())
	return len(text), nil
}

// erase moves the cursor to the first of the lines and clears from there.
func (s *Screen) erase(b *bytes.Buffer) {
	if s.drawn > 0 {
		fmt.Fprintf(b, "\x1b[%dA\r\x1b[J", s.drawn)
	}
	s.drawn = 0
}

// draw writes the lines. The terminal must not wrap one, also when its
// characters are wider than they count, or erase would go back too little.
func (s *Screen) draw(b *bytes.Buffer) {
	columns, rows := s.size()
	b.WriteString("\x1b[?7l")
	for _, line := range s.lines[:min(len(s.lines), max(1, rows-1))] {
		b.WriteString(Clip(line, columns))
		b.WriteString("\n")
		s.drawn++
	}
	b.WriteString("\x1b[?7h")
}

// Clip shortens a line to a number of characters; the last one is then an ellipsis.
func Clip(line string, most int) string {
	if utf8.RuneCountInString(line) <= most {
		return line
	}
	cut := 0
	for range max(0, most-1) {
		_, size := utf8.DecodeRuneInString(line[cut:])
		cut += size
	}
	return line[:cut] + "…"
}

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

func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// Screen redraws lines at the end of a terminal's output; text written to it
// scrolls above. Write errors are ignored: the program continues without a
// terminal.
type Screen struct {
	out  io.Writer
	size func() (columns, rows int)

	mu    sync.Mutex
	lines []string
	drawn int // above the cursor
}

func NewScreen(terminal *os.File) *Screen {
	return &Screen{out: terminal, size: func() (int, int) {
		size, err := unix.IoctlGetWinsize(int(terminal.Fd()), unix.TIOCGWINSZ)
		if err != nil || size.Col == 0 || size.Row == 0 {
			return 80, 24
		}
		return int(size.Col), int(size.Row)
	}}
}

// Rows returns the number of lines that can be shown.
func (s *Screen) Rows() int {
	_, rows := s.size()
	return max(1, rows-1) // except the cursor's
}

// Show replaces the lines, truncated to the terminal's size.
func (s *Screen) Show(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lines = lines
	var b bytes.Buffer
	s.erase(&b)
	s.draw(&b)
	_, _ = s.out.Write(b.Bytes())
}

// Write writes text, which should end with a newline, above the lines.
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

func (s *Screen) erase(b *bytes.Buffer) {
	if s.drawn > 0 {
		fmt.Fprintf(b, "\x1b[%dA\r\x1b[J", s.drawn)
	}
	s.drawn = 0
}

// draw disables line wrapping, so that erase works also with wide characters.
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

// Clip truncates a line to most characters, including an ellipsis.
func Clip(line string, most int) string {
	if utf8.RuneCountInString(line) <= most {
		return line
	}
	end := 0
	for range max(0, most-1) {
		_, size := utf8.DecodeRuneInString(line[end:])
		end += size
	}
	return line[:end] + "…"
}

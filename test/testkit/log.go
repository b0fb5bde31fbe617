package testkit

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"
)

// Log collects what several goroutines or a process write. The zero value is
// ready for use.
type Log struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{} // closed by the next Write; nil without a waiter
}

// NewLog returns a log that is printed if the test fails.
func NewLog(t testing.TB) *Log {
	l := &Log{}
	t.Cleanup(func() { l.show(t, "log") })
	return l
}

func (l *Log) show(t testing.TB, name string) {
	if t.Failed() {
		t.Logf("%s:\n%s", name, l)
	}
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
	return l.text.Write(p)
}

// String returns what was written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Reset clears the log and returns what was written so far.
func (l *Log) Reset() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := l.text.String()
	l.text.Reset()
	return text
}

// Logger returns a logger that writes to the log at all levels.
func (l *Log) Logger() *slog.Logger {
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// WaitFor waits until the log contains a text, and returns the line with its
// first occurrence.
func (l *Log) WaitFor(t testing.TB, text string) (line string) {
	t.Helper()
	line, err := l.waitFor(nil, text)
	Must(t, err)
	return line
}

func (l *Log) waitFor(ended <-chan struct{}, text string) (line string, err error) {
	deadline := time.NewTimer(Timeout)
	defer deadline.Stop()
	for last := false; ; {
		line, changed := l.find(text)
		switch {
		case changed == nil:
			return line, nil
		case last:
			return "", fmt.Errorf("ended before it wrote %q; it wrote:\n%s", text, l)
		}
		select {
		case <-changed:
		case <-ended:
			last = true
		case <-deadline.C:
			return "", fmt.Errorf("not within %s: %q in the log:\n%s", Timeout, text, l)
		}
	}
}

// find returns the first complete line with a text, or a channel that the next
// Write closes.
func (l *Log) find(text string) (line string, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if strings.Contains(line, text) && strings.HasSuffix(line, "\n") {
			return strings.TrimSuffix(line, "\n"), nil
		}
	}
	if l.changed == nil {
		l.changed = make(chan struct{})
	}
	return "", l.changed
}

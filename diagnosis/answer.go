package diagnosis

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Answer says what an object waits for, and what helps.
type Answer struct {
	Object   string   `json:"object"`   // such as "pod default/shell"
	Waiting  bool     `json:"waiting"`  // false: it needs nothing
	Reason   string   `json:"reason"`   // one or two sentences
	Evidence []string `json:"evidence"` // what was read: conditions, statuses, events with their age
	Next     []string `json:"next"`     // commands, or what to do
	NotRead  []string `json:"notRead"`  // what could not be read
}

// newAnswer describes an object that waits.
func newAnswer(object, reason string, args ...any) Answer {
	return Answer{Object: object, Waiting: true, Reason: fmt.Sprintf(reason, args...), Evidence: []string{}, Next: []string{}, NotRead: []string{}}
}

// done describes an object that needs nothing.
func done(object, reason string, args ...any) Answer {
	a := newAnswer(object, reason, args...)
	a.Waiting = false
	return a
}

func (a *Answer) evidence(format string, args ...any) {
	a.Evidence = append(a.Evidence, fmt.Sprintf(format, args...))
}

func (a *Answer) next(format string, args ...any) {
	if step := fmt.Sprintf(format, args...); !slices.Contains(a.Next, step) {
		a.Next = append(a.Next, step)
	}
}

// of is the answer for an object that waits for the one of a.
func (a Answer) of(object, relation string) Answer {
	a.Reason = fmt.Sprintf("It waits for %s%s. %s", relation, a.Object, a.Reason)
	a.Object = object
	return a
}

// explain adds what the page says of the message that a component reported.
func (a *Answer) explain(m *message) {
	if m == nil {
		return
	}
	if cause := sentence(m.cause); cause != "" {
		a.Reason += " " + cause
	}
	if m.advice != "" {
		a.next("%s", m.advice)
	}
}

// sentence begins with a capital, unless the first word is a name such as
// csi.maxVolumes.
func sentence(s string) string {
	if s == "" {
		return ""
	}
	if first, _, _ := strings.Cut(s, " "); strings.Trim(first, "abcdefghijklmnopqrstuvwxyz,:") == "" {
		s = strings.ToUpper(s[:1]) + s[1:]
	}
	if !strings.HasSuffix(s, ".") {
		s += "."
	}
	return s
}

// age is written like kubectl does: 90s, 12m, 5h, 3d.
func age(since time.Duration) string {
	switch {
	case since < 2*time.Minute:
		return fmt.Sprintf("%ds", max(0, int(since.Seconds())))
	case since < 2*time.Hour:
		return fmt.Sprintf("%dm", int(since.Minutes()))
	case since < 48*time.Hour:
		return fmt.Sprintf("%dh", int(since.Hours()))
	}
	return fmt.Sprintf("%dd", int(since.Hours()/24))
}

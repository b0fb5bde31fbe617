package freeze

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Protocol between parent and guard. The parent sends one request line, and
// later closes the stream to thaw. The guard sends a line for each step.
// Members are numbered as in the parent's list.
const (
	wordFreezing = "freezing" // caches are written back, the bound starts
	wordFrozen   = "frozen"   // frozen <member>
	wordRefused  = "refused"  // refused <member> <errno>
	wordReady    = "ready"    // all are frozen
	wordExpired  = "expired"  // the bound has passed
	wordThawing  = "thawing"  // thawing <member>: calling the kernel
	wordThawed   = "thawed"   // thawed <member> <errno>, 0 for success
	wordEnd      = "end"      // nothing is frozen
)

// order is the parent's request.
type order struct {
	members int
	bound   time.Duration
}

func (o order) String() string {
	return fmt.Sprintf("freeze %d for %d ms\n", o.members, o.bound.Milliseconds())
}

// maxMembers is far above the default limit of open files.
const maxMembers = 1 << 16

func parseOrder(line string) (order, error) {
	var o order
	var ms int64
	if _, err := fmt.Sscanf(line, "freeze %d for %d ms\n", &o.members, &ms); err != nil {
		return order{}, fmt.Errorf("order %.80q: %w", line, err)
	}
	o.bound = time.Duration(ms) * time.Millisecond
	if o.members < 1 || o.members > maxMembers || ms < 1 || ms > MaxBound.Milliseconds() {
		return order{}, fmt.Errorf("order %.80q: out of range", line)
	}
	return o, nil
}

// story is the state of a guard, from its reports.
type story struct {
	began, ready, expired, ended bool

	frozenSoFar int        // members below this index were frozen
	refused     int        // the member whose freeze failed, or -1
	errno       unix.Errno // of the failed freeze
	foreign     int        // the member that another process thawed, or -1
	thawing     int        // the member that is being thawed, or -1
	thawed      map[int]bool
}

func newStory() story { return story{refused: -1, foreign: -1, thawing: -1, thawed: map[int]bool{}} }

// hear processes one line and returns its first word; invalid and repeated
// lines are ignored.
func (s *story) hear(line string) (word string) {
	var member, errno int
	word, rest, _ := strings.Cut(line, " ")
	n, _ := fmt.Sscan(rest, &member, &errno)
	switch {
	case word == wordFreezing && !s.began:
		s.began = true
	case word == wordFrozen && n == 1 && member == s.frozenSoFar:
		s.frozenSoFar++
	case word == wordRefused && n == 2:
		s.refused, s.errno = member, unix.Errno(errno)
	case word == wordReady && !s.ready:
		s.ready = true
	case word == wordExpired:
		s.expired = true
	case word == wordThawing && n == 1:
		s.thawing = member
	case word == wordThawed && n == 2:
		s.hearThawed(member, unix.Errno(errno))
	case word == wordEnd:
		s.ended = true
	default:
		return ""
	}
	return word
}

func (s *story) hearThawed(member int, errno unix.Errno) {
	s.thawing = -1
	switch errno {
	case 0:
		s.thawed[member] = true
	case unix.EINVAL: // it was no longer frozen
		s.thawed[member] = true
		s.foreign = member
	}
}

// frozen reports whether the guard reported that it froze a member.
func (s *story) frozen(member int) bool { return member < s.frozenSoFar }

// maybeFrozen reports whether a member can still be frozen after the guard has
// exited: it was frozen and not thawed, or it was next when the guard died.
func (s *story) maybeFrozen(member int) bool {
	if s.frozen(member) {
		return !s.thawed[member]
	}
	return s.began && !s.ended && s.refused < 0 && member == s.frozenSoFar
}

package freeze

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The parent sends one line, the order, and later ends the stream: thaw. The
// guard sends a line for each thing that it has done. Members are numbered as
// the parent's list.
const (
	wordFreezing = "freezing" // caches are written back, the clock of the bound runs
	wordFrozen   = "frozen"   // frozen <member>
	wordRefused  = "refused"  // refused <member> <errno>
	wordReady    = "ready"    // all are frozen
	wordExpired  = "expired"  // the bound has passed
	wordThawing  = "thawing"  // thawing <member>: the kernel is asked
	wordThawed   = "thawed"   // thawed <member> <errno>, 0 for success
	wordEnd      = "end"      // nothing is frozen
)

// order is what the parent wants.
type order struct {
	members int
	bound   time.Duration
}

func (o order) String() string {
	return fmt.Sprintf("freeze %d for %d ms\n", o.members, o.bound.Milliseconds())
}

// maxMembers is far above what one process can hold open by default.
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

// story is what a parent has heard from its guard.
type story struct {
	began, ready, expired, ended bool

	frozenSoFar int        // the members below it were frozen
	refused     int        // the member that could not be frozen, or -1
	errno       unix.Errno // why
	foreign     int        // the member that somebody else thawed, or -1
	thawing     int        // the member that the kernel is asked to thaw, or -1
	thawed      map[int]bool
}

func newStory() story { return story{refused: -1, foreign: -1, thawing: -1, thawed: map[int]bool{}} }

// hear takes one line in and returns its first word; lines that make no sense
// are passed over, as is a repetition.
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
	case unix.EINVAL: // it was not frozen any more
		s.thawed[member] = true
		s.foreign = member
	}
}

// frozen reports whether the guard said that it froze a member.
func (s *story) frozen(member int) bool { return member < s.frozenSoFar }

// maybeFrozen reports whether a member may be frozen when the guard is gone:
// it was frozen and not thawed, or it was the next in line when the guard died.
func (s *story) maybeFrozen(member int) bool {
	if s.frozen(member) {
		return !s.thawed[member]
	}
	return s.began && !s.ended && s.refused < 0 && member == s.frozenSoFar
}

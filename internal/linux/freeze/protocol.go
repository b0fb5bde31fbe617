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
	reportFreezing = "freezing" // caches are written back, the bound starts
	reportFrozen   = "frozen"   // frozen <member>
	reportRefused  = "refused"  // refused <member> <errno>
	reportReady    = "ready"    // all are frozen
	reportExpired  = "expired"  // the bound has passed
	reportThawing  = "thawing"  // thawing <member>: calling the kernel
	reportThawed   = "thawed"   // thawed <member> <errno>, 0 for success
	reportEnd      = "end"      // nothing is frozen
)

// request is the parent's request.
type request struct {
	members int
	bound   time.Duration
}

func (o request) String() string {
	return fmt.Sprintf("freeze %d for %d ms\n", o.members, o.bound.Milliseconds())
}

// maxMembers is far above the default limit of open files.
const maxMembers = 1 << 16

func parseRequest(line string) (request, error) {
	var o request
	var ms int64
	if _, err := fmt.Sscanf(line, "freeze %d for %d ms\n", &o.members, &ms); err != nil {
		return request{}, fmt.Errorf("request %.80q: %w", line, err)
	}
	o.bound = time.Duration(ms) * time.Millisecond
	if o.members < 1 || o.members > maxMembers || ms < 1 || ms > MaxBound.Milliseconds() {
		return request{}, fmt.Errorf("request %.80q: out of range", line)
	}
	return o, nil
}

// progress is the state of a guard, from its reports.
type progress struct {
	began, ready, expired, ended bool

	frozenSoFar    int        // members below this index were frozen
	refused        int        // the member whose freeze failed, or -1
	errno          unix.Errno // of the failed freeze
	thawedByOthers int        // the member that another process thawed, or -1
	thawing        int        // the member that is being thawed, or -1
	thawed         map[int]bool
}

func newProgress() progress {
	return progress{refused: -1, thawedByOthers: -1, thawing: -1, thawed: map[int]bool{}}
}

// handle processes one line and returns its first word; invalid and repeated
// lines are ignored.
func (s *progress) handle(line string) (word string) {
	var member, errno int
	word, rest, _ := strings.Cut(line, " ")
	n, _ := fmt.Sscan(rest, &member, &errno)
	switch {
	case word == reportFreezing && !s.began:
		s.began = true
	case word == reportFrozen && n == 1 && member == s.frozenSoFar:
		s.frozenSoFar++
	case word == reportRefused && n == 2:
		s.refused, s.errno = member, unix.Errno(errno)
	case word == reportReady && !s.ready:
		s.ready = true
	case word == reportExpired:
		s.expired = true
	case word == reportThawing && n == 1:
		s.thawing = member
	case word == reportThawed && n == 2:
		s.handleThawed(member, unix.Errno(errno))
	case word == reportEnd:
		s.ended = true
	default:
		return ""
	}
	return word
}

func (s *progress) handleThawed(member int, errno unix.Errno) {
	s.thawing = -1
	switch errno {
	case 0:
		s.thawed[member] = true
	case unix.EINVAL: // it was no longer frozen
		s.thawed[member] = true
		s.thawedByOthers = member
	}
}

// frozen reports whether the guard reported that it froze a member.
func (s *progress) frozen(member int) bool { return member < s.frozenSoFar }

// maybeFrozen reports whether a member can still be frozen after the guard has
// exited: it was frozen and not thawed, or it was next when the guard died.
func (s *progress) maybeFrozen(member int) bool {
	if s.frozen(member) {
		return !s.thawed[member]
	}
	return s.began && !s.ended && s.refused < 0 && member == s.frozenSoFar
}

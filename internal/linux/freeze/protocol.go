package freeze

import (
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// The parent sends one request line, and closes the stream to thaw. The guard
// reports each step with a line; members are numbered.
const (
	reportFreezing = "freezing" // caches are written back, the bound starts
	reportFrozen   = "frozen"   // <member>
	reportRefused  = "refused"  // <member> <errno>
	reportReady    = "ready"
	reportExpired  = "expired"
	reportThawing  = "thawing" // <member>: calling the kernel
	reportThawed   = "thawed"  // <member> <errno>, 0 for success
	reportEnd      = "end"     // nothing is frozen
)

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

type progress struct {
	began, ready, expired, ended bool

	frozenSoFar    int // members below this index were frozen
	refused        int // the member whose freeze failed, or -1
	errno          unix.Errno
	thawedByOthers int // the member that another process thawed, or -1
	thawing        int
	thawed         map[int]bool
}

func newProgress() progress {
	return progress{refused: -1, thawedByOthers: -1, thawing: -1, thawed: map[int]bool{}}
}

// handle ignores invalid and repeated lines.
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

func (s *progress) frozen(member int) bool { return member < s.frozenSoFar }

// maybeFrozen holds for a member that was frozen and not thawed, or was next
// when the guard died.
func (s *progress) maybeFrozen(member int) bool {
	if s.frozen(member) {
		return !s.thawed[member]
	}
	return s.began && !s.ended && s.refused < 0 && member == s.frozenSoFar
}

package disk

import (
	"fmt"
	"strings"

	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// Stats are counters since Open.
type Stats struct {
	Reads, Writes, Zeroes, Discards, Flushes int64 // requests carried out
	FUA                                      int64 // among writes, zeroes and discards
	ReadBytes, WrittenBytes                  int64
	Failed                                   int64 // requests that failed by a Fault or the backing file

	UnflushedBytes int64 // current data in the write cache
	Evicted        int64 // physical blocks written out because the cache was full

	PowerLosses int
	Lost        Loss   // sum of all power losses
	LastLoss    Loss   // of the last power loss
	Cause       string // of the last power loss
}

func (s Stats) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d reads (%d bytes), %d writes (%d bytes), %d zeroings, %d discards, %d with FUA, %d flushes, %d failed",
		s.Reads, s.ReadBytes, s.Writes, s.WrittenBytes, s.Zeroes, s.Discards, s.FUA, s.Flushes, s.Failed)
	fmt.Fprintf(&b, "; %d bytes unflushed, %d blocks evicted", s.UnflushedBytes, s.Evicted)
	if s.PowerLosses > 0 {
		fmt.Fprintf(&b, "; %d power losses: %v; the last (%s): %v", s.PowerLosses, s.Lost, s.Cause, s.LastLoss)
	}
	return b.String()
}

func (s *Stats) count(r nbd.Request, failed bool) {
	if failed {
		s.Failed++
		return
	}
	switch r.Command {
	case nbd.Read:
		s.Reads++
		s.ReadBytes += int64(r.Length)
		return // FUA has no meaning for reads and flushes
	case nbd.Flush:
		s.Flushes++
		return
	case nbd.Write:
		s.Writes++
		s.WrittenBytes += int64(r.Length)
	case nbd.WriteZeroes:
		s.Zeroes++
	case nbd.Trim:
		s.Discards++
	}
	if r.FUA {
		s.FUA++
	}
}

func (s *Stats) losePower(l Loss, cause string) {
	s.PowerLosses++
	s.LastLoss, s.Cause = l, cause
	s.Lost.Writes += l.Writes
	s.Lost.Torn += l.Torn
	s.Lost.Blocks += l.Blocks
	s.Lost.Lost += l.Lost
	s.Lost.Stale += l.Stale
}

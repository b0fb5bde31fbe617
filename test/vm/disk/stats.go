package disk

import (
	"fmt"
	"strings"

	"github.com/cleatproject/cleat/test/vm/disk/nbd"
)

// Stats is what a disk has seen since it was opened.
type Stats struct {
	Reads, Writes, Zeroes, Discards, Flushes int64 // requests carried out
	FUA                                      int64 // of the writes, zeroes and discards
	ReadBytes, WrittenBytes                  int64
	Failed                                   int64 // requests that a Fault, or the backing file, answered with an error

	UnflushedBytes int64 // data of the write cache now
	Aged           int64 // physical blocks written out because the cache was full

	Cuts     int
	Lost     Loss   // all cuts together
	LastLoss Loss   // the last cut
	Cause    string // of the last cut
}

func (s Stats) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d reads (%d bytes), %d writes (%d bytes), %d zeroings, %d discards, %d with FUA, %d flushes, %d failed",
		s.Reads, s.ReadBytes, s.Writes, s.WrittenBytes, s.Zeroes, s.Discards, s.FUA, s.Flushes, s.Failed)
	fmt.Fprintf(&b, "; %d bytes unflushed, %d blocks written out for want of cache", s.UnflushedBytes, s.Aged)
	if s.Cuts > 0 {
		fmt.Fprintf(&b, "; %d cuts: %v; the last (%s): %v", s.Cuts, s.Lost, s.Cause, s.LastLoss)
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
		return // FUA means nothing here, nor below
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

func (s *Stats) cut(l Loss, cause string) {
	s.Cuts++
	s.LastLoss, s.Cause = l, cause
	s.Lost.Writes += l.Writes
	s.Lost.Torn += l.Torn
	s.Lost.Blocks += l.Blocks
	s.Lost.Lost += l.Lost
	s.Lost.Stale += l.Stale
}

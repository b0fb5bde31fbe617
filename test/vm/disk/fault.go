package disk

import "github.com/cleatproject/cleat/test/vm/disk/nbd"

// Fault makes matching requests return EIO and change nothing.
type Fault struct {
	// Every counts the matching requests: each Every-th fails; 0: all.
	Every   int
	Reads   bool
	Writes  bool // data, zeroes and discards
	Flushes bool // regardless of From and To
	// Reads and writes that touch a byte of [From, To) fail. To 0 is the end of
	// the disk.
	From, To int64

	matched int
}

func (f *Fault) hits(r nbd.Request) bool {
	if !f.matches(r) {
		return false
	}
	f.matched++
	return f.Every == 0 || f.matched%f.Every == 0
}

func (f *Fault) matches(r nbd.Request) bool {
	switch r.Command {
	case nbd.Flush:
		return f.Flushes
	case nbd.Read:
		return f.Reads && f.touches(r)
	}
	return f.Writes && f.touches(r)
}

func (f *Fault) touches(r nbd.Request) bool {
	from, to := int64(r.Offset), int64(r.Offset)+int64(r.Length)
	return to > f.From && (f.To == 0 || from < f.To)
}

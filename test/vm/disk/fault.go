package disk

import "github.com/cleatproject/cleat/test/vm/disk/nbd"

// Fault is what answers EIO. A request that fails changes nothing.
type Fault struct {
	Reads   bool
	Writes  bool // of data and of zeroes, and discards
	Flushes bool // wherever From and To lie
	// From and To bound the bytes of reads and writes that fail: those that
	// touch any of [From, To). To zero is the end of the disk.
	From, To int64
}

func (f *Fault) hits(r nbd.Request) bool {
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

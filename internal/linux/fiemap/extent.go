// Package fiemap lists the extents of files, and finds the blocks in which two
// reflinked copies differ without reading either of them.
package fiemap

// Extent maps a range of a file to the device, in bytes.
type Extent struct {
	Logical  uint64 // offset in the file
	Physical uint64 // offset on the device, unless opaque
	Length   uint64
	Flags    uint32 // FIEMAP_EXTENT_*, see the Flag constants
}

// FIEMAP_EXTENT_* of linux/fiemap.h.
const (
	FlagLast       = 0x0001 // the file's last extent
	FlagUnknown    = 0x0002 // data location unknown
	FlagDelalloc   = 0x0004 // delayed allocation: no blocks chosen yet
	FlagEncoded    = 0x0008 // compressed or otherwise not readable on the device
	FlagEncrypted  = 0x0080
	FlagNotAligned = 0x0100
	FlagInline     = 0x0200 // data is stored among metadata
	FlagTail       = 0x0400 // several files share the block
	FlagUnwritten  = 0x0800 // allocated, reads as zeros
	FlagMerged     = 0x1000
	FlagShared     = 0x2000 // other files map the same blocks
)

const opaque = FlagUnknown | FlagDelalloc | FlagEncoded | FlagEncrypted | FlagNotAligned | FlagInline | FlagTail

// Opaque reports whether Physical cannot be used to compare contents.
func (e Extent) Opaque() bool { return e.Flags&opaque != 0 }

// Hole reports whether the extent is unwritten and so reads as zeros.
func (e Extent) Hole() bool { return !e.Opaque() && e.Flags&FlagUnwritten != 0 }

// End returns the offset after the last byte.
func (e Extent) End() uint64 { return e.Logical + e.Length }

func (e Extent) clip(from, to uint64) (_ Extent, ok bool) {
	if e.Logical < from {
		if e.End() <= from {
			return Extent{}, false
		}
		skip := from - e.Logical
		e.Logical, e.Physical, e.Length = from, e.Physical+skip, e.Length-skip
	}
	if e.Logical >= to {
		return Extent{}, false
	}
	e.Length = min(e.Length, to-e.Logical)
	return e, e.Length > 0
}

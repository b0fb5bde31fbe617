// Package fiemap lists the extents of a file, as the file system maps them,
// and compares two such lists: which blocks of two reflinked copies differ,
// without reading one of them.
package fiemap

// Extent is a run of bytes of a file and where they lie, all in bytes.
type Extent struct {
	Logical  uint64 // offset in the file
	Physical uint64 // offset on the device; means nothing when the extent is opaque
	Length   uint64
	Flags    uint32 // FIEMAP_EXTENT_*, see the Flag constants
}

// Flags of an extent, those of linux/fiemap.h.
const (
	FlagLast       = 0x0001 // the file's last extent
	FlagUnknown    = 0x0002 // it is not known where the data lies
	FlagDelalloc   = 0x0004 // room not chosen yet
	FlagEncoded    = 0x0008 // compressed or otherwise not readable on the device
	FlagEncrypted  = 0x0080
	FlagNotAligned = 0x0100
	FlagInline     = 0x0200 // data lies among metadata
	FlagTail       = 0x0400 // several files share the block
	FlagUnwritten  = 0x0800 // room is reserved, reads as zeros
	FlagMerged     = 0x1000
	FlagShared     = 0x2000 // other files map the same blocks
)

// opaque are the flags under which Physical says nothing about the content.
const opaque = FlagUnknown | FlagDelalloc | FlagEncoded | FlagEncrypted | FlagNotAligned | FlagInline | FlagTail

// Opaque reports whether Physical cannot be used to compare contents.
func (e Extent) Opaque() bool { return e.Flags&opaque != 0 }

// Hole reports whether the extent reads as zeros, as if it were not there.
func (e Extent) Hole() bool { return !e.Opaque() && e.Flags&FlagUnwritten != 0 }

// End is the first offset in the file behind the extent.
func (e Extent) End() uint64 { return e.Logical + e.Length }

// clip cuts the extent to the part that lies in [from, to); ok is false when
// nothing is left.
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

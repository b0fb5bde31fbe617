package fiemap

import (
	"iter"
	"math"

	"github.com/cleatproject/cleat/errs"
)

// Range is a part of a file.
type Range struct {
	Offset, Length int64
}

// End returns the offset after the last byte.
func (r Range) End() int64 { return r.Offset + r.Length }

// Delta returns the ranges of target in [from, size) that can differ from base.
// Both files must share blocks and stay unchanged, so that equal physical
// offsets hold equal bytes. The result can include equal bytes, but never omits
// a difference. Unwritten extents and the range past the end of base count as
// holes.
//
// The ranges ascend and neither touch nor overlap. An error or a list out of
// order ends the sequence.
func Delta(base, target iter.Seq2[Extent, error], size, from int64) iter.Seq2[Range, error] {
	return func(yield func(Range, error) bool) {
		if from < 0 || size < 0 {
			yield(Range{}, errs.Errorf(errs.OutOfRange, "compare extents: offset %d and size %d must not be negative", from, size))
			return
		}
		b, t := newCursor(base), newCursor(target)
		defer b.stop()
		defer t.stop()
		var open Range // not yielded yet: can be extended
		end := uint64(size)
		for at := uint64(from); at < end; {
			was, err := b.at(at)
			if err != nil {
				yield(Range{}, err)
				return
			}
			is, err := t.at(at)
			if err != nil {
				yield(Range{}, err)
				return
			}
			next := min(was.end, is.end, end)
			if was.differs(is) {
				if open.Length > 0 && uint64(open.End()) == at {
					open.Length += int64(next - at)
				} else {
					if open.Length > 0 && !yield(open, nil) {
						return
					}
					open = Range{Offset: int64(at), Length: int64(next - at)}
				}
			}
			at = next
		}
		if open.Length > 0 {
			yield(open, nil)
		}
	}
}

// segment maps the bytes from some offset up to end.
type segment struct {
	kind     segmentKind
	physical uint64 // of the first byte; data only
	end      uint64
}

type segmentKind uint8

const (
	zeros segmentKind = iota
	data
	incomparable // data whose physical offset cannot be compared
)

func (s segment) differs(other segment) bool {
	switch {
	case s.kind == incomparable || other.kind == incomparable:
		return true
	case s.kind != other.kind:
		return true
	}
	return s.kind == data && s.physical != other.physical
}

type cursor struct {
	next  func() (Extent, error, bool)
	stop  func()
	now   Extent
	ended bool
}

func newCursor(list iter.Seq2[Extent, error]) *cursor {
	c := &cursor{}
	c.next, c.stop = iter.Pull2(list)
	return c
}

// at returns the segment at an offset; offsets must not decrease.
func (c *cursor) at(offset uint64) (segment, error) {
	for !c.ended && c.now.End() <= offset {
		e, err, ok := c.next()
		switch {
		case !ok:
			c.ended = true
		case err != nil:
			return segment{}, err
		case e.Logical < c.now.End() || e.Logical+e.Length < e.Logical:
			return segment{}, errs.Errorf(errs.Internal, "extent at %d with length %d follows one that ends at %d: the list is out of order", e.Logical, e.Length, c.now.End())
		default:
			c.now = e
		}
	}
	switch {
	case c.ended:
		return segment{end: math.MaxUint64}, nil
	case offset < c.now.Logical:
		return segment{end: c.now.Logical}, nil
	case c.now.Opaque():
		return segment{kind: incomparable, end: c.now.End()}, nil
	case c.now.Hole():
		return segment{end: c.now.End()}, nil
	}
	return segment{kind: data, physical: c.now.Physical + (offset - c.now.Logical), end: c.now.End()}, nil
}

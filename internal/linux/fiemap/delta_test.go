package fiemap

import (
	"bytes"
	"errors"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	goleak.VerifyTestMain(m)
}

func list(extents ...Extent) iter.Seq2[Extent, error] {
	return func(yield func(Extent, error) bool) {
		for _, e := range extents {
			if !yield(e, nil) {
				return
			}
		}
	}
}

func collect(t testkit.T, ranges iter.Seq2[Range, error]) []Range {
	var all []Range
	for r, err := range ranges {
		testkit.Must(t, err)
		all = append(all, r)
	}
	return all
}

func TestDelta(t *testing.T) {
	data := func(logical, physical, length uint64) Extent { return Extent{logical, physical, length, FlagShared} }
	flagged := func(logical, physical, length uint64, flags uint32) Extent {
		return Extent{logical, physical, length, flags}
	}
	for _, c := range []struct {
		name         string
		base, target []Extent
		from         int64
		want         []Range // of a target of 100 bytes
	}{
		{"nothing", nil, nil, 0, nil},
		{"the same", []Extent{data(0, 1000, 100)}, []Extent{data(0, 1000, 100)}, 0, nil},
		{"the same in other pieces", []Extent{data(0, 1000, 100)}, []Extent{data(0, 1000, 30), data(30, 1030, 70)}, 0, nil},
		{"written", nil, []Extent{data(10, 500, 20)}, 0, []Range{{Offset: 10, Length: 20}}},
		{"punched", []Extent{data(10, 500, 20)}, nil, 0, []Range{{Offset: 10, Length: 20}}},
		{"moved", []Extent{data(0, 1000, 100)}, []Extent{data(0, 1000, 40), data(40, 500, 10), data(50, 1050, 50)}, 0, []Range{{Offset: 40, Length: 10}}},
		{"shifted", []Extent{data(0, 1000, 50)}, []Extent{data(10, 1000, 50)}, 0, []Range{{Offset: 0, Length: 60}}},
		{"unwritten is a hole", []Extent{flagged(0, 700, 50, FlagUnwritten)}, []Extent{flagged(50, 900, 50, FlagUnwritten)}, 0, nil},
		{"unwritten over data of the same place", []Extent{data(0, 700, 50)}, []Extent{flagged(0, 700, 50, FlagUnwritten)}, 0, []Range{{Offset: 0, Length: 50}}},
		{"adjacent ones are one", nil, []Extent{data(0, 700, 10), data(10, 300, 10), data(20, 900, 10)}, 0, []Range{{Offset: 0, Length: 30}}},
		{"from the middle", nil, []Extent{data(0, 700, 50), data(60, 900, 10)}, 30, []Range{{Offset: 30, Length: 20}, {Offset: 60, Length: 10}}},
		{"from after the end", nil, []Extent{data(0, 700, 50)}, 100, nil},
		{"base is longer", []Extent{data(0, 700, 500)}, []Extent{data(0, 700, 100)}, 0, nil},
		{"target has extents after its size", nil, []Extent{data(90, 700, 500)}, 0, []Range{{Offset: 90, Length: 10}}},
		{"base is shorter", []Extent{data(0, 700, 20)}, []Extent{data(0, 700, 20), data(20, 900, 80)}, 0, []Range{{Offset: 20, Length: 80}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := collect(t, Delta(list(c.base...), list(c.target...), 100, c.from))
			testkit.Diff(t, "result", c.want, got)
		})
	}
}

// An opaque extent always counts as changed, on either side.
func TestDeltaOpaque(t *testing.T) {
	for _, flag := range []uint32{FlagUnknown, FlagDelalloc, FlagEncoded, FlagEncrypted, FlagNotAligned, FlagInline, FlagTail, FlagDelalloc | FlagUnwritten} {
		e := Extent{Logical: 10, Physical: 500, Length: 20, Flags: flag}
		plain := Extent{Logical: 10, Physical: 500, Length: 20}
		want := []Range{{Offset: 10, Length: 20}}
		for _, pair := range [][2]iter.Seq2[Extent, error]{
			{list(e), list(e)}, {list(e), list(plain)}, {list(plain), list(e)}, {list(), list(e)}, {list(e), list()},
		} {
			if diff := cmp.Diff(want, collect(t, Delta(pair[0], pair[1], 100, 0))); diff != "" {
				t.Errorf("flag %#x: %s", flag, diff)
			}
		}
	}
}

func TestDeltaPassesErrorsOn(t *testing.T) {
	broken := errors.New("broken")
	failing := func(yield func(Extent, error) bool) {
		if yield(Extent{Logical: 0, Physical: 100, Length: 10}, nil) {
			yield(Extent{}, broken)
		}
	}
	for name, ranges := range map[string]iter.Seq2[Range, error]{
		"base": Delta(failing, list(), 100, 0), "target": Delta(list(), failing, 100, 0),
	} {
		if err := lastError(ranges); !errors.Is(err, broken) {
			t.Errorf("%s: error %v, want that of the list", name, err)
		}
	}
	jumble := list(Extent{Logical: 50, Length: 10}, Extent{Logical: 40, Length: 10})
	testkit.WantError(t, "a list out of order was taken", lastError(Delta(list(), jumble, 100, 0)), nil)
	for _, args := range [][2]int64{{-1, 0}, {100, -1}} {
		if err := lastError(Delta(list(), list(), args[0], args[1])); !errors.Is(err, errs.OutOfRange) {
			t.Errorf("size %d, from %d: error %v, want errs.OutOfRange", args[0], args[1], err)
		}
	}
}

func lastError(ranges iter.Seq2[Range, error]) (last error) {
	for _, err := range ranges {
		last = err
	}
	return last
}

// A caller that stops early must also stop the lists' iterators.
func TestDeltaStopsEarly(t *testing.T) {
	stopped := 0
	endless := func(yield func(Extent, error) bool) {
		defer func() { stopped++ }()
		for at := uint64(0); yield(Extent{Logical: at, Physical: at + 7, Length: 1}, nil); at += 2 {
		}
	}
	for range Delta(endless, list(), 1000, 0) {
		break
	}
	if stopped != 1 {
		t.Errorf("the list was ended %d times, want once", stopped)
	}
}

// model returns for every byte 0 (hole), -1 (opaque) or its place.
func model(extents []Extent, size int) []int {
	bytes := make([]int, size)
	for _, e := range extents {
		for i := range e.Length {
			if at := e.Logical + i; at < uint64(size) {
				switch {
				case e.Opaque():
					bytes[at] = -1
				case e.Flags&FlagUnwritten == 0:
					bytes[at] = int(e.Physical + i)
				}
			}
		}
	}
	return bytes
}

func modelDelta(base, target []Extent, size, from int) (all []Range) {
	was, is := model(base, size), model(target, size)
	for at := from; at < size; at++ {
		if was[at] == is[at] && is[at] != -1 {
			continue
		}
		if last := len(all) - 1; last >= 0 && all[last].End() == int64(at) {
			all[last].Length++
		} else {
			all = append(all, Range{Offset: int64(at), Length: 1})
		}
	}
	return all
}

func drawList(t *rapid.T, name string) (extents []Extent) {
	at := uint64(0)
	for range rapid.IntRange(0, 12).Draw(t, name+" extents") {
		at += rapid.Uint64Range(0, 4).Draw(t, "gap")
		e := Extent{
			Logical: at,
			// Few places, so that the lists often agree.
			Physical: 100 + at + 20*rapid.Uint64Range(0, 1).Draw(t, "place"),
			Length:   rapid.Uint64Range(1, 6).Draw(t, "length"),
			Flags:    rapid.SampledFrom([]uint32{0, 0, 0, FlagShared, FlagUnwritten, FlagEncoded, FlagMerged | FlagLast}).Draw(t, "flags"),
		}
		extents = append(extents, e)
		at = e.End()
	}
	return extents
}

func TestDeltaEqualsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base, target := drawList(t, "base"), drawList(t, "target")
		size := rapid.IntRange(0, 80).Draw(t, "size")
		from := rapid.IntRange(0, 80).Draw(t, "from")
		got := collect(t, Delta(list(base...), list(target...), int64(size), int64(from)))
		if want := modelDelta(base, target, size, from); !slices.Equal(got, want) {
			t.Fatalf("base %v\ntarget %v\ngot  %v\nwant %v", base, target, got, want)
		}
		got = collect(t, Delta(list(), list(target...), int64(size), int64(from)))
		if want := modelDelta(nil, target, size, from); !slices.Equal(got, want) {
			t.Fatalf("allocated of %v\ngot  %v\nwant %v", target, got, want)
		}
	})
}

const (
	fileSize = 2 << 20
	fsBlock  = 4096
)

// Ranges that Delta does not report must be equal in two snapshots.
func TestDeltaMissesNoChange(t *testing.T) {
	for _, fstype := range []string{"xfs", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			dir := scratchfs.Mount(t, fstype)
			seed := rand.Uint64()
			random := rand.New(rand.NewPCG(seed, 0))
			live := create(t, dir)
			size := int64(fileSize)
			testkit.Must(t, live.Truncate(size))
			snapshots := []*os.File{snapshot(t, live)}
			for range 12 {
				for range random.IntN(30) {
					change(t, live, random, size)
				}
				if random.IntN(3) == 0 {
					size += fsBlock * random.Int64N(16)
					testkit.Must(t, live.Truncate(size))
				}
				snapshots = append(snapshots, snapshot(t, live))
			}
			reported := int64(0)
			for i := range snapshots {
				// The one before, the first, and back in time.
				for _, base := range []int{max(i-1, 0), 0, len(snapshots) - 1} {
					reported += compare(t, seed, snapshots[base], snapshots[i])
				}
			}
			if reported == 0 {
				t.Errorf("seed %d: no change reported at all", seed)
			}
		})
	}
}

func snapshot(t *testing.T, live *os.File) *os.File {
	t.Helper()
	f := create(t, filepath.Dir(live.Name()))
	testkit.Must(t, unix.IoctlFileClone(int(f.Fd()), int(live.Fd())))
	return f
}

func change(t *testing.T, f *os.File, random *rand.Rand, size int64) {
	t.Helper()
	at := random.Int64N(size)
	length := min(1+random.Int64N(40*fsBlock), size-at)
	mode := uint32(unix.FALLOC_FL_KEEP_SIZE)
	switch random.IntN(4) {
	case 0: // a loop device has whole blocks, a file not necessarily
		at, length = at&^(fsBlock-1), fsBlock
		fallthrough
	case 1:
		content := make([]byte, length)
		for i := range content {
			content[i] = byte(random.Uint32())
		}
		testkit.Value(f.WriteAt(content, at))(t)
		return
	case 2:
		mode |= unix.FALLOC_FL_PUNCH_HOLE
	case 3:
		mode |= unix.FALLOC_FL_ZERO_RANGE
	}
	testkit.Must(t, unix.Fallocate(int(f.Fd()), mode, at, length))
}

// compare also compares the target with an empty file, and returns the number
// of bytes reported as changed.
func compare(t *testing.T, seed uint64, base, target *os.File) (reported int64) {
	t.Helper()
	was, is := content(t, base), content(t, target)
	size := int64(len(is))
	was = append(was, make([]byte, max(0, len(is)-len(was)))...)[:size]
	read := func(f *os.File) func(func(Extent, error) bool) { return Extents(t.Context(), f, 0, 1<<40) }
	from := int64(0)
	changed := collect(t, Delta(read(base), read(target), size, 0))
	for _, r := range append(changed, Range{Offset: size}) {
		if !bytes.Equal(was[from:r.Offset], is[from:r.Offset]) {
			t.Errorf("seed %d: %s to %s: a change in [%d,%d) is not reported", seed, base.Name(), target.Name(), from, r.Offset)
		}
		from = r.End()
		reported += r.Length
	}
	from = 0
	for _, r := range append(collect(t, Delta(list(), read(target), size, 0)), Range{Offset: size}) {
		if len(bytes.Trim(is[from:r.Offset], "\x00")) > 0 {
			t.Errorf("seed %d: %s: data in [%d,%d) is not reported", seed, target.Name(), from, r.Offset)
		}
		from = r.End()
	}
	if base == target && len(changed) > 0 && !hasOpaque(t, target) {
		t.Errorf("seed %d: %s differs from itself in %v", seed, base.Name(), changed)
	}
	return reported
}

func hasOpaque(t *testing.T, f *os.File) bool {
	for _, e := range extents(t, f, 0, 1<<40) {
		if e.Opaque() {
			return true
		}
	}
	return false
}

func content(t *testing.T, f *os.File) []byte {
	t.Helper()
	return testkit.Value(os.ReadFile(f.Name()))(t)
}

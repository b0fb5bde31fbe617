package fiemap

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/testkit/scratchfs"
)

func create(t testing.TB, dir string) *os.File {
	t.Helper()
	return testkit.Open(os.CreateTemp(dir, "file"))(t)
}

func extents(t testing.TB, f *os.File, from, length int64) (all []Extent) {
	t.Helper()
	for e, err := range Extents(t.Context(), f, from, length) {
		testkit.Must(t, err)
		all = append(all, e)
	}
	return all
}

// The extents have holes between them; the first is dirty.
func TestExtentsOverManyPages(t *testing.T) {
	for _, fstype := range []string{"xfs", "ext4", "btrfs"} {
		t.Run(fstype, func(t *testing.T) {
			f := create(t, scratchfs.Mount(t, fstype))
			const block, count = 4096, 2*pageExtents + 10
			testkit.Must(t, f.Truncate(2*count*block))
			for i := range int64(count) {
				testkit.Value(f.WriteAt([]byte{1}, 2*i*block))(t)
			}
			all := extents(t, f, 0, math.MaxInt64)
			if len(all) != count {
				t.Fatalf("%d extents, want %d", len(all), count)
			}
			for i, e := range all {
				if e.Logical != uint64(2*i*block) || e.Length != block || e.Opaque() || e.Hole() {
					t.Fatalf("extent %d is %+v", i, e)
				}
			}
			some := extents(t, f, 100, 2*block)
			if len(some) != 2 || some[0].Logical != 100 || some[0].Physical != all[0].Physical+100 || some[1].End() != 2*block+100 {
				t.Errorf("the extents from 100 on are %+v", some)
			}
			if none := extents(t, f, 3*count*block, block); none != nil {
				t.Errorf("after the end there are %+v", none)
			}
			if none := extents(t, f, 0, 0); none != nil {
				t.Errorf("of no bytes at all there are %+v", none)
			}
		})
	}
}

func TestExtentsUnwritten(t *testing.T) {
	f := create(t, scratchfs.Mount(t, "xfs"))
	testkit.Must(t, unix.Fallocate(int(f.Fd()), 0, 0, 1<<20))
	all := extents(t, f, 0, 1<<20)
	if len(all) == 0 {
		t.Fatal("no extents, want one that is unwritten")
	}
	for _, e := range all {
		if !e.Hole() {
			t.Errorf("extent %+v, want an unwritten one", e)
		}
	}
	if got := collect(t, Delta(list(), list(all...), 1<<20, 0)); got != nil {
		t.Errorf("allocated %v, want nothing", got)
	}
}

func TestExtentsErrors(t *testing.T) {
	f := create(t, t.TempDir())
	cancelled := testkit.Canceled(t)
	proc := testkit.Open(os.Open("/proc/self/status"))(t)
	for _, c := range []struct {
		name         string
		ctx          context.Context
		f            *os.File
		from, length int64
		want         error
	}{
		{"cancelled", cancelled, f, 0, 1, context.Canceled},
		{"negative offset", t.Context(), f, -1, 1, errs.OutOfRange},
		{"negative length", t.Context(), f, 0, -1, errs.OutOfRange},
		{"unsupported", t.Context(), proc, 0, 1, ErrUnsupported},
	} {
		count := 0
		for _, err := range Extents(c.ctx, c.f, c.from, c.length) {
			if count++; !errors.Is(err, c.want) {
				t.Errorf("%s: error %v, want %v", c.name, err, c.want)
			}
		}
		if count != 1 {
			t.Errorf("%s: %d answers, want one error", c.name, count)
		}
	}
}

func answer(mapped uint32, all ...Extent) []byte {
	buf := make([]byte, headerSize+len(all)*extentSize)
	binary.NativeEndian.PutUint32(buf[20:], mapped)
	for i, e := range all {
		at := buf[headerSize+i*extentSize:]
		binary.NativeEndian.PutUint64(at[0:], e.Logical)
		binary.NativeEndian.PutUint64(at[8:], e.Physical)
		binary.NativeEndian.PutUint64(at[16:], e.Length)
		binary.NativeEndian.PutUint32(at[40:], e.Flags)
	}
	return buf
}

func TestParseRefuses(t *testing.T) {
	for name, buf := range map[string][]byte{
		"no header":     make([]byte, headerSize-1),
		"too many":      answer(2, Extent{Length: 1}),
		"empty extent":  answer(1, Extent{Logical: 5}),
		"beyond a file": answer(1, Extent{Logical: math.MaxInt64, Length: 2}),
		"wraps around":  answer(1, Extent{Logical: 5, Length: math.MaxUint64}),
		"overlap":       answer(2, Extent{Logical: 5, Length: 5}, Extent{Logical: 9, Length: 5}),
		"descending":    answer(2, Extent{Logical: 50, Length: 5}, Extent{Logical: 9, Length: 5}),
	} {
		if page, err := parse(buf); err == nil {
			t.Errorf("%s: %+v, want an error", name, page)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(answer(2, Extent{0, 4096, 4096, FlagShared}, Extent{8192, 0, 512, FlagInline | FlagLast}))
	f.Add(answer(math.MaxUint32))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, buf []byte) {
		page, err := parse(buf)
		if err != nil {
			return
		}
		behind := uint64(0)
		for _, e := range page {
			if e.Logical < behind || e.End() <= e.Logical || e.End() > math.MaxInt64+1 {
				t.Fatalf("parse let %+v through", page)
			}
			behind = e.End()
		}
		// Delta must accept what parse accepts.
		testkit.Must(t, lastError(Delta(list(), list(page...), math.MaxInt64, 0)))
	})
}

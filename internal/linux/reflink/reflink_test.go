package reflink

import (
	"bytes"
	"context"
	"errors"
	"os"
	"testing"

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

func create(t testing.TB, dir string) *os.File {
	t.Helper()
	f := testkit.Value(os.CreateTemp(dir, "file"))(t)
	t.Cleanup(func() {
		f.Close()
		os.Remove(f.Name())
	})
	return f
}

func write(t testkit.T, f *os.File, at int64, content []byte) {
	testkit.Value(f.WriteAt(content, at))(t)
}

func content(t testkit.T, f *os.File) []byte {
	return testkit.Value(os.ReadFile(f.Name()))(t)
}

func blocks(t testkit.T, f *os.File) int64 {
	var stat unix.Stat_t
	testkit.Must(t, unix.Fstat(int(f.Fd()), &stat))
	return stat.Blocks * 512
}

func TestSupportedAndClone(t *testing.T) {
	for _, c := range []struct {
		fstype string
		flags  []string
		want   bool
	}{
		{"xfs", nil, true}, {"btrfs", nil, true}, {"ext4", nil, false}, {"xfs", []string{"-m", "reflink=0"}, false},
	} {
		dir := scratchfs.Mount(t, c.fstype, c.flags...)
		root := testkit.Value(os.OpenRoot(dir))(t)
		defer root.Close()
		before := names(t, dir)
		got, err := Supported(root)
		if err != nil || got != c.want {
			t.Errorf("%s %v: Supported = %v, %v; want %v", c.fstype, c.flags, got, err, c.want)
		}
		if after := names(t, dir); after != before {
			t.Errorf("%s: Supported left %s behind, before there was %s", c.fstype, after, before)
		}
		src, dst := create(t, dir), create(t, dir)
		write(t, src, 4096, []byte("content"))
		err = Clone(dst, src)
		switch {
		case !c.want && (!errors.Is(err, ErrUnsupported) || errs.KindOf(err) != errs.Unsupported):
			t.Errorf("%s: Clone: %v, want ErrUnsupported", c.fstype, err)
		case c.want && err != nil:
			t.Error(err)
		case c.want && !bytes.Equal(content(t, src), content(t, dst)):
			t.Errorf("%s: the clone has other bytes", c.fstype)
		}
		src.Close()
		dst.Close()
	}
}

func names(t *testing.T, dir string) (all string) {
	t.Helper()
	entries := testkit.Value(os.ReadDir(dir))(t)
	for _, e := range entries {
		all += e.Name() + " "
	}
	return all
}

func TestCloneAcrossFileSystems(t *testing.T) {
	src, dst := create(t, scratchfs.Mount(t, "xfs")), create(t, scratchfs.Mount(t, "xfs"))
	write(t, src, 0, make([]byte, 4096))
	testkit.WantError(t, "Clone", Clone(dst, src), ErrUnsupported)
}

func fill(t *testing.T, dir string) {
	t.Helper()
	f := create(t, dir)
	for size := int64(scratchfs.Size); size >= 512; {
		end := testkit.Value(f.Seek(0, 2))(t)
		switch err := unix.Fallocate(int(f.Fd()), 0, end, size); err {
		case nil:
		case unix.ENOSPC:
			size /= 2
		default:
			t.Fatal(err)
		}
	}
}

func TestSupportedWhenFull(t *testing.T) {
	for _, c := range []struct {
		fstype string
		flags  []string
		want   bool
	}{
		{"xfs", nil, true}, {"xfs", []string{"-m", "reflink=0"}, false}, {"ext4", nil, false}, {"btrfs", nil, true},
	} {
		dir := scratchfs.Mount(t, c.fstype, c.flags...)
		root := testkit.Value(os.OpenRoot(dir))(t)
		defer root.Close()
		fill(t, dir)
		if got, err := Supported(root); err != nil || got != c.want {
			t.Errorf("%s %v: Supported = %v, %v; want %v", c.fstype, c.flags, got, err, c.want)
		}
	}
}

func TestNoSpaceIsExhausted(t *testing.T) {
	dir := scratchfs.Mount(t, "ext4")
	src, dst := create(t, t.TempDir()), create(t, dir)
	write(t, src, 0, bytes.Repeat([]byte("x"), 8<<20))
	fill(t, dir)
	err := CopySparse(t.Context(), dst, src, 0, nil)
	if errs.KindOf(err) != errs.Exhausted || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("error %v of kind %v, want errs.Exhausted", err, errs.KindOf(err))
	}
}

// In one file system that shares blocks, in one that does not, and between two
// (the kernel then refuses to copy).
func pairs(t *testing.T) map[string][2]string {
	xfs, ext4 := scratchfs.Mount(t, "xfs"), scratchfs.Mount(t, "ext4")
	return map[string][2]string{
		"xfs": {xfs, xfs}, "ext4": {ext4, ext4}, "xfs to ext4": {xfs, ext4}, "ext4 to xfs": {ext4, xfs},
	}
}

func TestCopySparseEqualsSource(t *testing.T) {
	for name, dirs := range pairs(t) {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				src, dst := unnamed(r, dirs[0]), unnamed(r, dirs[1])
				defer src.Close()
				defer dst.Close()
				draw(r, src, "source")
				draw(r, dst, "destination")
				want := read(r, src)
				// As after an interrupted copy: equal up to `from`.
				from := rapid.Int64Range(0, int64(len(want))).Draw(r, "from")
				write(r, dst, 0, want[:from])
				last := from
				testkit.Must(r, CopySparse(t.Context(), dst, src, from, func(done int64) error {
					if done < last || done > int64(len(want)) {
						r.Fatalf("progress goes from %d to %d of %d", last, done, len(want))
					}
					last = done
					if got := read(r, dst); !bytes.Equal(got[:min(done, int64(len(got)))], want[:min(done, int64(len(got)))]) {
						r.Fatalf("at %d of %d the bytes before differ", done, len(want))
					}
					return nil
				}))
				if got := read(r, dst); !bytes.Equal(got, want) {
					r.Fatalf("the copy differs: %d bytes, want %d", len(got), len(want))
				}
				if from == 0 {
					sameHoles(r, dst, src)
				}
			})
		})
	}
}

func unnamed(t testkit.T, dir string) *os.File {
	fd := testkit.Value(unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600))(t)
	return os.NewFile(uintptr(fd), dir+"/(unnamed)")
}

func read(t testkit.T, f *os.File) []byte {
	info := testkit.Value(f.Stat())(t)
	all := make([]byte, info.Size())
	if n, err := f.ReadAt(all, 0); n != len(all) {
		t.Fatal(n, err)
	}
	return all
}

func draw(t *rapid.T, f *os.File, name string) {
	const most = 40 * 4096
	for range rapid.IntRange(0, 6).Draw(t, name+" runs") {
		at := rapid.Int64Range(0, most).Draw(t, "at")
		write(t, f, at, bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte")}, rapid.IntRange(1, 5*4096).Draw(t, "length")))
	}
	testkit.Must(t, f.Truncate(rapid.Int64Range(0, most).Draw(t, name+" size")))
}

// XFS can preallocate this after a write that extends a file; later it can
// count as data for a while.
const speculation = 128 << 10

// Except for the last block and the file system's preallocation.
func sameHoles(t *rapid.T, dst, src *os.File) {
	extra := int64(0)
	info := testkit.Value(src.Stat())(t)
	size := info.Size() / 4096 * 4096
	for at := int64(0); at < size; {
		from, to, err := nextData(dst, at, size)
		testkit.Must(t, err)
		for in := from; in < to; {
			dataFrom, dataTo, err := nextData(src, in, size)
			testkit.Must(t, err)
			if extra += max(0, min(dataFrom, to)-in); extra > speculation {
				t.Fatalf("the copy has data at %d where the source has a hole up to %d", in, dataFrom)
			}
			in = max(dataTo, dataFrom)
		}
		at = to
	}
}

func TestCopySparseKeepsReservedSpace(t *testing.T) {
	dir := scratchfs.Mount(t, "xfs")
	src, dst := create(t, dir), create(t, dir)
	const size = 8 << 20
	write(t, src, 1<<20, bytes.Repeat([]byte("x"), 1<<20))
	testkit.Must(t, src.Truncate(size), unix.Fallocate(int(dst.Fd()), 0, 0, size))
	testkit.Must(t, CopySparse(t.Context(), dst, src, 0, nil))
	if !bytes.Equal(content(t, src), content(t, dst)) {
		t.Error("the copy differs")
	}
	if got := blocks(t, dst); got < size {
		t.Errorf("a thick destination shrank from %d to %d bytes", size, got)
	}
}

func TestCopySparseStopsAndResumes(t *testing.T) {
	for name, dirs := range pairs(t) {
		t.Run(name, func(t *testing.T) {
			src, dst := create(t, dirs[0]), create(t, dirs[1])
			write(t, src, 0, bytes.Repeat([]byte("0123456789abcdef"), (2*chunk+4096)/16))
			ctx, cancel := context.WithCancelCause(t.Context())
			enough := errors.New("enough")
			var reached int64
			err := CopySparse(ctx, dst, src, 0, func(done int64) error {
				reached = done
				cancel(enough)
				return nil
			})
			if !errors.Is(err, enough) || reached == 0 || reached > chunk {
				t.Fatalf("cancelled after the first step: error %v at %d, want the context's within %d", err, reached, chunk)
			}
			refused := errors.New("refused")
			if err := CopySparse(t.Context(), dst, src, reached, func(int64) error { return refused }); err != refused {
				t.Errorf("error %v, want the one of progress", err)
			}
			testkit.Must(t, CopySparse(t.Context(), dst, src, reached, nil))
			if !bytes.Equal(content(t, src), content(t, dst)) {
				t.Error("the resumed copy differs")
			}
		})
	}
}

func TestCopySparseOfHugeHole(t *testing.T) {
	dir := scratchfs.Mount(t, "xfs")
	src, dst := create(t, dir), create(t, dir)
	const size = 1 << 42
	write(t, src, size-4096, []byte("end"))
	testkit.Must(t, src.Truncate(size))
	write(t, dst, 1<<40, []byte("stale"))
	testkit.Must(t, CopySparse(t.Context(), dst, src, 0, nil))
	got := make([]byte, 5)
	if _, err := dst.ReadAt(got, 1<<40); err != nil || !bytes.Equal(got, make([]byte, 5)) {
		t.Errorf("in the hole there is %q, %v", got, err)
	}
	if _, err := dst.ReadAt(got[:3], size-4096); err != nil || string(got[:3]) != "end" {
		t.Errorf("at the end there is %q, %v", got, err)
	}
}

func TestCopySparseRefuses(t *testing.T) {
	dir := t.TempDir()
	src, dst := create(t, dir), create(t, dir)
	directory := testkit.Open(os.Open(dir))(t)
	for name, err := range map[string]error{
		"same file": CopySparse(t.Context(), src, src, 0, nil),
		"negative":  CopySparse(t.Context(), dst, src, -1, nil),
		"directory": CopySparse(t.Context(), dst, directory, 0, nil),
	} {
		if !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: error %v, want errs.Invalid", name, err)
		}
	}
}

func TestCopySparseKeepsHoles(t *testing.T) {
	for _, fs := range []string{"xfs", "ext4"} {
		dir := scratchfs.Mount(t, fs)
		src, dst := create(t, dir), create(t, dir)
		const size = 16 << 20
		for _, at := range []int64{1 << 20, 9 << 20} {
			write(t, src, at, []byte("data"))
		}
		testkit.Must(t, src.Truncate(size), CopySparse(t.Context(), dst, src, 0, nil))
		if !bytes.Equal(content(t, src), content(t, dst)) {
			t.Errorf("%s: the copy differs", fs)
		}
		var st unix.Stat_t
		testkit.Must(t, dst.Sync(), unix.Fstat(int(dst.Fd()), &st))
		if taken := st.Blocks * 512; taken > 2*(4096+speculation) {
			t.Errorf("%s: the copy of two blocks takes %d bytes", fs, taken)
		}
	}
}

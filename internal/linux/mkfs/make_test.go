package mkfs_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/uuid"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/testkit"
)

const mib = mkfstest.MiB

// Like a volume: attached with 4096-byte sectors and direct I/O, written to,
// copied by reflink, and the copy mounted in parallel.
func TestMadeFileSystemsMount(t *testing.T) {
	pool := mkfstest.Pool(t, 4096*mib)
	for _, fs := range mkfs.Types() {
		for name, size := range map[string]int64{"smallest": mkfs.MinSize(fs), "odd": mkfs.MinSize(fs) + 77*mib + 4096} {
			t.Run(string(fs)+"/"+name, func(t *testing.T) {
				path := mkfstest.File(t, pool, string(fs)+name, size)
				mkfstest.Make(t, path, fs)
				if fs == mkfs.Ext4 && mkfstest.Allocated(t, path) > 2*mib {
					t.Errorf("a new ext4 takes %d bytes of disk, want well under 2 MiB", mkfstest.Allocated(t, path))
				}
				v := mkfstest.Mount(t, path, fs)
				if !v.Device.DirectIO {
					t.Errorf("%s is not attached with direct I/O", v.Device.Path)
				}
				want := writeFile(t, v.Dir, "data", mib)
				v.Unmount(t)
				clone := path + "-clone"
				mkfstest.Reflink(t, path, clone)
				testkit.Must(t, (mkfs.Tools{}).NewUUID(t.Context(), clone, fs))
				for _, again := range []mkfstest.Volume{mkfstest.Mount(t, path, fs), mkfstest.Mount(t, clone, fs)} {
					if !again.Device.DirectIO {
						t.Errorf("after the reflink %s is not attached with direct I/O", again.Device.Path)
					}
					checkFile(t, again.Dir, "data", want)
					writeFile(t, again.Dir, "more", mib)
				}
			})
		}
	}
}

func TestThickStaysThick(t *testing.T) {
	pool := mkfstest.Pool(t, 4096*mib)
	for _, where := range []string{pool, t.TempDir()} {
		for _, fs := range mkfs.Types() {
			size := mkfs.MinSize(fs) + 64*mib
			path := mkfstest.File(t, where, "thick-"+string(fs), size)
			mkfstest.Fallocate(t, path, size)
			mkfstest.Make(t, path, fs)
			if got := mkfstest.Allocated(t, path); got < size {
				t.Errorf("%s in %s: %d of %d bytes are allocated after mkfs", fs, where, got, size)
			}
			v := mkfstest.Mount(t, path, fs)
			checkFile(t, v.Dir, "data", writeFile(t, v.Dir, "data", mib))
			v.Unmount(t)
			if got := mkfstest.Allocated(t, path); got < size {
				t.Errorf("%s in %s: %d of %d bytes are allocated after a mount", fs, where, got, size)
			}
			testkit.Must(t, os.Remove(path))
		}
	}
}

// The tools fail below MinSize; for btrfs the limit is the kernel's, when the
// file system grows (growfs).
func TestMinSizeIsMeasured(t *testing.T) {
	for _, fs := range mkfs.Types() {
		path := mkfstest.File(t, t.TempDir(), "small", mkfs.MinSize(fs)-4096)
		err := mkfs.Make(t.Context(), mkfs.Request{Path: path, Type: fs})
		if !errors.Is(err, errs.OutOfRange) {
			t.Errorf("%s with 4096 bytes less than the minimum: %v, want OutOfRange", fs, err)
		}
		if mkfstest.Allocated(t, path) != 0 {
			t.Errorf("%s: the file was written to", fs)
		}
		args := map[mkfs.Type][]string{
			mkfs.Ext4: {"mkfs.ext4", "-q", "-b", "4096", path},
			mkfs.XFS:  {"mkfs.xfs", "-q", "-K", "-s", "size=4096", path},
		}[fs]
		if args == nil {
			continue
		}
		out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
		if err == nil && !bytes.Contains(out, []byte("too small for a journal")) {
			t.Errorf("%s: the tool itself makes less than MinSize: MinSize can be lower", fs)
		}
	}
}

func TestMakeSetsLabelAndUUID(t *testing.T) {
	for _, fs := range mkfs.Types() {
		path := mkfstest.File(t, t.TempDir(), "-q", mkfs.MinSize(fs))
		want := mkfs.Info{Type: fs, UUID: uuid.NewString(), Label: "-L label", Size: mkfs.MinSize(fs)}
		testkit.Must(t, mkfs.Make(t.Context(), mkfs.Request{Path: path, Type: fs, Label: want.Label, UUID: want.UUID}))
		if got := probe(t, path); got != want {
			t.Errorf("probe says %+v, want %+v", got, want)
		}
	}
}

func TestMakeRefusesWhatIsNotBlank(t *testing.T) {
	const size = 310 * mib
	for _, fs := range mkfs.Types() {
		for name, put := range map[string]func(f *os.File){
			"one byte at the end": func(f *os.File) { f.WriteAt([]byte{1}, size-1) },
			"a partition table":   func(f *os.File) { f.WriteAt([]byte("EFI PART"), 512) },
			"far text":            func(f *os.File) { f.WriteAt([]byte("precious"), 200*mib+123) },
		} {
			path := mkfstest.File(t, t.TempDir(), "used", size)
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			testkit.Must(t, err)
			put(f)
			before := mkfstest.Allocated(t, path)
			err = mkfs.Make(t.Context(), mkfs.Request{Path: path, Type: fs})
			if !errors.Is(err, mkfs.ErrNotBlank) || !errors.Is(err, errs.Precondition) {
				t.Errorf("%s over %s: %v, want ErrNotBlank", fs, name, err)
			}
			if info := probe(t, path); info.Type != "" || mkfstest.Allocated(t, path) != before {
				t.Errorf("%s over %s: the file was changed: %+v", fs, name, info)
			}
			f.Close()
		}
	}
}

func TestMakeSaysWhatIsThere(t *testing.T) {
	path := mkfstest.File(t, t.TempDir(), "used", 310*mib)
	mkfstest.Make(t, path, mkfs.Ext4)
	err := mkfs.Make(t.Context(), mkfs.Request{Path: path, Type: mkfs.XFS})
	if !errors.Is(err, mkfs.ErrNotBlank) || !strings.Contains(err.Error(), "ext4, UUID "+probe(t, path).UUID) {
		t.Errorf("a second mkfs: %v, want ErrNotBlank that names the ext4", err)
	}
}

// Blank means that a file reads as zeros, not that it has no blocks.
func TestWrittenZerosAreBlank(t *testing.T) {
	path := filepath.Join(t.TempDir(), "zeros")
	testkit.Must(t, os.WriteFile(path, make([]byte, 9*mib), 0o600))
	mkfstest.Make(t, path, mkfs.Ext4)
}

func TestMakeRefusesBadRequests(t *testing.T) {
	path := mkfstest.File(t, t.TempDir(), "volume", 310*mib)
	good := mkfs.Request{Path: path, Type: mkfs.XFS}
	for name, change := range map[string]func(*mkfs.Request){
		"no type":        func(r *mkfs.Request) { r.Type = "" },
		"another type":   func(r *mkfs.Request) { r.Type = "vfat" },
		"relative path":  func(r *mkfs.Request) { r.Path = "volume" },
		"zero in path":   func(r *mkfs.Request) { r.Path += "\x00" },
		"long label":     func(r *mkfs.Request) { r.Label = "thirteenbytes" },
		"label of lines": func(r *mkfs.Request) { r.Label = "a\nb" },
		"bad UUID":       func(r *mkfs.Request) { r.UUID = "generate" },
		"nil UUID":       func(r *mkfs.Request) { r.UUID = uuid.Nil.String() },
		"upper UUID":     func(r *mkfs.Request) { r.UUID = strings.ToUpper(uuid.NewString()) },
	} {
		r := good
		change(&r)
		if err := mkfs.Make(t.Context(), r); !errors.Is(err, errs.Invalid) {
			t.Errorf("%s: %v, want Invalid", name, err)
		}
	}
	if mkfstest.Allocated(t, path) != 0 {
		t.Error("a refused request wrote to the file")
	}
}

// The bits are those that Linux 5.12 supports.
func TestFeaturesArePinned(t *testing.T) {
	heads := map[mkfs.Type][]byte{}
	for _, fs := range mkfs.Types() {
		path := mkfstest.File(t, t.TempDir(), "volume", mkfs.MinSize(fs))
		mkfstest.Make(t, path, fs)
		f := testkit.Value(os.Open(path))(t)
		defer f.Close()
		heads[fs] = make([]byte, 128<<10)
		testkit.Value(f.ReadAt(heads[fs], 0))(t)
	}
	le, be := binary.LittleEndian, binary.BigEndian
	ext4, xfs, btrfs := heads[mkfs.Ext4][1024:], heads[mkfs.XFS], heads[mkfs.Btrfs][64<<10:]
	for _, c := range []struct {
		what      string
		got, want uint64
	}{
		{"ext4 compat", uint64(le.Uint32(ext4[0x5c:])), 0x3c},
		{"ext4 incompat", uint64(le.Uint32(ext4[0x60:])), 0x2c2},
		{"ext4 ro_compat", uint64(le.Uint32(ext4[0x64:])), 0x46b},
		{"xfs ro_compat", uint64(be.Uint32(xfs[212:])), 0xd},
		{"xfs incompat", uint64(be.Uint32(xfs[216:])), 0xb},
		{"xfs sector size", uint64(be.Uint16(xfs[102:])), 4096},
		{"btrfs compat_ro", le.Uint64(btrfs[0xb4:]), 0x3},
		{"btrfs incompat", le.Uint64(btrfs[0xbc:]), 0x341},
	} {
		if c.got != c.want {
			t.Errorf("%s is %#x, want %#x", c.what, c.got, c.want)
		}
	}
}

func TestFullPoolIsExhausted(t *testing.T) {
	pool := mkfstest.New(t, mkfs.Ext4, 16*mib).Dir
	path := mkfstest.File(t, pool, "volume", 310*mib)
	testkit.WantError(t, "mkfs in a full pool", mkfs.Make(t.Context(), mkfs.Request{Path: path, Type: mkfs.XFS}), errs.Exhausted)
}

func probe(t *testing.T, path string) mkfs.Info {
	t.Helper()
	f := testkit.Value(os.Open(path))(t)
	defer f.Close()
	return testkit.Value(mkfs.Probe(f))(t)
}

// writeFile writes random bytes durably.
func writeFile(t *testing.T, dir, name string, size int) []byte {
	t.Helper()
	data := make([]byte, size)
	for i := 0; i+8 <= size; i += 8 {
		binary.LittleEndian.PutUint64(data[i:], uint64(i)*0x9e3779b97f4a7c15+uint64(len(name)))
	}
	f := testkit.Value(os.Create(filepath.Join(dir, name)))(t)
	defer f.Close()
	testkit.Value(f.Write(data))(t)
	testkit.Must(t, f.Sync())
	return data
}

func checkFile(t *testing.T, dir, name string, want []byte) {
	t.Helper()
	if got := testkit.Value(os.ReadFile(filepath.Join(dir, name)))(t); !bytes.Equal(got, want) {
		t.Errorf("%s/%s does not hold what was written", dir, name)
	}
}

// growfs tests that the kernel and resize2fs agree.
func TestIsFull(t *testing.T) {
	const group = 80 * mib // a fourth of the XFS below
	for fs, sizes := range map[mkfs.Type]map[int64]bool{
		mkfs.Ext4:  {320 * mib: true, 321 * mib: true, 321*mib + 4096: false, 100 * mib: true, 1 << 40: false},
		mkfs.XFS:   {320 * mib: true, 320*mib + 4095: true, 320*mib + 63*4096: true, 320*mib + 64*4096: false, 320*mib + group: false},
		mkfs.Btrfs: {320 * mib: true, 320*mib + 4095: true, 320*mib + 4096: false, 1 << 40: false},
	} {
		path := mkfstest.File(t, t.TempDir(), "volume", 320*mib)
		mkfstest.Make(t, path, fs)
		f := testkit.Value(os.Open(path))(t)
		defer f.Close()
		for size, want := range sizes {
			if got, err := mkfs.IsFull(f, size); err != nil || got != want {
				t.Errorf("%s of 320 MiB on %d bytes: %t, %v; want %t", fs, size, got, err, want)
			}
		}
	}
	testkit.WantError(t, "an empty device", testkit.Err(mkfs.IsFull(bytes.NewReader(make([]byte, mib)), mib)), errs.Precondition)
}

package mkfs_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

// head returns the beginning of a file system.
func head(t testing.TB, fs mkfs.Type) []byte {
	t.Helper()
	path := mkfstest.File(t, t.TempDir(), string(fs), mkfs.MinSize(fs))
	mkfstest.Make(t, path, fs)
	return readAt(t, path, 0, 128<<10)
}

func TestProbeNeverTrustsADamagedSuperblock(t *testing.T) {
	step := 5 // reaches each byte of the fields of 2, 4, 8 or 16
	if soak.Enabled {
		step = 1
	}
	for fs, super := range map[mkfs.Type]struct{ from, to int }{
		mkfs.Ext4:  {1024, 2048},
		mkfs.XFS:   {0, 4096},
		mkfs.Btrfs: {64<<10 + 32, 68 << 10}, // after space for a longer checksum
	} {
		torn := head(t, fs)
		if want, err := mkfs.Probe(bytes.NewReader(torn)); err != nil || want.Type != fs {
			t.Fatalf("%s: probe says %+v, %v", fs, want, err)
		}
		for at := super.from; at < super.to; at += step {
			torn[at] ^= 0x10
			got, err := mkfs.Probe(bytes.NewReader(torn))
			torn[at] ^= 0x10
			if err == nil && got.Type != "" {
				t.Fatalf("%s: with a bit of byte %d turned over it is still %+v", fs, at, got)
			}
			if err != nil && !errors.Is(err, mkfs.ErrDamaged) {
				t.Fatalf("%s: %v, want ErrDamaged", fs, err)
			}
		}
	}
}

func TestProbeNamesWhatIsForeign(t *testing.T) {
	marks := map[string]map[int]string{
		"a LUKS volume":           {0: "LUKS\xba\xbe\x00\x02"},
		"a GPT partition table":   {446 + 4: "\xee", 510: "\x55\xaa", 512: "EFI PART"},
		"an MBR partition table":  {446: "\x80", 446 + 4: "\x83", 510: "\x55\xaa"},
		"swap space":              {4086: "SWAPSPACE2"},
		"an LVM physical volume":  {512: "LABELONE"},
		"a member of an MD array": {4096: "\xfc\x4e\x2b\xa9"},
		"NTFS":                    {3: "NTFS    ", 446: "code", 510: "\x55\xaa"},
		"FAT":                     {54: "FAT16   ", 446: "code", 510: "\x55\xaa"},
		"ISO 9660":                {32769: "CD001"},
		"a Ceph BlueStore device": {0: "bluestore block device\n"},
		"":                        {446: "code without a table", 510: "\x55\xaa"},
	}
	for want, put := range marks {
		disk := make([]byte, 128<<10)
		for at, mark := range put {
			copy(disk[at:], mark)
		}
		if got, err := mkfs.Probe(bytes.NewReader(disk)); err != nil || got != (mkfs.Info{Foreign: want}) {
			t.Errorf("probe says %+v, %v; want %q", got, err, want)
		}
	}
}

func TestProbeKnowsRealForeigners(t *testing.T) {
	for want, args := range map[string][]string{
		"swap space": {"mkswap"},
		"ext2":       {"mkfs.ext2", "-q"},
		"ext3":       {"mkfs.ext3", "-q"},
	} {
		path := mkfstest.File(t, t.TempDir(), "foreign", 16*mib)
		testkit.Run(t, args[0], append(args[1:], path)...)
		if got := probe(t, path); got.Type != "" || got.Foreign != want {
			t.Errorf("%v: probe says %+v, want %q", args, got, want)
		}
	}
}

func TestProbeOfShortAndBrokenDevices(t *testing.T) {
	for _, disk := range []string{"", "XFSB", "LUKS\xba\xbe"} {
		got, err := mkfs.Probe(strings.NewReader(disk))
		if got.Type != "" || (err != nil && !errors.Is(err, mkfs.ErrDamaged)) {
			t.Errorf("%q: %+v, %v", disk, got, err)
		}
	}
	testkit.WantError(t, "an unreadable device", testkit.Err(mkfs.Probe(brokenDevice{})), errBroken)
}

var errBroken = errors.New("input/output error")

type brokenDevice struct{}

func (brokenDevice) ReadAt(p []byte, _ int64) (int, error) { return min(512, len(p)), errBroken }

var _ io.ReaderAt = brokenDevice{}

// The bytes are at the offsets of superblocks.
func FuzzProbe(f *testing.F) {
	places := []int{0, 1024, 64 << 10}
	for i, fs := range []mkfs.Type{mkfs.XFS, mkfs.Ext4, mkfs.Btrfs} {
		f.Add(head(f, fs)[places[i]:][:1024], uint8(i))
	}
	disk := make([]byte, 68<<10)
	f.Fuzz(func(t *testing.T, super []byte, place uint8) {
		clear(disk)
		copy(disk[places[int(place)%len(places)]:], super)
		info, err := mkfs.Probe(bytes.NewReader(disk))
		switch {
		case err != nil && info != (mkfs.Info{}):
			t.Errorf("%+v together with %v", info, err)
		case info.Type != "" && (info.Size <= 0 || len(info.UUID) != 36 || info.Foreign != ""):
			t.Errorf("%+v is no file system", info)
		}
	})
}

// Copies, frozen or not, contain all synced data, including data that is only
// in the log.
func TestCopiesMountBesideTheirOriginal(t *testing.T) {
	pool := mkfstest.Pool(t, 2048*mib)
	for _, fs := range mkfs.Types() {
		t.Run(string(fs), func(t *testing.T) {
			path := mkfstest.File(t, pool, string(fs), 320*mib)
			mkfstest.Make(t, path, fs)
			v := mkfstest.Mount(t, path, fs)
			first := writeFile(t, v.Dir, "committed", 4*mib)
			syncDir(t, v.Dir)
			second := writeFile(t, v.Dir, "in-the-log", 256<<10)
			running := path + "-running"
			mkfstest.Reflink(t, path, running)
			if fs == mkfs.Btrfs && logRoot(t, running) == 0 {
				t.Fatal("the copy has no log tree: this test does not test what it is for")
			}
			thaw := freeze(t, v.Dir)
			frozen := path + "-frozen"
			mkfstest.Reflink(t, path, frozen)
			thaw()
			original := probe(t, path)
			for _, copied := range []string{running, frozen} {
				testkit.Must(t, (mkfs.Tools{}).NewUUID(t.Context(), copied, fs))
				got := probe(t, copied)
				if changed := got.UUID != original.UUID; changed != (fs == mkfs.Btrfs) {
					t.Errorf("the UUID of %s went from %s to %s", copied, original.UUID, got.UUID)
				}
				twin := mkfstest.Mount(t, copied, fs)
				checkFile(t, twin.Dir, "committed", first)
				checkFile(t, twin.Dir, "in-the-log", second)
				writeFile(t, twin.Dir, "own-of-the-twin", mib)
				if _, err := os.Stat(filepath.Join(v.Dir, "own-of-the-twin")); err == nil {
					t.Error("what was mounted as the twin is the original")
				}
			}
			checkFile(t, v.Dir, "committed", first)
			writeFile(t, v.Dir, "still-writable", mib)
		})
	}
}

// A second change keeps the metadata_uuid.
func TestCopiesOfCopies(t *testing.T) {
	pool := mkfstest.Pool(t, 1024*mib)
	path := mkfstest.File(t, pool, "volume", 256*mib)
	mkfstest.Make(t, path, mkfs.Btrfs)
	seen := map[string]bool{probe(t, path).UUID: true}
	var mounted []mkfstest.Volume
	for _, name := range []string{"1", "12", "123"} {
		next := filepath.Join(pool, name)
		mkfstest.Reflink(t, path, next)
		for range 2 { // a repeat, as after a crash
			testkit.Must(t, (mkfs.Tools{}).NewUUID(t.Context(), next, mkfs.Btrfs))
		}
		if id := probe(t, next).UUID; seen[id] {
			t.Fatalf("UUID %s again", id)
		} else {
			seen[id] = true
		}
		v := mkfstest.Mount(t, next, mkfs.Btrfs)
		writeFile(t, v.Dir, name, mib)
		syncDir(t, v.Dir)
		mounted = append(mounted, v)
		path = next
	}
	for i, v := range mounted {
		if entries, err := os.ReadDir(v.Dir); err != nil || len(entries) != i+1 {
			t.Errorf("copy %d holds %v, %v; want %d files", i, entries, err, i+1)
		}
	}
}

func TestNewUUIDRefusesWhatItCannotChange(t *testing.T) {
	pool := t.TempDir()
	empty := mkfstest.File(t, pool, "empty", 256*mib)
	testkit.WantError(t, "on an empty file", (mkfs.Tools{}).NewUUID(t.Context(), empty, mkfs.Btrfs), mkfs.ErrDamaged)
	testkit.WantError(t, "of an unknown type", (mkfs.Tools{}).NewUUID(t.Context(), empty, "vfat"), errs.Invalid)
	testkit.WantError(t, "of a missing file", (mkfs.Tools{}).NewUUID(t.Context(), filepath.Join(pool, "missing"), mkfs.Btrfs), os.ErrNotExist)
	torn := mkfstest.File(t, pool, "torn", 256*mib)
	mkfstest.Make(t, torn, mkfs.Btrfs)
	overwrite(t, torn, 64<<10+300, []byte("!"))
	testkit.WantError(t, "with a wrong checksum", (mkfs.Tools{}).NewUUID(t.Context(), torn, mkfs.Btrfs), mkfs.ErrDamaged)
}

func logRoot(t *testing.T, path string) byte {
	t.Helper()
	b := make([]byte, 8)
	f := testkit.Value(os.Open(path))(t)
	defer f.Close()
	testkit.Value(f.ReadAt(b, 64<<10+0x60))(t)
	var sum byte
	for _, x := range b {
		sum |= x
	}
	return sum
}

func overwrite(t *testing.T, path string, at int64, b []byte) {
	t.Helper()
	f := testkit.Value(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer f.Close()
	testkit.Value(f.WriteAt(b, at))(t)
}

func syncDir(t *testing.T, dir string) {
	t.Helper()
	d := testkit.Value(os.Open(dir))(t)
	defer d.Close()
	testkit.Must(t, unix.Syncfs(int(d.Fd())))
}

func freeze(t *testing.T, dir string) (thaw func()) {
	t.Helper()
	const fifreeze, fithaw = 0xc0045877, 0xc0045878
	d := testkit.Value(os.Open(dir))(t)
	if err := unix.IoctlSetInt(int(d.Fd()), fifreeze, 0); err != nil {
		t.Fatalf("freeze: %v", err)
	}
	frozen := true
	thaw = func() {
		if frozen {
			if err := unix.IoctlSetInt(int(d.Fd()), fithaw, 0); err != nil {
				t.Errorf("thaw: %v", err)
			}
			d.Close()
		}
		frozen = false
	}
	t.Cleanup(thaw)
	return thaw
}

func readAt(t testing.TB, path string, at int64, n int) []byte {
	t.Helper()
	f := testkit.Value(os.Open(path))(t)
	defer f.Close()
	b := make([]byte, n)
	testkit.Value(f.ReadAt(b, at))(t)
	return b
}

func mkfifo(path string) error { return unix.Mkfifo(path, 0o600) }

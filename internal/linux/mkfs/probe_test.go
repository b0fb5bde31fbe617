package mkfs_test

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/soak"
)

// head makes a file system and returns the beginning of its file.
func head(t testing.TB, fs mkfs.Type) []byte {
	t.Helper()
	path := mkfstest.File(t, t.TempDir(), string(fs), mkfs.MinSize(fs))
	mkfstest.Make(t, path, fs)
	return readAt(t, path, 0, 128<<10)
}

func TestProbeNeverTrustsADamagedSuperblock(t *testing.T) {
	step := 5 // comes to each byte of the fields, which have 2, 4, 8 or 16
	if soak.Enabled {
		step = 1
	}
	for fs, super := range map[mkfs.Type]struct{ from, to int }{
		mkfs.Ext4:  {1024, 2048},
		mkfs.XFS:   {0, 4096},
		mkfs.Btrfs: {64<<10 + 32, 68 << 10}, // before it is the checksum and room for a longer one
	} {
		torn := head(t, fs)
		want, err := mkfs.Probe(bytes.NewReader(torn))
		if err != nil || want.Type != fs {
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

// TestProbeKnowsRealForeigners asks the tools that make them.
func TestProbeKnowsRealForeigners(t *testing.T) {
	for want, args := range map[string][]string{
		"swap space": {"mkswap"},
		"ext2":       {"mkfs.ext2", "-q"},
		"ext3":       {"mkfs.ext3", "-q"},
	} {
		path := mkfstest.File(t, t.TempDir(), "foreign", 16*mib)
		if out, err := exec.CommandContext(t.Context(), args[0], append(args[1:], path)...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v %s", args, err, out)
		}
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
	if _, err := mkfs.Probe(brokenDevice{}); !errors.Is(err, errBroken) {
		t.Errorf("an unreadable device: %v, want its error: it is not an empty one", err)
	}
}

var errBroken = errors.New("input/output error")

// brokenDevice reads a little and then fails.
type brokenDevice struct{}

func (brokenDevice) ReadAt(p []byte, _ int64) (int, error) { return min(512, len(p)), errBroken }

var _ io.ReaderAt = brokenDevice{}

// FuzzProbe puts the bytes where a superblock lies.
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

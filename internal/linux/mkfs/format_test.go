package mkfs_test

import (
	"crypto/rand"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs/mkfstest"
	"github.com/cleatproject/cleat/test/soak"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	ownUUID   = "0f0e0d0c-0b0a-4908-8706-050403020100"
	otherUUID = "1f0e0d0c-0b0a-4908-8706-050403020100"
)

// blankDevice is a file and a request to format it through a loop device.
func blankDevice(t *testing.T, fs mkfs.Type) (path string, d *mkfstest.Device, r mkfs.FormatRequest) {
	t.Helper()
	path = mkfstest.File(t, t.TempDir(), "volume", mkfs.MinSize(fs)+64*mib)
	d = mkfstest.Attach(t, path)
	return path, d, mkfs.FormatRequest{Device: d.Path, Type: fs, UUID: ownUUID, Scratch: filepath.Join(t.TempDir(), "image")}
}

func wantFormatted(t *testing.T, path string, d *mkfstest.Device, r mkfs.FormatRequest) {
	t.Helper()
	d.Detach(t)
	f := testkit.Open(os.Open(path))(t)
	info := testkit.Value(mkfs.Probe(f))(t)
	if info.Type != r.Type || info.UUID != r.UUID {
		t.Errorf("formatted: %+v, want %s %s", info, r.Type, r.UUID)
	}
	v := mkfstest.Mount(t, path, r.Type)
	checkFile(t, v.Dir, "data", writeFile(t, v.Dir, "data", mib))
	v.Unmount(t)
	if r.Type == mkfs.Ext4 {
		if out, err := exec.Command("/usr/sbin/e2fsck", "-fn", path).CombinedOutput(); err != nil {
			t.Errorf("e2fsck: %v\n%s", err, out)
		}
	}
	if _, err := os.Stat(r.Scratch); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the scratch file: %v", err)
	}
}

func TestFormat(t *testing.T) {
	for _, fs := range mkfs.Types() {
		t.Run(string(fs), func(t *testing.T) {
			path, d, r := blankDevice(t, fs)
			testkit.Must(t, mkfs.Format(t.Context(), r))
			if n := mkfstest.Allocated(t, path); n > 16*mib {
				t.Errorf("a new %s takes %d bytes of storage", fs, n)
			}
			if err := mkfs.Format(t.Context(), r); !errors.Is(err, mkfs.ErrNotBlank) {
				t.Errorf("again: %v", err)
			}
			wantFormatted(t, path, d, r)
		})
	}
}

// After a kill at any point a repeat completes the file system.
func TestFormatAfterAKill(t *testing.T) {
	program := testkit.Build(t, "./internal/linux/mkfs/mkfstest/format", "-tags", "crashpoints")
	for i, fs := range mkfs.Types() {
		points := []string{"copied", "complete", "made", "marked"}
		if i > 0 {
			points = soak.Pick(2, points) // up to the copy no step knows the type
		}
		for _, point := range points {
			t.Run(string(fs)+"/"+point, func(t *testing.T) {
				path, d, r := blankDevice(t, fs)
				c := exec.CommandContext(t.Context(), program, r.Device, string(r.Type), r.UUID, r.Scratch)
				c.Env = append(os.Environ(), "CLEAT_CRASHPOINT=stage.formatting/"+point+"=1")
				if out, err := c.CombinedOutput(); err == nil || err.Error() != "signal: killed" {
					t.Fatalf("the point was not reached: %v\n%s", err, out)
				}
				dev := testkit.Value(os.Open(r.Device))(t)
				info := testkit.Value(mkfs.Probe(dev))(t)
				testkit.Must(t, dev.Close())
				if complete := info.Type != ""; complete != (point == "complete") {
					t.Errorf("after the kill: %+v", info)
				}
				err := mkfs.Format(t.Context(), r)
				if point == "complete" {
					testkit.Must(t, os.Remove(r.Scratch))
					if !errors.Is(err, mkfs.ErrNotBlank) {
						t.Errorf("a complete file system is formatted again: %v", err)
					}
				} else if err != nil {
					t.Fatal(err)
				}
				wantFormatted(t, path, d, r)
			})
		}
	}
}

// What a killed call wrote, whatever it was, is gone after a repeat: ext4
// assumes zeros where its inode tables and journal are.
func TestFormatOverAnIncompleteOne(t *testing.T) {
	path, d, r := blankDevice(t, mkfs.Ext4)
	size := mkfs.MinSize(mkfs.Ext4) + 64*mib
	noise := make([]byte, size)
	testkit.Value(rand.Read(noise))(t)
	clear(noise[:4096])
	copy(noise, "cleat: mkfs is not complete, UUID "+otherUUID+"\n")
	testkit.Must(t, os.WriteFile(r.Device, noise, 0o600))
	if err := mkfs.Format(t.Context(), r); !errors.Is(err, mkfs.ErrNotBlank) {
		t.Errorf("of another volume: %v", err)
	}
	copy(noise, "cleat: mkfs is not complete, UUID "+ownUUID+"\n")
	testkit.Must(t, os.WriteFile(r.Device, noise, 0o600))
	testkit.Must(t, mkfs.Format(t.Context(), r))
	if n := mkfstest.Allocated(t, path); n > 16*mib {
		t.Errorf("%d bytes of the old content are left", n)
	}
	wantFormatted(t, path, d, r)
}

// One byte in any place that is checked keeps a device from being formatted.
func TestFormatRefusesContent(t *testing.T) {
	path, _, r := blankDevice(t, mkfs.XFS)
	size := mkfs.MinSize(mkfs.XFS) + 64*mib
	dev := testkit.Value(os.OpenFile(r.Device, os.O_RDWR, 0))(t)
	defer dev.Close()
	group := size / 4
	for name, at := range map[string]int64{
		"first byte": 0, "first 4 MiB": 4*mib - 1, "last 4 MiB": size - 4*mib, "last byte": size - 1,
		"btrfs copy": 64*mib + 64, "ext4 group 1": 128*mib + 1024 + 56, "ext4 group of 1 KiB blocks": 8193 << 10,
		"XFS group 1": group, "XFS group 3": 3 * group, "sample": size / 1024 * 700,
	} {
		testkit.Value(dev.WriteAt([]byte{1}, at))(t)
		testkit.Must(t, dev.Sync())
		before := mkfstest.Allocated(t, path)
		err := mkfs.Format(t.Context(), r)
		if !errors.Is(err, mkfs.ErrNotBlank) || !errors.Is(err, errs.Precondition) {
			t.Errorf("%s: %v, want ErrNotBlank", name, err)
		}
		if mkfstest.Allocated(t, path) != before {
			t.Errorf("%s: the device was changed", name)
		}
		testkit.Value(dev.WriteAt([]byte{0}, at))(t)
	}
	testkit.Must(t, dev.Sync())
	testkit.Must(t, mkfs.Format(t.Context(), r))
}

func TestFormatWithoutATool(t *testing.T) {
	path, _, r := blankDevice(t, mkfs.Ext4)
	if err := (mkfs.Tools{Path: t.TempDir()}).Format(t.Context(), r); !errors.Is(err, mkfs.ErrNoTool) {
		t.Errorf("got %v", err)
	}
	if mkfstest.Allocated(t, path) != 0 {
		t.Error("the device was changed")
	}
	if _, err := os.Stat(r.Scratch); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the scratch file: %v", err)
	}
}

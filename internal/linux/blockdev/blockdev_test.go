package blockdev

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestRdev(t *testing.T) {
	dir := t.TempDir()
	node := filepath.Join(dir, "node")
	// A minor of more than 8 bits takes two places in the number.
	testkit.Must(t, unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(259, 70000))))
	if major, minor, err := Rdev(node); err != nil || major != 259 || minor != 70000 {
		t.Errorf("Rdev: %d:%d (err %v), want 259:70000", major, minor, err)
	}
	link := filepath.Join(dir, "link")
	testkit.Must(t, os.Symlink(node, link))
	for path, want := range map[string]error{
		dir: ErrNotBlock, "/dev/null": ErrNotBlock, link: ErrNotBlock, filepath.Join(dir, "nothing"): fs.ErrNotExist,
	} {
		if _, _, err := Rdev(path); !errors.Is(err, want) {
			t.Errorf("Rdev(%s): err %v, want %v", path, err, want)
		}
	}
}

func TestSizeAndRdevOfAFile(t *testing.T) {
	f := testkit.Open(os.Create(filepath.Join(t.TempDir(), "file")))(t)
	testkit.Must(t, f.Truncate(12345))
	if size, err := Size(f); err != nil || size != 12345 {
		t.Errorf("size %d (err %v), want 12345", size, err)
	}
	if _, _, err := RdevOf(f); !errors.Is(err, ErrNotBlock) {
		t.Errorf("RdevOf: err %v, want %v", err, ErrNotBlock)
	}
}

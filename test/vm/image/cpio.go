package image

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
)

// Tree is the contents of an initramfs by path, without a leading slash. Parent
// directories are implied.
type Tree map[string]Entry

// Entry is one file: a host file if Host is set, a symbolic link if Link is
// set, else a file with Data.
type Entry struct {
	Host string
	Link string
	Data []byte
	Mode os.FileMode // permission bits of a file
}

// WriteArchive writes a tree as a cpio archive that the kernel can unpack
// (Documentation/driver-api/early-userspace/buffer-format.rst). Archives can be
// concatenated; later files replace earlier ones.
func WriteArchive(w io.Writer, tree Tree) error {
	a := &archive{w: w}
	made := map[string]bool{".": true}
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for name := range tree {
			if !yield(name) {
				return
			}
		}
	}) {
		if err := a.directories(path.Dir(name), made); err != nil {
			return err
		}
		if err := a.entry(name, tree[name]); err != nil {
			return fmt.Errorf("initramfs: %s: %w", name, err)
		}
	}
	return a.end()
}

// Modes of inodes, from stat(2).
const (
	typeDir  = 0o040000
	typeFile = 0o100000
	typeLink = 0o120000
)

type archive struct {
	w     io.Writer
	inode int
	size  int64
}

func (a *archive) directories(dir string, made map[string]bool) error {
	if made[dir] {
		return nil
	}
	if err := a.directories(path.Dir(dir), made); err != nil {
		return err
	}
	made[dir] = true
	return a.file(dir, typeDir|0o755, 0, strings.NewReader(""))
}

func (a *archive) entry(name string, e Entry) error {
	switch {
	case e.Link != "":
		return a.file(name, typeLink|0o777, int64(len(e.Link)), strings.NewReader(e.Link))
	case e.Host == "":
		return a.file(name, typeFile|uint32(e.Mode.Perm()), int64(len(e.Data)), strings.NewReader(string(e.Data)))
	}
	f, err := os.Open(e.Host)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	return a.file(name, typeFile|uint32(e.Mode.Perm()), info.Size(), f)
}

// file writes a header, the name and the content, each padded to four bytes.
func (a *archive) file(name string, mode uint32, size int64, content io.Reader) error {
	if size >= 1<<32 {
		return fmt.Errorf("size %d exceeds the limit of cpio, 4 GiB", size)
	}
	a.inode++
	header := fmt.Sprintf("070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%s\x00",
		a.inode, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(name)+1, 0, name)
	if err := a.write(strings.NewReader(header), int64(len(header))); err != nil {
		return err
	}
	return a.write(content, size)
}

func (a *archive) write(content io.Reader, size int64) error {
	if _, err := io.CopyN(a.w, content, size); err != nil {
		return err
	}
	a.size += size
	return a.pad(4)
}

func (a *archive) pad(to int64) error {
	n := (to - a.size%to) % to
	a.size += n
	_, err := a.w.Write(make([]byte, n))
	return err
}

// end writes the trailer and pads the last block.
func (a *archive) end() error {
	a.inode = 0
	if err := a.file("TRAILER!!!", 0, 0, strings.NewReader("")); err != nil {
		return err
	}
	return a.pad(512)
}

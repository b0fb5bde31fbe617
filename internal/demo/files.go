package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// tree is what the files of a volume must hold: their checksums by name.
type tree map[string]sum

type sum struct {
	size int64
	hash [sha256.Size]byte
}

// bytes is how much all files hold.
func (t tree) bytes() (n int64) {
	for _, s := range t {
		n += s.size
	}
	return n
}

// random is a stream of bytes that no file system can make smaller, and that a
// seed gives again.
func random(seed byte) io.Reader { return rand.NewChaCha8([32]byte{seed}) }

// writeTree writes count files of random data below dir, durably. Their sizes
// differ and are no multiples of anything.
func writeTree(ctx context.Context, dir string, seed byte, count int, total int64) (tree, error) {
	t := tree{}
	source := random(seed)
	for i := range count {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		name := filepath.Join(fmt.Sprintf("part-%d", i%3), fmt.Sprintf("file-%02d", i))
		size := total*int64(2*i+1)/int64(count*count) + int64(i)
		s, err := writeFile(filepath.Join(dir, name), source, size)
		if err != nil {
			return nil, err
		}
		t[name] = s
	}
	return t, syncAll(dir)
}

func writeFile(path string, source io.Reader, size int64) (sum, error) {
	s := sum{size: size}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return s, err
	}
	f, err := os.Create(path)
	if err != nil {
		return s, err
	}
	hash := sha256.New()
	_, err = io.CopyN(io.MultiWriter(f, hash), source, size)
	hash.Sum(s.hash[:0])
	return s, errors.Join(err, f.Sync(), f.Close())
}

// verify reads every file from the disk and compares; a file that is missing,
// differs or was never written is an error that names it.
func (t tree) verify(ctx context.Context, dir string) error {
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		want := t[name]
		got, err := sumOf(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s does not hold what was written: %d bytes with checksum %x, want %d bytes with %x",
				filepath.Join(dir, name), got.size, got.hash[:6], want.size, want.hash[:6])
		}
	}
	names, err := filesIn(dir)
	if err != nil {
		return err
	}
	if len(names) != len(t) {
		return fmt.Errorf("%s holds %d files, want %d", dir, len(names), len(t))
	}
	return nil
}

func sumOf(path string) (sum, error) {
	var s sum
	f, err := os.Open(path)
	if err != nil {
		return s, err
	}
	defer f.Close()
	// What is compared is the disk, not what is still in memory.
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return s, fmt.Errorf("fadvise %s: %w", path, err)
	}
	hash := sha256.New()
	s.size, err = io.Copy(hash, f)
	hash.Sum(s.hash[:0])
	return s, err
}

// filesIn lists the regular files below dir, relative to it.
func filesIn(dir string) ([]string, error) {
	var names []string
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			name, relErr := filepath.Rel(dir, path)
			names, err = append(names, name), relErr
		}
		return err
	})
	return names, err
}

// removeAll empties dir and makes that durable.
func removeAll(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	return syncAll(dir)
}

// syncAll writes out the file system that dir is on.
func syncAll(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("syncfs %s: %w", dir, err)
	}
	return nil
}

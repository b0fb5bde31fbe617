package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/retry"
)

// tree holds the checksums of the files of a volume, by name.
type tree map[string][sha256.Size]byte

// randomBytes returns incompressible bytes, the same for the same seed.
func randomBytes(seed byte, n int64) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b) // never fails
	return b
}

// writeTree writes and syncs count files of random data below dir. Their sizes
// differ and are not aligned.
func writeTree(dir string, seed byte, count int, total int64) (tree, error) {
	t := tree{}
	for i := range count {
		name := filepath.Join(fmt.Sprintf("part-%d", i%3), fmt.Sprintf("file-%02d", i))
		content := randomBytes(seed+byte(i), total*int64(2*i+1)/int64(count*count)+int64(i))
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			return nil, err
		}
		t[name] = sha256.Sum256(content)
	}
	return t, syncFS(dir)
}

// verify reads every file from the disk. A missing, changed or additional file
// is an error.
func (t tree) verify(dir string) error {
	for name, want := range t {
		content, err := readDisk(filepath.Join(dir, name))
		if err == nil && sha256.Sum256(content) != want {
			err = fmt.Errorf("%s differs from the written data", filepath.Join(dir, name))
		}
		if err != nil {
			return err
		}
	}
	names, err := filesIn(dir)
	if err == nil && len(names) != len(t) {
		err = fmt.Errorf("%s holds %d files, want %d", dir, len(names), len(t))
	}
	return err
}

// readDisk reads a file, bypassing the page cache.
func readDisk(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return nil, fmt.Errorf("fadvise %s: %w", path, err)
	}
	return io.ReadAll(f)
}

// appendSync appends to a file and syncs it.
func appendSync(path string, b []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	return errors.Join(err, f.Sync(), f.Close())
}

// filesIn lists the regular files below dir.
func filesIn(dir string) (names []string, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.Type().IsRegular() {
			names = append(names, path)
		}
		return err
	})
	return names, err
}

// syncFS syncs the file system of dir.
func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return os.NewSyscallError("syncfs", unix.Syncfs(int(f.Fd())))
}

// worker calls work with 1, 2, 3... until it is stopped or work fails.
type worker struct {
	begun, finished atomic.Int64
	stopping        atomic.Bool
	ended           chan struct{}
	err             error // valid after ended is closed
}

func startWorker(work func(n int64) error) *worker {
	w := &worker{ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		for !w.stopping.Load() && w.err == nil {
			n := w.begun.Add(1)
			if w.err = work(n); w.err == nil {
				w.finished.Store(n)
			}
		}
	}()
	return w
}

// stop waits for the running work to finish, and returns the first error.
func (w *worker) stop() error {
	w.stopping.Store(true)
	<-w.ended
	return w.err
}

// awaitAll waits until each worker has finished this many more calls.
func awaitAll(ctx context.Context, more int64, workers ...*worker) {
	var goals []int64
	for _, w := range workers {
		goals = append(goals, w.finished.Load()+more)
	}
	check(retry.For(ctx, stepTimeout/2, func() (bool, error) {
		for i, w := range workers {
			if w.finished.Load() >= goals[i] {
				continue
			}
			select {
			case <-w.ended:
				return false, w.err
			default:
				return true, errors.New("no progress")
			}
		}
		return false, nil
	}))
}

package store

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// smallFS mounts a file system of its own.
func smallFS(t *testing.T, size int64, mkfs ...string) string {
	t.Helper()
	image, point := filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "mnt")
	run := func(command ...string) {
		t.Helper()
		if out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v: %s", command, err, out)
		}
	}
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, size), os.Mkdir(point, 0o755)); err != nil {
		t.Fatal(err)
	}
	run(append(mkfs, image)...)
	run("mount", "-o", "loop", image, point)
	t.Cleanup(func() {
		if err := unix.Unmount(point, 0); err != nil {
			t.Error(err)
		}
	})
	return point
}

// fillUp takes all space: in big steps, then down to the last block.
func fillUp(t *testing.T, dir string) (ballast string) {
	t.Helper()
	ballast = filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var at int64
	for step := int64(1 << 28); step >= 4096; {
		if err := unix.Fallocate(int(f.Fd()), 0, at, step); err != nil {
			step /= 2
			continue
		}
		at += step
	}
	for i := range 100000 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("dust-%d", i)), make([]byte, 4096), 0o600); err != nil {
			break
		}
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "one-more"), make([]byte, 4096), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the file system is not full: %v", err)
	}
	return ballast
}

func fileSystems(t *testing.T, test func(t *testing.T, dir string)) {
	for name, c := range map[string]struct {
		size int64
		mkfs []string
	}{
		"ext4": {16 << 20, []string{"mkfs.ext4", "-q", "-b", "4096", "-m", "0"}},
		"xfs":  {300 << 20, []string{"mkfs.xfs", "-q"}},
	} {
		t.Run(name, func(t *testing.T) { test(t, smallFS(t, c.size, c.mkfs...)) })
	}
}

func TestFullFileSystemTakesUpdatesAndDeletes(t *testing.T) {
	fileSystems(t, func(t *testing.T, dir string) {
		path := filepath.Join(dir, "a.db")
		o := options()
		o.Preallocate = 4 << 20
		s := openAt(t, path, o)
		const n = 300
		value := thing{Name: strings.Repeat("x", 2000)}
		for i := range n / 10 {
			if err := put(t.Context(), s, fmt.Sprint(i), value); err != nil {
				t.Fatal(err)
			}
		}
		fillUp(t, dir)
		for i := range n { // also grows the database: what is set aside is really there
			if err := put(t.Context(), s, fmt.Sprint(i), value); err != nil {
				t.Fatalf("put %d: %v", i, err)
			}
		}
		_ = s.Close()
		s = openAt(t, path, o) // also opens on a full file system
		for i := range n {
			if err := s.Update(t.Context(), func(tx *Tx) error { return things.Delete(tx, fmt.Sprint(i)) }); err != nil {
				t.Fatalf("delete %d: %v", i, err)
			}
		}
		_ = s.Close()
	})
}

// Whoever asks before it adds leaves room for what takes away, and may add again
// when room was made, in the store or beside it.
func TestSpare(t *testing.T) {
	fileSystems(t, func(t *testing.T, dir string) {
		o := options()
		o.Preallocate = 1 << 20
		s := openAt(t, filepath.Join(dir, "a.db"), o)
		defer s.Close() // else the file system stays mounted
		ballast := fillUp(t, dir)
		add := func(from, most int) (n int) {
			for n = range most {
				if err := s.Spare(t.Context()); err != nil {
					if !errors.Is(err, unix.ENOSPC) {
						t.Fatal(err)
					}
					return n
				}
				if err := put(t.Context(), s, fmt.Sprint(from+n), thing{Name: strings.Repeat("x", 3000)}); err != nil {
					t.Fatalf("put %d: %v", from+n, err)
				}
			}
			return most
		}
		n := add(0, 1000)
		if n < 50 || n == 1000 {
			t.Fatalf("%d records found room", n)
		}
		for i := range n {
			if err := s.Update(t.Context(), func(tx *Tx) error { return things.Delete(tx, fmt.Sprint(i)) }); err != nil {
				t.Fatalf("delete %d: %v", i, err)
			}
		}
		again := add(0, 1000)
		if again == 0 || again == 1000 {
			t.Errorf("%d records found room after %d were taken away", again, n)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if more := add(again, 500); more != 500 {
			t.Errorf("%d records found room on a file system that is not full", more)
		}
	})
}

// The control of the test above: without space set aside the updates fail; and
// a failed one leaves the store whole.
func TestFullFileSystemWithoutReserve(t *testing.T) {
	fileSystems(t, func(t *testing.T, dir string) {
		path := filepath.Join(dir, "a.db")
		s := openAt(t, path, options())
		if err := put(t.Context(), s, "kept", thing{Size: 1}); err != nil {
			t.Fatal(err)
		}
		ballast := fillUp(t, dir)
		var err error
		for i := 0; i < 300 && err == nil; i++ {
			err = put(t.Context(), s, fmt.Sprint(i), thing{Name: strings.Repeat("x", 2000)})
		}
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v", err)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		if err := put(t.Context(), s, "after", thing{Size: 2}); err != nil {
			t.Errorf("with room again: %v", err)
		}
		_ = s.Close()
		s = openAt(t, path, options())
		kept, _ := get(t, s, "kept")
		after, _ := get(t, s, "after")
		if kept.Size != 1 || after.Size != 2 {
			t.Errorf("got %+v, %+v", kept, after)
		}
		_ = s.Close()
	})
}

func TestCreationOnAFullFileSystem(t *testing.T) {
	fileSystems(t, func(t *testing.T, dir string) {
		o := options()
		o.Preallocate = 1 << 30
		s, err := Open(t.Context(), filepath.Join(dir, "a.db"), o)
		if err == nil {
			_ = s.Close() // else the file system stays mounted
		}
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), "1073741824 bytes") {
			t.Errorf("got %v", err)
		}
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if strings.Contains(e.Name(), "a.db") {
				t.Errorf("left behind: %s", e.Name())
			}
		}
	})
}

func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatal(err)
	}
	return st.Blocks * 512
}

func TestReserveFollowsGrowth(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	o := options()
	o.Preallocate = 1 << 20
	s := openAt(t, path, o)
	if got := allocated(t, path); got < o.Preallocate {
		t.Errorf("%d bytes at creation", got)
	}
	for i := range 5 {
		err := s.Update(t.Context(), func(tx *Tx) error {
			for j := range 100 {
				if err := things.Put(tx, fmt.Sprintf("%d-%d", i, j), thing{Name: strings.Repeat("x", 3000)}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		var used int64
		_ = s.View(t.Context(), func(tx *Tx) error { used = tx.bolt.Size(); return nil })
		if got := allocated(t, path); got < used+o.Preallocate/4 {
			t.Errorf("%d bytes are set aside for %d that are used", got, used)
		}
	}
}

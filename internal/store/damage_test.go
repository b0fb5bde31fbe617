package store

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

func raw(t *testing.T, s *Store, key, data string) {
	t.Helper()
	testkit.Must(t, s.db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucketIfNotExists([]byte(things.Name))
		return errors.Join(err, b.Put([]byte(key), []byte(data)))
	}))
}

func TestBadRecordsAreNamed(t *testing.T) {
	for data, want := range map[string]error{
		"":                           ErrDamaged,
		"{":                          ErrDamaged,
		`{"v":1}`:                    ErrDamaged,
		`{"v":1,"r":{"Size":"two"}}`: ErrDamaged,
		`{"v":2,"r":{}}`:             ErrVersion,
		`{"r":{}}`:                   ErrVersion,
	} {
		s := openAt(t, filepath.Join(t.TempDir(), "a.db"), options())
		raw(t, s, "bad-key", data)
		testkit.Must(t, put(t.Context(), s, "good", thing{}))
		err := s.View(t.Context(), func(tx *Tx) error {
			_, ok, err := things.Get(tx, "bad-key")
			if ok {
				t.Errorf("%s: ok", data)
			}
			var seen []string
			for e, failed := range things.Range(tx, "") {
				seen = append(seen, e.Key)
				if (failed != nil) != (e.Key == "bad-key") {
					t.Errorf("%s: %s: %v", data, e.Key, failed)
				}
			}
			if len(seen) != 2 {
				t.Errorf("%s: saw %v", data, seen)
			}
			return err
		})
		if !errors.Is(err, want) || !strings.Contains(err.Error(), "bad-key") || !strings.Contains(err.Error(), "things") {
			t.Errorf("%s: got %v", data, err)
		}
	}
}

// The meta page of a failed commit can leave the page cache, and bbolt has read
// its freelist.
func TestLostMetaPage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	s := openAt(t, path, options())
	testkit.Must(t, put(t.Context(), s, "kept", thing{Size: 1}))
	before := testkit.Value(os.ReadFile(path))(t)
	testkit.Must(t, put(t.Context(), s, "lost", thing{}))
	s.durable.Store(unknown)
	testkit.Value(s.file.WriteAt(before[:smallest], 0))(t)
	for range 2 {
		testkit.WantError(t, "put", put(t.Context(), s, "new", thing{}), errs.Unavailable, "restart cleat")
	}
	testkit.Must(t, s.Close())
	s = openAt(t, path, options())
	if kept, _ := get(t, s, "kept"); kept.Size != 1 {
		t.Errorf("got %+v", kept)
	}
}

func TestForeignDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.db")
	db := testkit.Value(bbolt.Open(path, 0o644, nil))(t)
	_ = db.Close()
	testkit.WantError(t, "Open", testkit.Err(Open(t.Context(), path, options())), ErrRole)
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o644 {
		t.Errorf("its mode was changed to %v", info.Mode())
	}
}

func TestDamagedFiles(t *testing.T) {
	whole := filepath.Join(t.TempDir(), "whole.db")
	s := openAt(t, whole, options())
	for i := range 50 {
		testkit.Must(t, put(t.Context(), s, strconv.Itoa(i), thing{Name: strings.Repeat("x", 3000)}))
	}
	var used, leaf int64
	err := s.db.View(func(tx *bbolt.Tx) error {
		used = tx.Size()
		for id := range int(used) / os.Getpagesize() {
			if p, err := tx.Page(id); err == nil && p.Type == "leaf" {
				leaf = int64(id * os.Getpagesize())
			}
		}
		return nil
	})
	if err != nil || leaf == 0 {
		t.Fatalf("no page of records, %v", err)
	}
	_ = s.Close()
	data := testkit.Value(os.ReadFile(whole))(t)
	zeroed := append(make([]byte, 8192), data[8192:]...)
	noise := append([]byte{}, data...)
	for i := 8192; i < len(noise); i++ {
		noise[i] = byte(i * 31)
	}
	for name, content := range map[string][]byte{
		"truncated": data[:16384], "short by a byte": data[:used-1], "half a page": data[:2000], "one page": data[:4096], "no meta": zeroed, "noise": noise, "empty": {}, "text": []byte("precious"),
		"a zeroed page": append(append(bytes.Clone(data[:leaf]), make([]byte, 4096)...), data[leaf+4096:]...),
	} {
		path := filepath.Join(t.TempDir(), "a.db")
		testkit.Must(t, os.WriteFile(path, content, 0o600))
		for range 2 { // the file is unlocked again
			s, err := Open(t.Context(), path, options())
			if err == nil {
				_ = s.Close()
			}
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: got %v", name, err)
			}
		}
		if now, err := os.ReadFile(path); err != nil || !bytes.Equal(now, content) {
			t.Errorf("%s: the refused file was changed from %d to %d bytes, %v", name, len(content), len(now), err)
		}
	}
}

func TestLeftoverOfACrashedCreation(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(t, os.WriteFile(filepath.Join(dir, ".a.db.new"), []byte("half"), 0o600))
	openAt(t, filepath.Join(dir, "a.db"), options())
	if entries, _ := os.ReadDir(dir); len(entries) != 1 {
		t.Errorf("left: %v", entries)
	}
	if _, err := Open(t.Context(), filepath.Join(dir, "absent", "a.db"), options()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("directory missing: %v", err)
	}
}

func writeForEver(path string) error {
	s, err := Open(context.Background(), path, options())
	if err != nil {
		return err
	}
	for i := 0; ; i++ {
		if err := put(context.Background(), s, fmt.Sprintf("%09d", i), thing{Size: int64(i)}); err != nil {
			return err
		}
		fmt.Println(i)
	}
}

func TestAcknowledgedRecordsSurviveAKill(t *testing.T) {
	for round := range 5 {
		path := filepath.Join(t.TempDir(), "a.db")
		writer := exec.CommandContext(t.Context(), "/proc/self/exe")
		writer.Env = append(os.Environ(), writerStore+"="+path)
		writer.Stderr = os.Stderr
		out := testkit.Value(writer.StdoutPipe())(t)
		testkit.Must(t, writer.Start())
		last := -1
		for lines := bufio.NewScanner(out); lines.Scan(); {
			last, _ = strconv.Atoi(lines.Text())
			if last >= 20*round {
				_ = writer.Process.Kill()
			}
		}
		_ = writer.Wait()
		s := openAt(t, path, options())
		for i := 0; i <= last; i++ {
			if got, ok := get(t, s, fmt.Sprintf("%09d", i)); !ok || got.Size != int64(i) {
				t.Errorf("record %d of %d is gone", i, last)
			}
		}
	}
}

// smallFS mounts a file system of its own.
func smallFS(t *testing.T, size int64, mkfs ...string) string {
	t.Helper()
	image, point := filepath.Join(t.TempDir(), "image"), filepath.Join(t.TempDir(), "mnt")
	run := func(command ...string) {
		t.Helper()
		testkit.Run(t, command[0], command[1:]...)
	}
	testkit.Must(t, os.WriteFile(image, nil, 0o600), os.Truncate(image, size), os.Mkdir(point, 0o755))
	run(append(mkfs, image)...)
	run("mount", "-o", "loop", image, point)
	t.Cleanup(func() { testkit.Must(t, unix.Unmount(point, 0)) })
	return point
}

// fillUp uses all space down to the last block.
func fillUp(t *testing.T, dir string) (ballast string) {
	t.Helper()
	ballast = filepath.Join(dir, "ballast")
	f := testkit.Value(os.Create(ballast))(t)
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
	testkit.Must(t, f.Sync())
	for i := 0; ; i++ { // small files, in the metadata of btrfs
		if os.WriteFile(filepath.Join(dir, fmt.Sprintf("speck-%d", i)), make([]byte, 1500), 0o600) != nil {
			break
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "one-more"), make([]byte, 4096), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the file system is not full: %v", err)
	}
	return ballast
}

// growing are file systems on which the tests of growth are fast.
var growing = []string{"ext4", "xfs"}

func fileSystems(t *testing.T, names []string, test func(t *testing.T, dir string)) {
	for name, c := range map[string]struct {
		size int64
		mkfs []string
	}{
		"ext4":  {16 << 20, []string{"mkfs.ext4", "-q", "-b", "4096", "-m", "0"}},
		"xfs":   {300 << 20, []string{"mkfs.xfs", "-q"}},
		"btrfs": {256 << 20, []string{"mkfs.btrfs", "-q", "-m", "single"}},
	} {
		if slices.Contains(names, name) {
			t.Run(name, func(t *testing.T) { test(t, smallFS(t, c.size, c.mkfs...)) })
		}
	}
}

func TestFullFileSystemTakesUpdatesAndDeletes(t *testing.T) {
	fileSystems(t, append(growing, "btrfs"), func(t *testing.T, dir string) {
		path := filepath.Join(dir, "a.db")
		o := options()
		o.Preallocate = 4 << 20
		s := openAt(t, path, o)
		const n = 300
		value := thing{Name: strings.Repeat("x", 2000)}
		for i := range n / 10 {
			testkit.Must(t, put(t.Context(), s, fmt.Sprint(i), value))
		}
		fillUp(t, dir)
		for i := range n { // also grows the database
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

func createOld(t *testing.T, path string, preallocate int64) {
	t.Helper()
	db := testkit.Value(bbolt.Open(path, 0o600, nil))(t)
	testkit.Must(t, db.Update(func(tx *bbolt.Tx) error {
		return identities().Put(boltTx(tx), identityKey, identity{testRole, 1})
	}), db.Close())
	f := testkit.Value(os.OpenFile(path, os.O_RDWR, 0))(t)
	testkit.Must(t, unix.Fallocate(int(f.Fd()), 0, 0, preallocate), f.Sync(), f.Close())
}

// A process that waits for the lock does not get the file that was replaced.
func TestOldFileOfManyOpeners(t *testing.T) {
	path, o := filepath.Join(t.TempDir(), "a.db"), options()
	o.Preallocate = 1 << 20
	createOld(t, path, o.Preallocate)
	const openers = 8
	var all sync.WaitGroup
	for i := range openers {
		all.Go(func() {
			s, err := Open(t.Context(), path, o)
			for errors.Is(err, ErrHeld) {
				s, err = Open(t.Context(), path, o)
			}
			if err == nil {
				err = errors.Join(put(t.Context(), s, fmt.Sprint(i), thing{}), s.Close())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	s := openAt(t, path, o)
	for i := range openers {
		if _, ok := get(t, s, fmt.Sprint(i)); !ok {
			t.Errorf("the record of opener %d is gone", i)
		}
	}
}

// A full btrfs, on which an older version could not delete anything, can be
// emptied after an upgrade.
func TestOldFileOnAFullFileSystem(t *testing.T) {
	fileSystems(t, append(growing, "btrfs"), func(t *testing.T, dir string) {
		path, o := filepath.Join(dir, "a.db"), options()
		o.Preallocate = 4 << 20
		createOld(t, path, o.Preallocate)
		fillUp(t, dir)
		s := openAt(t, path, o)
		defer s.Close()
		for i := range 100 {
			testkit.Must(t, put(t.Context(), s, fmt.Sprint(i), thing{Name: strings.Repeat("x", 2000)}))
		}
		_ = s.Close()
		s = openAt(t, path, o)
		defer s.Close()
		if got, ok := get(t, s, "99"); !ok {
			t.Errorf("got %+v, %v", got, ok)
		}
	})
}

// A store of older versions, which was preallocated and not written, is moved to
// a file that a full file system cannot stop.
func TestOldFileIsReplaced(t *testing.T) {
	fileSystems(t, append(growing, "btrfs"), func(t *testing.T, dir string) {
		path, o := filepath.Join(dir, "a.db"), options()
		o.Preallocate = 4 << 20
		createOld(t, path, o.Preallocate)
		s := openAt(t, path, o)
		defer s.Close()
		testkit.Must(t, put(t.Context(), s, "k", thing{Size: 1}))
		written, err := isWritten(t.Context(), s.file)
		copies, err2 := copiesOnWrite(s.file)
		if !written || copies || err != nil || err2 != nil {
			t.Errorf("all blocks written: %v, %v; copied on write: %v, %v", written, err, copies, err2)
		}
		before := testkit.Value(os.Stat(path))(t)
		_ = s.Close()
		s = openAt(t, path, o)
		defer s.Close()
		if got, _ := get(t, s, "k"); got.Size != 1 || !os.SameFile(before, testkit.Value(os.Stat(path))(t)) {
			t.Errorf("after a second start: %+v, or in a new file", got)
		}
	})
}

// Callers that check Spare leave space for deletes, and can add again after
// space was freed.
func TestSpare(t *testing.T) {
	fileSystems(t, growing, func(t *testing.T, dir string) {
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
			t.Fatalf("%d records found space", n)
		}
		for i := range n {
			if err := s.Update(t.Context(), func(tx *Tx) error { return things.Delete(tx, fmt.Sprint(i)) }); err != nil {
				t.Fatalf("delete %d: %v", i, err)
			}
		}
		again := add(0, 1000)
		if again == 0 || again == 1000 {
			t.Errorf("%d records found space after %d were taken away", again, n)
		}
		testkit.Must(t, os.Remove(ballast))
		if more := add(again, 500); more != 500 {
			t.Errorf("%d records found space on a file system that is not full", more)
		}
	})
}

// Control: without preallocated space updates fail, and leave the store whole.
func TestFullFileSystemWithoutReserve(t *testing.T) {
	fileSystems(t, growing, func(t *testing.T, dir string) {
		path := filepath.Join(dir, "a.db")
		s := openAt(t, path, options())
		testkit.Must(t, put(t.Context(), s, "kept", thing{Size: 1}))
		ballast := fillUp(t, dir)
		var err error
		for i := 0; i < 300 && err == nil; i++ {
			err = put(t.Context(), s, fmt.Sprint(i), thing{Name: strings.Repeat("x", 2000)})
		}
		if !errors.Is(err, unix.ENOSPC) || !strings.Contains(err.Error(), path) {
			t.Errorf("got %v", err)
		}
		testkit.Must(t, os.Remove(ballast))
		if err := put(t.Context(), s, "after", thing{Size: 2}); err != nil {
			t.Errorf("with space again: %v", err)
		}
		_ = s.Close()
		s = openAt(t, path, options())
		kept, _ := get(t, s, "kept")
		if after, _ := get(t, s, "after"); kept.Size != 1 || after.Size != 2 {
			t.Errorf("got %+v, %+v", kept, after)
		}
		_ = s.Close()
	})
}

func TestCreationOnAFullFileSystem(t *testing.T) {
	fileSystems(t, growing, func(t *testing.T, dir string) {
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
				t.Errorf("left over: %s", e.Name())
			}
		}
	})
}

func allocated(t *testing.T, path string) int64 {
	t.Helper()
	var st unix.Stat_t
	testkit.Must(t, unix.Stat(path, &st))
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
		testkit.Must(t, s.Update(t.Context(), func(tx *Tx) error {
			for j := range 100 {
				if err := things.Put(tx, fmt.Sprintf("%d-%d", i, j), thing{Name: strings.Repeat("x", 3000)}); err != nil {
					return err
				}
			}
			return nil
		}))
		var used int64
		_ = s.db.View(func(tx *bbolt.Tx) error { used = tx.Size(); return nil })
		if got := allocated(t, path); got < used+o.Preallocate/4 {
			t.Errorf("%d bytes are set aside for %d that are used", got, used)
		}
	}
}

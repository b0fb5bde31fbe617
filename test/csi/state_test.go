package csi_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/driver"
	"github.com/cleatproject/cleat/test/testkit"
)

// state returns a text of a driver's whole state: names and sizes of files, the
// records of every store, and the kernel's mounts and devices. Equal texts mean
// that nothing changed.
func (r *rig) state(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	r.walk(t, func(path string, info fs.FileInfo) {
		fmt.Fprintln(&out, path, info.Mode(), info.Size())
	})
	for _, line := range driver.Left(t.Context(), r.dir) {
		fmt.Fprintln(&out, line)
	}
	for _, name := range []string{r.pool + "/engine.db", r.dir + "/" + r.name + "-state/node.db", r.dir + "/" + r.name + "-state/grants.db"} {
		out.WriteString(records(t, name))
	}
	return out.String()
}

// walk visits every file of the test except the pool's image, whose content is
// visited as the pool.
func (r *rig) walk(t *testing.T, show func(path string, info fs.FileInfo)) {
	t.Helper()
	testkit.Must(t, filepath.WalkDir(r.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || strings.HasSuffix(path, ".img") {
			return err
		}
		info, err := e.Info()
		if err == nil {
			show(path, info)
		}
		return err
	}))
}

// records lists a store's contents. Its owner has locked the store, so a copy
// in memory is read.
func records(t testing.TB, path string) string {
	t.Helper()
	db := testkit.Value(bbolt.Open(inMemory(t, path), 0o600, &bbolt.Options{ReadOnly: true}))(t)
	defer db.Close()
	var out strings.Builder
	testkit.Must(t, db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(bucket []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(key, value []byte) error {
				fmt.Fprintf(&out, "%s %s: %s\n", bucket, key, value)
				return nil
			})
		})
	}))
	return out.String()
}

// inMemory copies the allocated parts of a file, and returns a path to the
// copy.
func inMemory(t testing.TB, path string) string {
	t.Helper()
	from := testkit.Value(os.Open(path))(t)
	defer from.Close()
	info := testkit.Value(from.Stat())(t)
	fd, err := unix.MemfdCreate(filepath.Base(path), unix.MFD_CLOEXEC)
	testkit.Must(t, err)
	to := os.NewFile(uintptr(fd), path)
	t.Cleanup(func() { to.Close() })
	err = to.Truncate(info.Size())
	for at := int64(0); err == nil; {
		var end int64
		if at, err = from.Seek(at, unix.SEEK_DATA); err == nil {
			end, err = from.Seek(at, unix.SEEK_HOLE)
		}
		if err == nil {
			_, err = io.Copy(io.NewOffsetWriter(to, at), io.NewSectionReader(from, at, end-at))
		}
		at = end
	}
	if !errors.Is(err, unix.ENXIO) { // no more data
		t.Fatal(err)
	}
	return fmt.Sprintf("/proc/self/fd/%d", to.Fd())
}

// treeHash lists the digests of files that only their owner's calls change:
// volumes, snapshots, and files in mounted volumes. A mounted volume's image
// changes by kernel writeback, and records are compared elsewhere.
func treeHash(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	testkit.Must(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || strings.HasSuffix(path, ".img") || strings.HasSuffix(path, ".db") || inUse(path) {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		if _, err := io.Copy(h, f); err != nil {
			return err
		}
		fmt.Fprintf(&out, "%x %s\n", h.Sum(nil)[:8], path)
		return nil
	}))
	return out.String()
}

// inUse reports whether a loop device is bound to a file.
func inUse(path string) bool {
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, name := range files {
		if text, err := os.ReadFile(name); err == nil && strings.TrimSpace(string(text)) == path {
			return true
		}
	}
	return false
}

// watchArguments inspects the arguments of all child processes until end is
// called; end returns those that contain the marker.
func watchArguments(t *testing.T, pid int) (end func() string) {
	t.Helper()
	stop, found := make(chan struct{}), make(chan string, 1)
	go func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-stop:
				found <- ""
				return
			case <-tick.C:
			}
			for _, child := range children(pid) {
				arguments, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child))
				environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", child))
				if text := string(arguments) + string(environment); strings.Contains(text, marker) {
					found <- text
					return
				}
			}
		}
	}()
	return func() string {
		close(stop)
		return <-found
	}
}

// children returns the processes that a process has started.
func children(pid int) (all []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the thread might be gone
		for word := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				all = append(all, child)
			}
		}
	}
	return all
}

// checkNoSecret searches the driver's log and files for the marker.
func checkNoSecret(t *testing.T, r *rig) {
	t.Helper()
	for _, p := range r.runs {
		for line := range strings.Lines(p.Log.String()) {
			if strings.Contains(line, marker) {
				t.Errorf("the log contains the secret: %s", line)
			}
		}
	}
	testkit.Must(t, filepath.WalkDir(r.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || strings.HasSuffix(path, ".img") {
			return err
		}
		data, err := os.ReadFile(path)
		if strings.Contains(string(data), marker) {
			t.Errorf("%s contains the secret", path)
		}
		return err
	}))
}

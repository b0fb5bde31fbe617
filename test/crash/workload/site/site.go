// Package site is the part of the crash tests' oracle that runs on the driver's
// machine: it writes and reads as workloads do, and inspects the kernel and the
// pool.
package site

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mount"
)

// Site is this machine.
type Site struct {
	Workers string // the directory above all staging and target paths
	Pool    string // the driver's pool
}

// Snapshot is the state of the machine at one moment.
type Snapshot struct {
	Mounts map[string]int    `json:"mounts"` // by mount point of the workers: number of mounts
	Loops  map[string][]Loop `json:"loops"`  // by volume id: the devices on its file
	Files  map[string]File   `json:"files"`  // of the pool, by name such as volumes/<id>
}

// Loop is a loop device on a volume's file.
type Loop struct {
	ReadAheadKiB int `json:"readAheadKiB"`
}

// File is a file of the pool, in bytes.
type File struct {
	Size      int64 `json:"size"`
	Allocated int64 `json:"allocated"`
}

// Look inspects the kernel and the pool.
func (s Site) Look(ctx context.Context) (Snapshot, error) {
	seen := Snapshot{Mounts: map[string]int{}, Loops: map[string][]Loop{}, Files: map[string]File{}}
	table, err := mount.Table(ctx)
	if err != nil {
		return seen, err
	}
	for _, m := range table {
		if strings.HasPrefix(m.Target, s.Workers+"/") {
			seen.Mounts[m.Target]++
		}
	}
	names := map[loop.Backing]string{}
	for _, dir := range []string{"volumes", "snapshots", "incoming"} {
		if err := s.lookAtFiles(dir, seen.Files, names); err != nil {
			return seen, err
		}
	}
	devices, err := loop.List(ctx)
	if err != nil {
		return seen, err
	}
	for _, d := range devices {
		name, ok := strings.CutPrefix(names[d.Backing], "volumes/")
		if !ok {
			continue
		}
		ahead, err := readAhead(d)
		if err != nil {
			return seen, err
		}
		seen.Loops[name] = append(seen.Loops[name], Loop{ReadAheadKiB: ahead})
	}
	return seen, nil
}

func (s Site) lookAtFiles(dir string, files map[string]File, names map[loop.Backing]string) error {
	entries, err := os.ReadDir(filepath.Join(s.Pool, dir))
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := dir + "/" + e.Name()
		var st unix.Stat_t
		err := unix.Lstat(filepath.Join(s.Pool, name), &st)
		if errors.Is(err, unix.ENOENT) {
			continue // a background copy has just ended
		}
		if err != nil {
			return &fs.PathError{Op: "lstat", Path: name, Err: err}
		}
		files[name] = File{Size: st.Size, Allocated: st.Blocks * 512}
		names[loop.Backing{Dev: st.Dev, Inode: st.Ino}] = name
	}
	return nil
}

func readAhead(d loop.Device) (kib int, err error) {
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(d.Path), "queue/read_ahead_kb"))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// MakeDir creates a directory and its parents, as an orchestrator does for a
// staging path.
func (s Site) MakeDir(path string) error { return os.MkdirAll(path, 0o750) }

// Remove removes a file or an empty directory; a directory that is absent or
// not empty is no error.
func (s Site) Remove(path string) error {
	err := os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EBUSY) {
		return nil
	}
	return err
}

package dpu

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

// The mounts of NVIDIA's chart, and the record's paths in earlier releases.
const (
	pluginDir  = "/var/lib/nvidia/storage/snap/plugins/test"
	oldState   = "/var/lib/cleat/dpu"
	oldByChart = oldState + "/test"
)

// privateVarLib mounts an empty /var/lib in the test's mount namespace.
func privateVarLib(t *testing.T) {
	t.Helper()
	testkit.Must(t, unix.Mount("tmpfs", "/var/lib", "tmpfs", 0, ""))
	t.Cleanup(func() {
		if err := unix.Unmount("/var/lib", unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

// byDefault uses the default socket and state directory.
func (s *site) byDefault() {
	at := slices.Index(s.flags, "--state-dir")
	s.flags = slices.Delete(slices.Clone(s.flags), at, at+2)
	s.atSocket = filepath.Join(pluginDir, "dpu.sock")
}

// Under NVIDIA's chart only the plugin's own directory survives a container
// restart: by default the record is there, beside the socket.
func TestRecordOutlivesTheContainer(t *testing.T) {
	privateVarLib(t)
	s := newSite(t, spdktest.Config{SNAP: true}, plain)
	s.byDefault()
	s.target("v", 1)
	s.start()
	v := s.namespace("v", "v", 1)
	device := s.create(v)
	s.stop()
	// The next container has a new root file system.
	testkit.Must(s.t, os.RemoveAll(oldState))
	s.start()
	if all, err := s.listed(); err != nil || all[v.id] != device {
		t.Errorf("after a restart of the container ListDevices has %q, %v, want %s", all, err, device)
	}
	for path, want := range map[string]os.FileMode{pluginDir: 0o750, filepath.Join(pluginDir, "state"): 0o700} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", path, info, err, want)
		}
	}
	s.remove(v, device)
	s.empty()
}

// The record of an earlier release is moved once to the new default path, from
// either old path, and is complete in one of them if the plugin is killed
// meanwhile.
func TestRecordIsMoved(t *testing.T) {
	for _, old := range []string{oldState, oldByChart} {
		for _, point := range []string{"", "store-move.copied", "store-move.renamed"} {
			t.Run(strings.TrimPrefix(old, "/var/lib/")+" "+point, func(t *testing.T) {
				privateVarLib(t)
				s := newSite(t, spdktest.Config{SNAP: true}, plain)
				s.target("v", 1)
				v := s.namespace("v", "v", 1)
				s.flags[slices.Index(s.flags, "--state-dir")+1] = old
				s.start()
				device := s.create(v)
				s.stop()
				s.byDefault()
				if point != "" {
					env, file := s.armed(point, 1)
					s.launch(env...)
					testkit.Must(s.t, s.plugin.killed())
					if hit, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(hit)) != point {
						t.Fatalf("the plugin died at %q, %v, not at %s", hit, err, point)
					}
				}
				s.start()
				if all, err := s.listed(); err != nil || all[v.id] != device {
					t.Errorf("ListDevices has %q, %v, want %s", all, err, device)
				}
				s.remove(v, device)
				s.empty()
				if _, err := os.Lstat(filepath.Join(old, "dpu.db")); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the old record is still there: %v", err)
				}
			})
		}
	}
}

package discovery

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
)

// What cannot be read is not gone: the host would deregister a plugin that runs.
func TestUnreadableIsNotGone(t *testing.T) {
	above, other := t.TempDir(), filepath.Join(t.TempDir(), "other")
	mkdir(t, other, above+"/plugins")
	socket(t, above+"/plugins/s", other+"/s")
	testkit.Must(t, os.Symlink(other+"/s", above+"/plugins/link"))
	for name, dir := range map[string]string{"target of a link": other, "root": above} {
		t.Run(name, func(t *testing.T) {
			r := makeRig(t, above+"/plugins")
			testkit.Must(t, r.Start())
			t.Cleanup(func() { _ = r.Close() })
			rescan := func() { r.rescan(); r.flush() }
			restore := func() { testkit.Must(t, os.Chmod(dir, 0o700)) }
			testkit.Must(t, os.Chmod(dir, 0))
			t.Cleanup(restore)
			testkit.WithoutCapabilities(t, rescan)
			if known := r.known(); !slices.Equal(known, []string{"link", "s"}) {
				t.Errorf("known are %v, want both sockets, which exist", known)
			}
			if err := r.Health(); dir == above && !errors.Is(err, fs.ErrPermission) {
				t.Errorf("health is %v, want %v", err, unix.EACCES)
			}
			restore()
			rescan()
			testkit.Must(t, r.Health())
			if len(r.changes) != 2 {
				t.Errorf("changes %v, want that both sockets came", r.changes)
			}
		})
	}
}

// An entry that was replaced is another, even if it cannot be read.
func TestUnreadableReplacement(t *testing.T) {
	r := makeRig(t, filepath.Join(t.TempDir(), "root"))
	other := filepath.Join(t.TempDir(), "other")
	mkdir(t, r.dir, other)
	socket(t, r.dir+"/s", other+"/s")
	testkit.Must(t, r.Start())
	t.Cleanup(func() { _ = r.Close() })
	testkit.Must(t, os.Symlink(other+"/s", r.dir+"/.new"), os.Rename(r.dir+"/.new", r.dir+"/s"), os.Chmod(other, 0))
	t.Cleanup(func() { testkit.Must(t, os.Chmod(other, 0o700)) })
	testkit.WithoutCapabilities(t, func() { r.rescan(); r.flush() })
	if known := r.known(); len(known) > 0 {
		t.Errorf("known are %v, want none: the first socket is gone", known)
	}
}

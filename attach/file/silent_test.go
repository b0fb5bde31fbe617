package file_test

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/attach"
	"github.com/cleatproject/cleat/attach/file"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/scratchfs"
)

// TestDeadPool: the file system of a pool shuts down under a device that is in
// use. It is still seen, it can be got rid of once it was said that bytes are
// lost, and it is in nobody's way meanwhile.
func TestDeadPool(t *testing.T) {
	dir := scratchfs.Mount(t, "xfs")
	dead := pool{Attacher: file.New(dir), t: t, dir: dir}
	dead.must(os.Mkdir(filepath.Join(dir, "volumes"), 0o700))
	dead.must(os.WriteFile(filepath.Join(dir, "pool.json"), []byte(`{"version":1,"uuid":"`+uuid+`"}`), 0o600))
	v := dead.volume("v")
	v.Device = dead.attach(v, attach.Use{Block: true})
	f, err := os.OpenFile(v.Device.Path, os.O_WRONLY, 0)
	dead.must(err)
	_, err = f.Write(make([]byte, 1<<16))
	dead.must(err)
	scratchfs.ShutDown(t, dir)
	dead.must(f.Close())

	view, err := dead.Look(t.Context(), v)
	if err != nil || view.Device != v.Device || view.Backing != attach.Unreachable {
		t.Errorf("the device on a dead pool: %+v, %v", view, err)
	}
	all, err := loop.List(t.Context())
	dead.must(err)
	silent := 0
	for _, d := range all {
		if d.Path == v.Device.Path && filepath.Base(d.Silent) == "v" {
			silent++
		}
	}
	if silent != 1 {
		t.Errorf("listed as silent %d times, want once: %+v", silent, all)
	}
	if _, err := dead.Held(t.Context()); err == nil {
		t.Error("a dead pool tells what it holds")
	}

	living := newPool(t)
	other := living.volume("v") // the same name
	other.Device = living.attach(other, attach.Use{Block: true})
	if held, err := living.Held(t.Context()); err != nil || len(held) != 1 {
		t.Errorf("another pool holds %v, %v; want its one device", held, err)
	}
	living.must(living.Detach(t.Context(), other))

	err = dead.Detach(t.Context(), v)
	if err == nil {
		t.Fatal("bytes that were never written out are lost without a word")
	}
	dead.refused(err, unix.EIO, "is lost")
	dead.must(dead.Detach(t.Context(), v))
	if view, err := dead.Look(t.Context(), v); err != nil || !view.Device.IsZero() {
		t.Errorf("after detach: %+v, %v", view, err)
	}
}

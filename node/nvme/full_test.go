package nvme_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/uuid"
	"golang.org/x/sys/unix"

	kernel "github.com/cleatproject/cleat/internal/linux/nvme"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/nvme"
	"github.com/cleatproject/cleat/test/features"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// On a full file system of records no volume is attached, also if it becomes
// full after the first record. A volume attached before can be attached again,
// and detached.
func TestFullStateDirectory(t *testing.T) {
	features.Need(t, features.NVMeTarget)
	target, dir := newTarget(t), t.TempDir()
	testkit.Must(t, unix.Mount("none", dir, "tmpfs", 0, "size=256k"))
	a := testkit.Value(nvme.New(nvme.Config{Dir: dir, HostNQN: access.HostNQN(uuid.NewString())}))(t)
	t.Cleanup(func() { testkit.Must(t, a.Close(testkit.Context(t)), unix.Unmount(dir, 0)) })
	volumeOf := func(id string) node.Target {
		return node.Target{Locator: target.create(id, 16*mib), Volume: volume.ID(id)}
	}
	attach := func(of node.Target) (node.Device, error) {
		attachment, err := a.Attach(testkit.Context(t), of, node.Use{Block: true})
		if err != nil {
			return node.Device{}, err
		}
		return attachment.Device, attachment.File.Close()
	}
	before, other := volumeOf("before"), volumeOf("other")
	device := testkit.Value(attach(before))(t)

	filler := filepath.Join(dir, "filler")
	for _, free := range []int64{0, 1} { // pages
		fill(t, filler, free)
		_, err := attach(other)
		testkit.WantError(t, "Attach", err, unix.ENOSPC, "write the record", dir)
		if held := testkit.Value(a.Held(t.Context()))(t); len(held) != 1 || held[0].Device != device {
			t.Errorf("with %d free pages, after a failed Attach: %+v are held, want only %+v", free, held, device)
		}
		all := testkit.Value(kernel.Host().Controllers())(t)
		if slices.ContainsFunc(all, func(c kernel.Controller) bool { return c.NQN == other.Locator.(access.NVMe).NQN }) {
			t.Errorf("with %d free pages, after a failed Attach its subsystem is connected: %+v", free, all)
		}
	}
	fill(t, filler, 0)
	if again := testkit.Value(attach(before))(t); again != device {
		t.Errorf("attached again as %+v, before %+v", again, device)
	}
	testkit.Must(t, a.Detach(testkit.Context(t), before))
	if all := testkit.Value(kernel.Host().Controllers())(t); len(all) != 0 {
		t.Errorf("after Detach: %+v", all)
	}
	testkit.Must(t, os.Remove(filler), testkit.Err(attach(other)), a.Detach(testkit.Context(t), other))
}

// fill fills a file system by one file, except some pages.
func fill(t *testing.T, path string, free int64) {
	t.Helper()
	f := testkit.Value(os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600))(t)
	var err error
	for page := bytes.Repeat([]byte{1}, os.Getpagesize()); err == nil; {
		_, err = f.Write(page)
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	size := testkit.Value(f.Stat())(t).Size()
	testkit.Must(t, f.Truncate(size-free*int64(os.Getpagesize())), f.Close())
}

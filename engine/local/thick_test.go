package local

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/fstrim"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/xattr"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func fsfreeze(args ...string) ([]byte, error) {
	return exec.Command("fsfreeze", args...).CombinedOutput()
}

func allocatedBytes(t testing.TB, path string) int64 {
	t.Helper()
	info := testkit.Value(os.Stat(path))(t)
	return info.Sys().(*syscall.Stat_t).Blocks * blockUnit
}

var thickly = map[string]string{keyProvisioning: thick}

func TestThickStaysThick(t *testing.T) {
	for _, fsType := range []string{"ext4", "xfs", "btrfs"} {
		t.Run(fsType, func(t *testing.T) {
			pool := onXFS
			if fsType != "ext4" { // others need a whole scratch pool
				pool = func(t testing.TB) string { return imagePool(t, 600*mib) }
			}
			e := open(t, config(pool(t)))
			v := fsVolume(t, e, "thick", fsType, thickly)
			if got := allocatedBytes(t, file(e, v)); got < v.Size {
				t.Errorf("%d of %d bytes have blocks after mkfs", got, v.Size)
			}
			_, d := mounted(t, e, v)
			// As an attach of a thick volume.
			testkit.Must(t, loop.SetDiscard(t.Context(), d, false))
			trim(t, e, v)
			if got := allocatedBytes(t, file(e, v)); got < v.Size {
				t.Errorf("%d of %d bytes have blocks after a trim", got, v.Size)
			}
		})
	}
}

func trim(t testing.TB, e *Engine, v volume.Volume) {
	t.Helper()
	c := testkit.Value(e.claim(t.Context(), volumesDir+"/"+string(v.ID), 0))(t)
	defer c.release()
	at, err := c.use.mountpoint(t.Context())
	if err != nil || at == "" {
		t.Fatal(at, err)
	}
	if n, err := fstrim.Trim(t.Context(), at); err == nil {
		t.Logf("trimmed %d bytes", n)
	}
}

// A restored thick volume has its own blocks.
func TestThickCopy(t *testing.T) {
	e := open(t, config(onXFS(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: 16 * mib}})
	fill(t, file(e, v), 4*mib)
	s := snapshot(t, e, "snap", v.ID)
	before := testkit.Value(e.pool.space())(t)
	c := create(t, e, volume.CreateRequest{Name: "c", Source: volume.Source{Snapshot: s.ID}, Parameters: thickly})
	after := testkit.Value(e.pool.space())(t)
	if took := before.free - after.free; took < v.Size {
		t.Errorf("the thick copy took %d bytes of the pool, want at least its %d", took, v.Size)
	}
	same(t, file(e, v), file(e, c))
}

// fill writes nonzero bytes.
func fill(t testing.TB, path string, bytesToWrite int) {
	t.Helper()
	f := testkit.Value(os.OpenFile(path, os.O_WRONLY, 0))(t)
	defer f.Close()
	testkit.Value(f.Write(bytes.Repeat([]byte("cleat!!!"), bytesToWrite/8)))(t)
	testkit.Must(t, f.Sync())
}

func same(t testing.TB, a, b string) {
	t.Helper()
	x, errX := os.ReadFile(a)
	if y, errY := os.ReadFile(b); errX != nil || errY != nil || !bytes.Equal(x, y) {
		t.Errorf("%s and %s differ (%v, %v)", filepath.Base(a), filepath.Base(b), errX, errY)
	}
}

func TestThickIsPromisedOnce(t *testing.T) {
	e := open(t, config(onXFS(t)))
	_, err := e.Create(t.Context(), volume.CreateRequest{Name: "huge", Content: volume.Raw, Size: volume.SizeRange{Required: 400 * mib}, Parameters: thickly})
	wantKind(t, err, "a thick volume larger than the pool", errs.Exhausted)
	empty(t, e, incomingDir)
	if got := e.budget.promised(); got != 0 {
		t.Errorf("%d bytes are promised after a refusal", got)
	}
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: 32 * mib}, Parameters: thickly})
	v = testkit.Value(e.Expand(t.Context(), v.ID, volume.SizeRange{Required: 48 * mib}))(t)
	if got := allocatedBytes(t, file(e, v)); got < 48*mib {
		t.Errorf("%d bytes have blocks after Expand", got)
	}
	refused(t, "Expand beyond the pool", errs.Exhausted)(e.Expand(t.Context(), v.ID, volume.SizeRange{Required: 400 * mib}))
	s := snapshot(t, e, "snap", v.ID)
	if got := e.budget.promised(); got != 96*mib {
		t.Errorf("%d MiB are promised for a thick volume of 48 with a snapshot, want 96", got/mib)
	}
	e = reopen(t, e)
	if got := e.budget.promised(); got != 96*mib {
		t.Errorf("%d MiB are promised after reopen, want 96", got/mib)
	}
	_, err = e.CreateSnapshot(t.Context(), volume.SnapshotRequest{Name: "one too many", Source: v.ID})
	t.Logf("budget: %+v", e.budget)
	wantKind(t, err, "a snapshot without space for its thick source", errs.Exhausted)
	testkit.Must(t, e.DeleteSnapshot(t.Context(), s.ID), e.Delete(t.Context(), v.ID))
	if e.budget.thin != 0 || e.budget.thick != 0 || e.budget.pending != 0 {
		t.Errorf("budget of an empty pool: %+v", e.budget)
	}
}

// Shared blocks of a thick volume count for it.
func TestThinCloneOfThick(t *testing.T) {
	e := open(t, config(onXFS(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: 16 * mib}, Parameters: thickly})
	s := snapshot(t, e, "snap", v.ID)
	restored := create(t, e, volume.CreateRequest{Name: "r", Source: volume.Source{Snapshot: s.ID}})
	clone := create(t, e, volume.CreateRequest{Name: "c", Source: volume.Source{Volume: restored.ID}, Parameters: thickly})
	testkit.Must(t, e.DeleteSnapshot(t.Context(), s.ID))
	for range 2 {
		if e.budget.thick != v.Size+v.Size+clone.Size || e.budget.thin != restored.Size || e.budget.pending != 0 {
			t.Errorf("budget: %+v", e.budget)
		}
		e = reopen(t, e)
	}
	testkit.Must(t, e.Delete(t.Context(), restored.ID))
	if e.budget.thick != v.Size+clone.Size || e.budget.thin != 0 {
		t.Errorf("budget: %+v", e.budget)
	}
}

func TestModifyUnattached(t *testing.T) {
	e := open(t, config(onXFS(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: 32 * mib}})
	fill(t, file(e, v), mib)
	modify(t, e, v, keyProvisioning, thick)
	if got := allocatedBytes(t, file(e, v)); got < 32*mib {
		t.Errorf("made thick, %d bytes have blocks", got)
	}
	if got := e.budget.thick; got != 32*mib || e.budget.thin != 0 || e.budget.pending != 0 {
		t.Errorf("budget: %+v", e.budget)
	}
	v = modify(t, e, v, keyProvisioning, thin)
	if got := allocatedBytes(t, file(e, v)); got > 2*mib {
		t.Errorf("made thin again, %d bytes have blocks for 1 MiB of data", got)
	}
	if e.budget.thick != 0 || e.budget.thin != 32*mib {
		t.Errorf("budget: %+v", e.budget)
	}
}

func modify(t testing.TB, e *Engine, v volume.Volume, key, value string) volume.Volume {
	t.Helper()
	v, err := e.Modify(t.Context(), v.ID, map[string]string{key: value})
	if err != nil {
		t.Fatalf("Modify %s=%s: %v", key, value, err)
	}
	if v.Attributes[key] != value {
		t.Errorf("%s=%s after Modify to %s", key, v.Attributes[key], value)
	}
	f := testkit.Value(os.Open(file(e, v)))(t)
	defer f.Close()
	if got, _, err := xattr.Get(f, xattr.Prefix+"provisioning"); err != nil || got != v.Attributes[keyProvisioning] {
		t.Errorf("the file says %q, %v; the record %q", got, err, v.Attributes[keyProvisioning])
	}
	return v
}

// The device changes at once.
func TestModifyAttached(t *testing.T) {
	e := open(t, config(onXFS(t)))
	v := fsVolume(t, e, "v", "ext4", nil)
	dir, d := mounted(t, e, v)
	write(t, dir, "file", bytes.Repeat([]byte{1}, mib))
	v = modify(t, e, v, keyProvisioning, thick)
	trim(t, e, v)
	if got := allocatedBytes(t, file(e, v)); got < v.Size {
		t.Errorf("made thick and trimmed, %d of %d bytes have blocks", got, v.Size)
	}
	modify(t, e, v, keyReadAhead, "512")
	v = modify(t, e, v, keyProvisioning, thin)
	// Some kernels enable discards only at the next attach.
	again := loop.SetDiscard(t.Context(), d, true)
	if got := allocatedBytes(t, file(e, v)); again == nil && got > v.Size/2 {
		t.Errorf("made thin, %d of %d bytes still have blocks", got, v.Size)
	} else if again != nil && !errors.Is(again, loop.ErrReattach) {
		t.Error(again)
	}
	wantFile(t, dir, "file", bytes.Repeat([]byte{1}, mib))
	readAhead, err := os.ReadFile(fmt.Sprintf("/sys/block/loop%d/queue/read_ahead_kb", d.Number))
	if err != nil || strings.TrimSpace(string(readAhead)) != "512" {
		t.Errorf("read-ahead of the device is %q, %v", readAhead, err)
	}
}

// Nothing changes.
func TestModifyToThickWithoutSpace(t *testing.T) {
	e := open(t, config(onXFS(t)))
	v := create(t, e, volume.CreateRequest{Name: "v", Size: volume.SizeRange{Required: 4 * gib}})
	_, err := e.Modify(t.Context(), v.ID, thickly)
	wantKind(t, err, "Modify to thick without space", errs.Exhausted)
	if got, err := e.Get(t.Context(), v.ID); err != nil || got.Attributes[keyProvisioning] != thin {
		t.Errorf("%+v, %v", got, err)
	}
	if e.budget.thin != 4*gib || e.budget.thick != 0 || e.budget.pending != 0 {
		t.Errorf("budget: %+v", e.budget)
	}
}

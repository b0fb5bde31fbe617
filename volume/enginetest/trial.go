package enginetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const mib = 1 << 20

type trial struct {
	*testing.T
	Harness
	ctx     context.Context
	Backend volume.Backend
}

func (t *trial) request(name string) volume.CreateRequest {
	return volume.CreateRequest{
		Name: name, Size: volume.SizeRange{Required: t.Size}, Content: t.Content, Parameters: maps.Clone(t.Parameters),
	}
}

func (t *trial) from(name string, source volume.Source) volume.CreateRequest {
	req := t.request(name)
	req.Source = source
	return req
}

// create also waits until the volume is filled.
func (t *trial) create(req volume.CreateRequest) volume.Volume {
	t.Helper()
	v, err := t.Backend.Engine.Create(t.ctx, req)
	if err != nil {
		t.Fatalf("Create(%+v): %v", req, err)
	}
	t.checkVolume(v, req)
	return t.filled(v.ID)
}

func (t *trial) checkPoolSuffix(id string) {
	t.Helper()
	const other = "00000000-0000-0000-0000-000000000000"
	if pool := t.Backend.Pool; pool != "" && (volume.CanBeInAnotherPool(id, pool) || !volume.CanBeInAnotherPool(id, other)) {
		t.Errorf("id %q does not name the pool %s", id, pool)
	}
}

func (t *trial) checkVolume(v volume.Volume, req volume.CreateRequest) {
	t.Helper()
	if err := volume.CheckID(string(v.ID)); err != nil {
		t.Errorf("Create(%q) returned an invalid id: %v", req.Name, err)
	}
	t.checkPoolSuffix(string(v.ID))
	if v.Name != req.Name || v.Content != req.Content || v.Source != req.Source || v.Ephemeral != req.Ephemeral {
		t.Errorf("Create(%+v) returned another volume: %+v", req, v)
	}
	if !req.Size.Admits(v.Size) || v.Size <= 0 {
		t.Errorf("Create(%q) returned %d bytes, want %+v", req.Name, v.Size, req.Size)
	}
	if isFilesystem := req.Content == volume.Filesystem; isFilesystem != (v.FSType != "") || req.FSType != "" && v.FSType != req.FSType {
		t.Errorf("Create(%q) with content %s and file system %q returned file system %q", req.Name, req.Content, req.FSType, v.FSType)
	}
	if v.Created.IsZero() {
		t.Errorf("Create(%q) returned no creation time", req.Name)
	}
	if v.Locator == nil {
		t.Fatalf("Create(%q) returned no locator", req.Name)
	}
	if again, err := access.Decode(access.Encode(v.Locator)); err != nil || !access.Equal(again, v.Locator) {
		t.Errorf("Create(%q): locator %+v decoded as %+v, %v", req.Name, v.Locator, again, err)
	}
}

func (t *trial) filled(id volume.ID) volume.Volume {
	t.Helper()
	var v volume.Volume
	t.until(func() bool {
		var err error
		if v, err = t.Backend.Engine.Get(t.ctx, id); err != nil {
			t.Fatalf("Get(%s): %v", id, err)
		}
		return !v.Progress.Running()
	})
	return v
}

// takeSnapshot waits until the snapshot is ready.
func (t *trial) takeSnapshot(name string, source volume.ID) volume.Snapshot {
	t.Helper()
	s, err := t.Backend.Snapshots.CreateSnapshot(t.ctx, volume.SnapshotRequest{Name: name, Source: source})
	if err != nil {
		t.Fatalf("CreateSnapshot(%q of %s): %v", name, source, err)
	}
	return t.ready(s.ID)
}

func (t *trial) ready(id volume.SnapshotID) volume.Snapshot {
	t.Helper()
	var s volume.Snapshot
	t.until(func() bool {
		var err error
		if s, err = t.Backend.Snapshots.GetSnapshot(t.ctx, id); err != nil {
			t.Fatalf("GetSnapshot(%s): %v", id, err)
		}
		return s.Ready
	})
	return s
}

func (t *trial) until(done func() bool) {
	t.Helper()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ticker.C:
		case <-t.ctx.Done():
			t.Fatalf("waiting for background work: %v", t.ctx.Err())
		}
	}
}

func retryWhileBusy(ctx context.Context, call func() error) error {
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := call()
		if !errors.Is(err, errs.Busy) {
			return err
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return err
		}
	}
}

func (t *trial) remove(id volume.ID) {
	t.Helper()
	if err := retryWhileBusy(t.ctx, func() error { return t.Backend.Engine.Delete(t.ctx, id) }); err != nil {
		t.Errorf("Delete(%s): %v", id, err)
	}
}

func (t *trial) removeSnapshot(id volume.SnapshotID) {
	t.Helper()
	if err := retryWhileBusy(t.ctx, func() error { return t.Backend.Snapshots.DeleteSnapshot(t.ctx, id) }); err != nil {
		t.Errorf("DeleteSnapshot(%s): %v", id, err)
	}
}

func (t *trial) wantKind(err error, what string, kinds ...errs.Kind) {
	t.Helper()
	if err == nil {
		t.Errorf("%s succeeded, want one of %q", what, kinds)
		return
	}
	if !slices.Contains(kinds, errs.KindOf(err)) {
		t.Errorf("%s: kind %q (%v), want one of %q", what, errs.KindOf(err), err, kinds)
	}
	if err.Error() == "" || err.Error() == string(errs.KindOf(err)) {
		t.Errorf("%s: message %q has no reason", what, err)
	}
}

func (t *trial) gone(id volume.ID) {
	t.Helper()
	_, err := t.Backend.Engine.Get(t.ctx, id)
	t.wantKind(err, "Get of a deleted volume", errs.NotFound)
	for _, v := range t.list() {
		if v.ID == id {
			t.Errorf("the deleted volume %s is still listed", id)
		}
	}
}

func (t *trial) list() []volume.Volume {
	t.Helper()
	all, err := t.Backend.Engine.List(t.ctx, "", 0)
	if err != nil {
		t.Fatalf("List: %v", err)
	}
	return all
}

func (t *trial) same(what string, got, want any) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// open opens a volume; the caller closes the device.
func (t *trial) open(v volume.Volume) Device {
	t.Helper()
	return t.Open(t.T, t.Backend, v)
}

// write writes pattern(seed) at each offset.
func (t *trial) write(v volume.Volume, seed uint64, offsets ...int64) {
	t.Helper()
	d := t.open(v)
	defer closing(t.T, d)
	for _, offset := range offsets {
		if _, err := d.WriteAt(pattern(seed, offset), offset); err != nil {
			t.Fatalf("writing volume %s at %d: %v", v.ID, offset, err)
		}
	}
	if err := d.Sync(); err != nil {
		t.Fatalf("syncing volume %s: %v", v.ID, err)
	}
}

func (t *trial) holds(v volume.Volume, seed uint64, offsets ...int64) {
	t.Helper()
	d := t.open(v)
	defer closing(t.T, d)
	t.readerHolds(d, string(v.ID), seed, offsets...)
}

func (t *trial) readerHolds(r io.ReaderAt, name string, seed uint64, offsets ...int64) {
	t.Helper()
	for _, offset := range offsets {
		if got := t.block(r, offset); !bytes.Equal(got, pattern(seed, offset)) {
			t.Errorf("%s at %d: want the block of seed %d, got %x…", name, offset, seed, got[:16])
		}
	}
}

func (t *trial) isZero(v volume.Volume, r volume.Range) {
	t.Helper()
	d := t.open(v)
	defer closing(t.T, d)
	p, zero := make([]byte, mib), make([]byte, mib)
	for offset := r.Offset; offset < r.End(); offset += mib {
		n := min(mib, r.End()-offset)
		if _, err := d.ReadAt(p[:n], offset); err != nil && !errors.Is(err, io.EOF) {
			t.Fatalf("reading volume %s at %d: %v", v.ID, offset, err)
		}
		if !bytes.Equal(p[:n], zero[:n]) {
			t.Errorf("volume %s is not all zeros from %d on", v.ID, offset)
			return
		}
	}
}

func (t *trial) block(r io.ReaderAt, offset int64) []byte {
	t.Helper()
	p := make([]byte, sparseBlock)
	if n, err := r.ReadAt(p, offset); n < len(p) {
		t.Fatalf("reading at %d: %d bytes, %v", offset, n, err)
	}
	return p
}

// pattern is unique for seed and offset. Seed 0 is the zero block.
func pattern(seed uint64, offset int64) []byte {
	p := make([]byte, sparseBlock)
	if seed == 0 {
		return p
	}
	source := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(offset >> 12), byte(offset >> 20), byte(offset >> 28)})
	_, _ = source.Read(p) // never fails
	return p
}

func closing(t *testing.T, c io.Closer) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
}

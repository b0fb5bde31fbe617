package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/linux/fsinfo"
)

const (
	dataSnapshot = "before-the-mishap"
	restoredSize = 448 * mib
	rawBefore    = "raw-before"
	rawAfter     = "raw-after"
	rawSize      = 32 * mib
	countFile    = "count"
)

func (v *volumes) copySteps() []step {
	return []step{
		{name: "restore", title: "restore deleted files", run: v.restore,
			claim: "deleted files are restored from the snapshot, byte for byte, in a larger volume"},
		{name: "clone", title: "clone logs", run: v.clone,
			claim: "a clone holds the same bytes, and writing to it does not change the original"},
		{name: "blocks", title: "list changed blocks", run: v.blocks,
			claim: "the first snapshot of a device plus the changed blocks equals the second, byte for byte"},
		{name: "group", title: "snapshot both as a group", run: v.group,
			claim: "a group snapshot shows two volumes at the same instant while both are written to"},
	}
}

// copyOf creates a volume from a snapshot and attaches it.
func (v *volumes) copyOf(ctx context.Context, name, snapshot string, bytes int64) {
	must(v.client.Create(ctx, client.CreateRequest{Name: name, FromSnapshot: snapshot, Size: size(bytes)}))
	v.attach(ctx, name)
}

// discard detaches and deletes a volume.
func (v *volumes) discard(ctx context.Context, name string) {
	check(v.detach(ctx, name))
	check(v.client.Delete(ctx, name))
}

// restore deletes all files of a volume and restores them from a snapshot.
func (v *volumes) restore(ctx context.Context) string {
	s := must(v.client.CreateSnapshot(ctx, dataSnapshot, data, nil))
	want(s.Ready, "snapshot %s is not ready: %+v", dataSnapshot, s)
	for _, e := range must(os.ReadDir(v.target(data))) {
		check(os.RemoveAll(filepath.Join(v.target(data), e.Name())))
	}
	check(syncFS(v.target(data)))
	v.copyOf(ctx, restored, dataSnapshot, restoredSize)
	check(v.files.verify(v.target(restored)))
	grown := must(fsinfo.UsageOf(ctx, v.target(restored))).Bytes.Total - must(fsinfo.UsageOf(ctx, v.target(data))).Bytes.Total
	want(grown >= (restoredSize-volumeSize)*9/10, "the restored volume is %d bytes larger, but its file system only %d", int64(restoredSize-volumeSize), grown)
	return fmt.Sprintf("%d files deleted after a snapshot; all restored with equal checksums, in a volume of %s", fileCount, human(restoredSize))
}

// clone copies a volume in use and changes the copy.
func (v *volumes) clone(ctx context.Context) string {
	began := time.Now()
	must(v.client.Create(ctx, client.CreateRequest{Name: cloned, FromVolume: logs}))
	took := since(began)
	v.attach(ctx, cloned)
	check(v.files.verify(v.target(cloned)))
	check(os.Truncate(must(filesIn(v.target(cloned)))[0], 1))
	check(syncFS(v.target(cloned)))
	check(v.files.verify(v.target(logs)))
	return fmt.Sprintf("in %s, %d checksums equal; writing to the clone did not change the original", took, fileCount)
}

// blocks writes to a device between two snapshots and makes an incremental
// backup: the first snapshot, overwritten by the changed ranges of the second.
func (v *volumes) blocks(ctx context.Context) string {
	must(v.client.Create(ctx, client.CreateRequest{Name: raw, Size: size(rawSize), Capability: &client.Capability{Block: true}}))
	v.attach(ctx, raw)
	backup := randomBytes(77, rawSize)
	v.writeDevice(backup, 0)
	must(v.client.CreateSnapshot(ctx, rawBefore, raw, nil))
	written := bytes.Clone(backup)
	for _, at := range []int64{4 << 10, 10 * mib, rawSize - 64<<10} {
		copy(written[at:], randomBytes(byte(at>>20), 64<<10))
		v.writeDevice(written[at:at+64<<10], at)
	}
	must(v.client.CreateSnapshot(ctx, rawAfter, raw, nil))
	v.copyOf(ctx, "raw-now", rawAfter, 0)
	now := must(os.ReadFile(v.target("raw-now")))
	want(bytes.Equal(now, written), "the volume from snapshot %s differs from the written data", rawAfter)
	changed := int64(0)
	check(v.client.Delta(ctx, rawBefore, rawAfter, 0, func(page client.BlockPage) error {
		for _, r := range page.Ranges {
			changed += r.Length
			copy(backup[r.Offset:r.End()], now[r.Offset:r.End()])
		}
		return nil
	}))
	want(bytes.Equal(backup, now), "snapshot %s plus the changed blocks differs from snapshot %s", rawBefore, rawAfter)
	want(changed <= mib, "192 KiB were written, but the changed blocks are %d bytes", changed)
	v.discard(ctx, "raw-now")
	return fmt.Sprintf("%s of %s changed; %s were written", human(changed), human(rawSize), human(192<<10))
}

// writeDevice writes and syncs.
func (v *volumes) writeDevice(b []byte, offset int64) {
	f := must(os.OpenFile(v.target(raw), os.O_WRONLY, 0))
	_, err := f.WriteAt(b, offset)
	check(errors.Join(err, f.Sync(), f.Close()))
}

// group takes a group snapshot while a writer appends to data and then to logs,
// in turn. In a snapshot of one instant, data is at most one record ahead.
func (v *volumes) group(ctx context.Context) string {
	counter := startWorker(func(n int64) (err error) {
		for _, name := range []string{data, logs} {
			err = errors.Join(err, appendSync(filepath.Join(v.target(name), countFile), []byte{1}))
		}
		return err
	})
	defer counter.stop()
	awaitAll(ctx, 3, counter)
	g := must(v.client.CreateGroup(ctx, "both", []string{data, logs}, nil))
	awaitAll(ctx, 3, counter) // both are still being written to
	check(counter.stop())
	counts := map[string]int{}
	for _, name := range []string{data, logs} {
		source := must(v.client.Show(ctx, name)).ID
		i := slices.IndexFunc(g.Snapshots, func(s client.Snapshot) bool { return s.Source == source })
		want(i >= 0, "the group has no snapshot of %s: %+v", name, g)
		v.copyOf(ctx, "one-of-group", g.Snapshots[i].ID, 0)
		counts[name] = len(must(os.ReadFile(filepath.Join(v.target("one-of-group"), countFile))))
		v.discard(ctx, "one-of-group")
		check(os.Remove(filepath.Join(v.target(name), countFile)))
	}
	ahead := counts[data] - counts[logs]
	want(ahead == 0 || ahead == 1, "the group does not show one instant: a writer that appends to %s first wrote %v records", data, counts)
	return fmt.Sprintf("a writer that alternates between them was at record %d in %s and %d in %s", counts[data], data, counts[logs], logs)
}

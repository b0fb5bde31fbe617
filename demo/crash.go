package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/internal/linux/retry"
)

const (
	kills     = 3
	blockSize = 16 << 10 // bytes per write of the writer
)

func (v *volumes) crashSteps() []step {
	return []step{
		{name: "kill", title: "kill -9 the driver", run: v.kill,
			claim: "kill -9 during calls lost nothing that was acknowledged, and writes to the volume continued"},
		{name: "delete", title: "detach and delete everything", run: v.deleteAll, ends: true},
		{name: "stop", title: "stop driver and host", run: v.stop, ends: true},
		{name: "leave", title: "remove the pool", run: v.removePool, ends: true,
			claim: "nothing is left over: no mount, no loop device, no file"},
	}
}

func killedVolume(n int64) string   { return fmt.Sprintf("killed-%02d", n) }
func killedSnapshot(n int64) string { return fmt.Sprintf("killed-snapshot-%02d", n) }

// load is the load during which the driver is killed.
type load struct {
	created, snapshots, attached *worker // calls to the driver
	writer                       *worker // on a mounted volume
	maxWrite                     time.Duration
}

func (l *load) workers() []*worker { return []*worker{l.created, l.snapshots, l.attached, l.writer} }

func (l *load) stop() (err error) {
	for _, w := range l.workers() {
		err = errors.Join(err, w.stop())
	}
	return err
}

func (v *volumes) journal() string { return filepath.Join(v.target(logs), "journal") }

func (v *volumes) startLoad(ctx context.Context) *load {
	l := &load{}
	l.created = startWorker(func(n int64) error {
		_, err := v.client.Create(ctx, client.CreateRequest{Name: killedVolume(n), Size: size(32 * mib), Capability: &client.Capability{FSType: "ext4"}})
		return err
	})
	l.snapshots = startWorker(func(n int64) error {
		_, err := v.client.CreateSnapshot(ctx, killedSnapshot(n), logs, nil)
		return err
	})
	l.attached = startWorker(func(int64) error {
		if err := v.detach(ctx, restored); err != nil {
			return err
		}
		_, err := v.client.Attach(ctx, client.AttachRequest{Volume: restored, Target: v.target(restored)})
		return err
	})
	l.writer = startWorker(func(n int64) error {
		began := time.Now()
		err := appendSync(v.journal(), randomBytes(byte(n), blockSize))
		l.maxWrite = max(l.maxWrite, time.Since(began))
		return err
	})
	return l
}

// kill kills the driver several times at random instants, and compares its
// state with what it acknowledged.
func (v *volumes) kill(ctx context.Context) string {
	working, cancel := context.WithCancel(ctx)
	l := v.startLoad(working)
	defer l.stop()
	defer cancel()
	interrupted := 0
	var answered, registered time.Duration
	for range kills {
		awaitAll(ctx, 1, l.workers()...)
		time.Sleep(rand.N(20 * time.Millisecond)) // a random instant of the next calls
		v.driver.kill()
		for _, w := range l.workers()[:3] {
			interrupted += int(w.begun.Load() - w.finished.Load())
		}
		killed := time.Now()
		v.startDriver()
		awaitAll(ctx, 1, l.workers()...)
		answered = max(answered, time.Since(killed))
		eventually(ctx, func() error {
			p, err := v.plugins.Lookup(ctx, driverType, driverName)
			if err == nil && !p.Since.After(killed) {
				err = fmt.Errorf("the host has not registered the driver again: %+v", p)
			}
			registered = max(registered, p.Since.Sub(killed))
			return err
		})
	}
	check(l.stop())
	want(interrupted > 0, "%d kills interrupted no call, so they prove nothing", kills)
	v.checkAcknowledged(ctx, l)
	return fmt.Sprintf("%d times; %d calls interrupted, calls succeed again within %s, registered again within %s; longest write %s",
		kills, interrupted, short(answered.Seconds()), short(registered.Seconds()), short(l.maxWrite.Seconds()))
}

// checkAcknowledged fails unless the driver has exactly what it acknowledged,
// and deletes that.
func (v *volumes) checkAcknowledged(ctx context.Context, l *load) {
	acknowledged := map[string]bool{data: true, logs: true, restored: true, cloned: true, raw: true}
	for n := range l.created.finished.Load() {
		acknowledged[killedVolume(n+1)] = true
	}
	for _, one := range must(v.client.List(ctx)) {
		want(acknowledged[one.Name] && one.State == "ready", "volume %s was not acknowledged: %+v", one.Name, one)
		delete(acknowledged, one.Name)
	}
	for n := range l.snapshots.finished.Load() {
		acknowledged[killedSnapshot(n+1)] = true
	}
	for _, s := range must(v.client.Snapshots(ctx, logs)) {
		want(s.Group != "" || acknowledged[s.Name] && s.State == "ready", "snapshot %s was not acknowledged: %+v", s.Name, s)
		delete(acknowledged, s.Name)
	}
	want(len(acknowledged) == 0, "acknowledged, but lost after the kills: %v", acknowledged)
	var written []byte
	for n := range l.writer.finished.Load() {
		written = append(written, randomBytes(byte(n+1), blockSize)...)
	}
	want(bytes.Equal(must(readDisk(v.journal())), written), "%s differs from the written data", v.journal())
	check(os.Remove(v.journal()))
	check(v.files.verify(v.target(restored)))
	last := killedVolume(l.created.finished.Load())
	v.attach(ctx, last)
	check(os.WriteFile(filepath.Join(v.target(last), "file"), randomBytes(1, mib), 0o644))
	check(v.detach(ctx, last))
	for n := range l.created.finished.Load() {
		check(v.client.Delete(ctx, killedVolume(n+1)))
	}
	for n := range l.snapshots.finished.Load() {
		check(v.client.DeleteSnapshot(ctx, killedSnapshot(n+1)))
	}
}

// checkOnlyPoolLeft fails if a mount or loop device of the demo other than the
// pool's is left.
func (v *volumes) checkOnlyPoolLeft(ctx context.Context) {
	mounts, loops, err := leftovers(ctx, v.dir)
	check(err)
	for _, t := range append(mounts, loops...) {
		want(t.path == v.path("pool") || t.path == v.path("pool.img"), "%v is left after all volumes were detached", t)
	}
}

func (v *volumes) deleteAll(ctx context.Context) string {
	check(v.client.DeleteGroup(ctx, "both"))
	snapshots, all := must(v.client.Snapshots(ctx, "")), must(v.client.List(ctx))
	for _, one := range all {
		check(v.detach(ctx, one.Name)) // no error for a volume that is not attached
	}
	v.checkOnlyPoolLeft(ctx)
	for _, s := range snapshots {
		check(v.client.DeleteSnapshot(ctx, s.Name))
	}
	for _, one := range all {
		check(v.client.Delete(ctx, one.Name))
	}
	left := len(must(v.client.List(ctx))) + len(must(v.client.Snapshots(ctx, "")))
	want(left == 0, "the driver still lists %d volumes and snapshots after all were deleted", left)
	check(retry.For(ctx, 10*time.Second, func() (bool, error) {
		now := must(v.client.Capacity(ctx, *xfs(), thick())).Available
		if now < v.free-8*mib { // metadata of the pool's file system
			return true, fmt.Errorf("%d bytes of the pool are free after all volumes were deleted, want %d", now, v.free)
		}
		return false, nil
	}))
	return fmt.Sprintf("%d volumes, %d snapshots, 1 group; no mount or loop device of a volume is left, %s are free again", len(all), len(snapshots), human(v.free))
}

func (v *volumes) stop(ctx context.Context) string {
	check(v.client.Close())
	v.driver.stop()
	eventually(ctx, func() error {
		known, err := v.plugins.List(ctx, "", "")
		if err == nil && len(known) > 0 {
			err = fmt.Errorf("the driver has ended, but the host still lists %+v", known)
		}
		return err
	})
	check(v.plugins.Close())
	v.host.stop()
	checkNoSockets(v.dir)
	return "SIGTERM; the host removed the driver; both ended with exit code 0, no socket is left"
}

func (v *volumes) removePool(ctx context.Context) string {
	v.checkOnlyPoolLeft(ctx)
	check(sweep(ctx, v.dir))
	check(removeFiles(v.dir, logName, markerName))
	return "no mount, no loop device and no file is left"
}

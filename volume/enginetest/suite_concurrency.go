package enginetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// testCancelled calls with contexts that are cancelled or time out soon. A
// repeat of each call must succeed without duplicates.
func testCancelled(t *trial) {
	over, cancel := context.WithCancel(t.ctx)
	cancel()
	begun := time.Now()
	v := t.create(t.request("victim"))
	// Some calls must end before their deadline, also on a loaded machine.
	longest := max(4*time.Millisecond, 2*time.Since(begun))
	for name, call := range map[string]func(ctx context.Context){
		"Get":  func(ctx context.Context) { _, _ = t.Backend.Engine.Get(ctx, v.ID) },
		"List": func(ctx context.Context) { _, _ = t.Backend.Engine.List(ctx, "", 0) },
		"Expand": func(ctx context.Context) {
			_, _ = t.Backend.Engine.Expand(ctx, v.ID, volume.SizeRange{Required: 2 * t.Size})
		},
		"Capacity": func(ctx context.Context) { _, _ = t.Backend.Engine.Capacity(ctx, volume.CapacityQuery{}) },
	} {
		start := time.Now()
		call(over)
		if took := time.Since(start); took > time.Minute {
			t.Errorf("%s with a cancelled context took %s", name, took)
		}
	}
	t.expand(v.ID, volume.SizeRange{Required: 2 * t.Size})

	random := rand.New(rand.NewPCG(1, 2))
	for i := range 12 {
		name := fmt.Sprintf("interrupted %d", i)
		short, cancel := context.WithTimeout(t.ctx, time.Duration(random.Int64N(int64(longest))))
		first, err := t.Backend.Engine.Create(short, t.request(name))
		cancel()
		second := t.createEventually(t.request(name))
		if err == nil && first.ID != second.ID {
			t.Errorf("%s: acknowledged as %s, a repeat returned %s", name, first.ID, second.ID)
		}
		short, cancel = context.WithTimeout(t.ctx, time.Duration(random.Int64N(int64(longest/2))))
		_ = t.Backend.Engine.Delete(short, second.ID)
		cancel()
		if i%2 == 0 {
			t.remove(second.ID)
			t.gone(second.ID)
		}
	}
	t.checkUniqueNames()
}

func (t *trial) createEventually(req volume.CreateRequest) volume.Volume {
	t.Helper()
	var v volume.Volume
	err := retryWhileBusy(t.ctx, func() (err error) {
		v, err = t.Backend.Engine.Create(t.ctx, req)
		return err
	})
	if err != nil {
		t.Fatalf("Create(%q): %v", req.Name, err)
	}
	return v
}

func (t *trial) checkUniqueNames() {
	t.Helper()
	byName := map[string]volume.ID{}
	for _, v := range t.list() {
		if other, taken := byName[v.Name]; taken {
			t.Errorf("name %q is used by volumes %s and %s", v.Name, other, v.ID)
		}
		byName[v.Name] = v.ID
	}
}

const clients = 64

func testConcurrency(t *trial) {
	t.concurrentCreate()
	t.concurrentChurn()
	if t.Backend.Snapshots != nil {
		t.concurrentSnapshots()
	}
}

// concurrentCreate requests the same volumes from all clients. Each name gets
// one volume, which all its clients receive.
func (t *trial) concurrentCreate() {
	var ids [clients]volume.ID
	t.runClients(func(n int) error {
		v, err := t.Backend.Engine.Create(t.ctx, t.request(fmt.Sprintf("shared %d", n%8)))
		ids[n] = v.ID
		return err
	})
	for n, id := range ids {
		if id == "" || id != ids[n%8] {
			t.Errorf("client %d got volume %q, client %d got %q for the same name", n, id, n%8, ids[n%8])
		}
	}
	if all := t.list(); len(all) != 8 {
		t.Errorf("8 names have %d volumes", len(all))
	}
	t.runClients(func(n int) error { return t.Backend.Engine.Delete(t.ctx, ids[n]) })
	if all := t.list(); len(all) != 0 {
		t.Errorf("after deleting all, there are still %+v", all)
	}
}

// concurrentChurn creates and deletes the same names while other clients list.
func (t *trial) concurrentChurn() {
	t.runClients(func(n int) error {
		if n%8 == 7 {
			_, err := t.Backend.Engine.List(t.ctx, "", n%3)
			return err
		}
		v, err := t.Backend.Engine.Create(t.ctx, t.request(fmt.Sprintf("churn %d", n%5)))
		if err != nil {
			return err
		}
		if n%2 == 0 {
			_, err = t.Backend.Engine.Expand(t.ctx, v.ID, volume.SizeRange{Required: t.Size})
			if errs.KindOf(err) == errs.NotFound {
				err = nil // deleted meanwhile
			}
			return err
		}
		return t.Backend.Engine.Delete(t.ctx, v.ID)
	})
	t.checkUniqueNames()
	for _, v := range t.list() {
		t.remove(v.ID)
		t.gone(v.ID)
	}
}

func (t *trial) concurrentSnapshots() {
	v := t.create(t.request("snapped"))
	t.write(v, 3, 0)
	var ids [clients]volume.SnapshotID
	t.runClients(func(n int) error {
		s, err := t.Backend.Snapshots.CreateSnapshot(t.ctx, volume.SnapshotRequest{Name: fmt.Sprintf("snapshot %d", n%8), Source: v.ID})
		ids[n] = s.ID
		return err
	})
	for n, id := range ids {
		if id == "" || id != ids[n%8] {
			t.Errorf("client %d got snapshot %q, client %d got %q for the same name", n, id, n%8, ids[n%8])
		}
	}
	t.runClients(func(n int) error { return t.Backend.Snapshots.DeleteSnapshot(t.ctx, ids[n]) })
	if left := t.snapshots(volume.SnapshotQuery{}); len(left) != 0 {
		t.Errorf("after deleting all, there are still %+v", left)
	}
}

// runClients repeats calls that return Busy.
func (t *trial) runClients(work func(client int) error) {
	t.Helper()
	var group sync.WaitGroup
	start := make(chan struct{})
	for n := range clients {
		group.Go(func() {
			<-start
			if err := retryWhileBusy(t.ctx, func() error { return work(n) }); err != nil {
				t.Errorf("client %d: %v", n, err)
			}
		})
	}
	close(start)
	group.Wait()
}

package dputest

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
)

const clients = 16

// together runs work for all clients, with retries of refused calls.
func (t *trial) together(work func(client int) error) {
	t.Helper()
	var group sync.WaitGroup
	start := make(chan struct{})
	for n := range clients {
		group.Go(func() {
			<-start
			if err := retry(t.ctx, func() error { return work(n) }); err != nil {
				t.Errorf("client %d: %v", n, err)
			}
		})
	}
	close(start)
	group.Wait()
}

func (t *trial) createWithRetry(req *storagev1.CreateDeviceRequest) string {
	t.Helper()
	var name string
	err := retry(t.ctx, func() (err error) {
		name, err = t.create(t.ctx, req)
		return err
	})
	if err != nil {
		t.Fatalf("CreateDevice(%q), repeated: %v", req.GetVolumeId(), err)
	}
	return name
}

// testInterruptedCalls interrupts calls at random times; retries complete them.
func testInterruptedCalls(t *trial) {
	v := t.volume("short")
	random := rand.New(rand.NewPCG(1, 2))
	brief := func(longest int, call func(context.Context)) {
		ctx, cancel := context.WithTimeout(t.ctx, time.Duration(random.IntN(longest))*time.Microsecond)
		defer cancel()
		call(ctx)
	}
	for range 12 {
		var first string
		var err error
		brief(6000, func(ctx context.Context) { first, err = t.create(ctx, v.request()) })
		second := t.createWithRetry(v.request())
		if err == nil && first != second {
			t.Errorf("CreateDevice(%q) answers %q, then %q", v.id, first, second)
		}
		t.still(v, second)
		brief(3000, func(ctx context.Context) { _ = t.remove(ctx, v.id, second) })
		if err := retry(t.ctx, func() error { return t.remove(t.ctx, v.id, second) }); err != nil {
			t.Errorf("DeleteDevice(%q), repeated: %v", v.id, err)
		}
		t.absent(v, second)
	}
}

// testSameVolumeAtOnce: concurrent calls for one volume create one device.
func testSameVolumeAtOnce(t *trial) {
	v := t.volume("one")
	var names [clients]string
	t.together(func(n int) (err error) {
		names[n], err = t.create(t.ctx, v.request())
		return err
	})
	for n, name := range names {
		if name != names[0] {
			t.Errorf("client %d got the device %q, client 0 got %q for the same volume", n, name, names[0])
		}
	}
	t.still(v, names[0])
	t.together(func(int) error { return t.remove(t.ctx, v.id, "") })
	t.absent(v, names[0])
}

// testVolumesAtOnce: concurrent calls create one device per volume.
func testVolumesAtOnce(t *trial) {
	volumes := t.volumes("many", t.Devices)
	var names [clients]string
	t.together(func(n int) (err error) {
		names[n], err = t.create(t.ctx, volumes[n%len(volumes)].request())
		return err
	})
	owner := map[string]string{}
	for n, name := range names {
		id := volumes[n%len(volumes)].id
		if other, taken := owner[name]; taken && other != id {
			t.Errorf("volumes %q and %q both have the device %q", other, id, name)
		}
		owner[name] = id
	}
	for n := range min(clients, len(volumes)) {
		t.still(volumes[n], names[n])
	}
}

// testChurn creates, deletes and lists the same volumes concurrently; in the
// end every call succeeds.
func testChurn(t *trial) {
	volumes := t.volumes("churn", 3)
	t.together(func(n int) error {
		v := volumes[n%len(volumes)]
		switch n % 4 {
		case 0:
			return t.remove(t.ctx, v.id, "")
		case 1:
			if t.servesList {
				_, err := t.page(2, "")
				return err
			}
			return nil
		default:
			_, _ = t.create(t.ctx, v.request()) // a delete can cancel it; its code is checked
			return nil
		}
	})
	for _, v := range volumes {
		name := t.createWithRetry(v.request())
		t.still(v, name)
		t.gone(v, name)
	}
	t.requireStaysAbsent(volumes...)
}

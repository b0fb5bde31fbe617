package devlink

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	before = map[Handle]Device{pf: {Profile: "COMMS", RDMA: true}}
	after  = map[Handle]Device{pf: {Profile: "OS Default"}}
)

// Behind a driver that hangs nobody waits twice, and there is one goroutine.
func TestRecentWhileADriverHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		hangs := make(chan struct{})
		r := &Recent{Ask: func(ctx context.Context) (map[Handle]Device, error) {
			if asked.Add(1) == 1 {
				return before, nil
			}
			<-hangs // deaf to its context
			return after, ctx.Err()
		}}
		devices := func(wait time.Duration) (map[Handle]Device, time.Duration, error) {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			d, err := r.Devices(ctx)
			return d, time.Since(began), err
		}
		if d, _, err := devices(time.Second); err != nil || !cmp.Equal(d, before) {
			t.Fatalf("%v, %v", d, err)
		}
		for i, want := range []time.Duration{time.Second, 0, 0} {
			d, took, err := devices(time.Second)
			if !errors.Is(err, ErrLate) || !cmp.Equal(d, before) || took != want {
				t.Errorf("call %d: %v, %v after %s, want what was told before after %s", i, d, err, took, want)
			}
		}
		close(hangs)
		synctest.Wait()
		if d, _, err := devices(time.Second); err != nil || !cmp.Equal(d, after) || asked.Load() != 3 {
			t.Errorf("after it went on: %v, %v, asked %d times, want 3", d, err, asked.Load())
		}
	})
}

// Many who ask at once get one answer; who leaves harms nobody.
func TestRecentTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int32
		answer := make(chan struct{})
		r := &Recent{Ask: func(ctx context.Context) (map[Handle]Device, error) {
			asked.Add(1)
			<-answer
			return before, ctx.Err()
		}}
		leaves, leave := context.WithCancel(t.Context())
		left, stayed := make(chan error, 1), make(chan error, 3)
		go func() { _, err := r.Devices(leaves); left <- err }()
		synctest.Wait()
		for range 3 {
			go func() {
				d, err := r.Devices(t.Context())
				if !cmp.Equal(d, before) {
					t.Errorf("told %v", d)
				}
				stayed <- err
			}()
		}
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who left is told %v", err)
		}
		synctest.Wait()
		close(answer)
		for range 3 {
			if err := <-stayed; err != nil {
				t.Error(err)
			}
		}
		if asked.Load() != 1 {
			t.Errorf("asked %d times", asked.Load())
		}
		if _, err := r.Devices(leaves); !errors.Is(err, context.Canceled) || asked.Load() != 1 {
			t.Errorf("a context that has ended: %v", err)
		}
	})
}

// What a driver that fails said before stands; what others say is new.
func TestRecentAfterFailures(t *testing.T) {
	other, broken := Handle{"pci", "0000:5e:00.2"}, errors.New("busy")
	answers := []struct {
		told map[Handle]Device
		err  error
		want map[Handle]Device
	}{
		{nil, broken, map[Handle]Device{}},
		{before, nil, before},
		{map[Handle]Device{other: {RDMA: true}}, broken, map[Handle]Device{pf: before[pf], other: {RDMA: true}}},
		{after, broken, map[Handle]Device{pf: {Profile: "OS Default", RDMA: true}, other: {RDMA: true}}},
		{after, nil, after},
		{nil, nil, nil},
	}
	next := 0
	r := &Recent{Ask: func(context.Context) (map[Handle]Device, error) {
		next++
		return answers[next-1].told, answers[next-1].err
	}}
	for i, a := range answers {
		got, err := r.Devices(t.Context())
		if diff := cmp.Diff(a.want, got); diff != "" || !errors.Is(err, a.err) {
			t.Errorf("answer %d: %s %v", i, diff, err)
		}
	}
	if !cmp.Equal(before, map[Handle]Device{pf: {Profile: "COMMS", RDMA: true}}) {
		t.Error("an answer was changed after it was made")
	}
}

func TestRecentOfTheKernel(t *testing.T) {
	if _, err := new(Recent).Devices(t.Context()); err != nil {
		t.Error(err)
	}
}

package op

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
)

func panicFreeExit() { runtime.Goexit() }

// Many clients on few objects, in real time: never two operations on one
// object, no deadlock, nothing left behind.
func TestStormOfOperations(t *testing.T) {
	o := New(t.Context(), 50*time.Millisecond)
	var inside [5]atomic.Int32
	var clients sync.WaitGroup
	for c := range 64 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(c), 1))
			for range 60 {
				picked := random.Perm(len(inside))[:1+random.IntN(2)]
				r := Request{Negates: random.IntN(4) == 0, Fingerprint: fmt.Sprint(picked, random.IntN(3))}
				for _, i := range picked {
					r.Keys = append(r.Keys, fmt.Sprint(i))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(1+random.IntN(100))*time.Millisecond)
				_, err := Do(ctx, o, r, func(ctx context.Context) (int, error) {
					for _, i := range picked {
						if inside[i].Add(1) != 1 {
							t.Errorf("two operations on object %d", i)
						}
						defer inside[i].Add(-1)
					}
					runtime.Gosched()
					return 0, ctx.Err()
				})
				if err != nil && !errors.Is(err, errs.Busy) && !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
				cancel()
			}
		})
	}
	clients.Wait()
	if err := o.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if len(o.held) != 0 || len(o.queue) != 0 {
		t.Errorf("left behind: %d keys, %d waiters", len(o.held), len(o.queue))
	}
}

func TestStormOfLocks(t *testing.T) {
	var l Locks
	var inside [5]atomic.Int32
	var clients sync.WaitGroup
	for c := range 32 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(c), 2))
			for range 200 {
				picked := random.Perm(len(inside))[:random.IntN(4)]
				var keys []string
				for _, i := range picked {
					keys = append(keys, fmt.Sprint(i), fmt.Sprint(i))
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.IntN(2000))*time.Microsecond)
				unlock, err := l.Lock(ctx, keys...)
				cancel()
				if err != nil {
					continue
				}
				for _, i := range picked {
					if inside[i].Add(1) != 1 {
						t.Errorf("two holders of lock %d", i)
					}
				}
				runtime.Gosched()
				for _, i := range picked {
					inside[i].Add(-1)
				}
				unlock()
				unlock()
			}
		})
	}
	clients.Wait()
	if len(l.held) != 0 || len(l.queue) != 0 {
		t.Errorf("left behind: %d keys, %d waiters", len(l.held), len(l.queue))
	}
}

func TestLockIsAllOrNothing(t *testing.T) {
	var l Locks
	unlockA, err := l.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	both := make(chan error, 1)
	go func() {
		_, err := l.Lock(ctx, "a", "b")
		both <- err
	}()
	waitForQueue(&l, 1)
	behind := make(chan error, 1)
	go func() { // waits its turn behind the one that wants both
		unlock, err := l.Lock(t.Context(), "b")
		if err == nil {
			unlock()
		}
		behind <- err
	}()
	waitForQueue(&l, 2)
	cancel()
	if err := <-both; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if err := <-behind; err != nil {
		t.Error(err)
	}
	unlockA()
	if len(l.held) != 0 || len(l.queue) != 0 {
		t.Errorf("left behind: %d keys, %d waiters", len(l.held), len(l.queue))
	}
}

func waitForQueue(l *Locks, length int) {
	for queued := 0; queued < length; runtime.Gosched() {
		l.mu.Lock()
		queued = len(l.queue)
		l.mu.Unlock()
	}
}

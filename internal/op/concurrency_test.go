package op

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestUndoingCancelsAndWaitsForTheRollback(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		rolledBack := false
		create := ask(t.Context(), o, Request{Keys: []string{"v"}, Fingerprint: "c", What: "Create"}, func(ctx context.Context) (string, error) {
			<-ctx.Done()
			if !errors.Is(context.Cause(ctx), ErrUndone) {
				t.Errorf("cause: %v", context.Cause(ctx))
			}
			time.Sleep(10 * time.Second) // longer than others would wait
			rolledBack = true
			return "", errors.New("signal: killed")
		})
		synctest.Wait()
		waiting := ask(t.Context(), o, Request{Keys: []string{"v"}, What: "Expand"}, sleeping(0, "expanded"))
		synctest.Wait()
		remove := ask(t.Context(), o, Request{Keys: []string{"v"}, Cancels: []string{"v"}, Fingerprint: "d", What: "Delete"}, func(context.Context) (string, error) {
			if !rolledBack {
				t.Error("runs before the roll-back was done")
			}
			return "deleted", nil
		})
		synctest.Wait()
		// An identical Create must not join the cancelled one.
		again := ask(t.Context(), o, Request{Keys: []string{"v"}, Fingerprint: "c", What: "Create"}, sleeping(0, "made again"))
		want(t, <-remove, "deleted", nil)
		got := <-create
		want(t, got, "", ErrUndone)
		want(t, got, "", errs.Busy)
		want(t, <-waiting, "", errs.Busy)
		want(t, <-again, "", errs.Busy)
	})
}

func TestUndoingOvertakesThoseThatWait(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		stubborn := ask(t.Context(), o, Request{Keys: []string{"v"}}, func(context.Context) (string, error) {
			time.Sleep(2 * time.Second)
			return "made all the same", nil
		})
		synctest.Wait()
		var order []string
		note := func(name string) func(context.Context) (string, error) {
			return func(context.Context) (string, error) { order = append(order, name); return name, nil }
		}
		expand := ask(t.Context(), o, Request{Keys: []string{"v"}}, note("expand"))
		synctest.Wait()
		remove := ask(t.Context(), o, Request{Keys: []string{"v"}, Cancels: []string{"v"}}, note("delete"))
		want(t, <-stubborn, "made all the same", nil)
		want(t, <-remove, "delete", nil)
		want(t, <-expand, "expand", nil)
		if !slices.Equal(order, []string{"delete", "expand"}) {
			t.Errorf("order: %v", order)
		}
	})
}

func TestUndoingWaitsForUndoing(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		first := ask(t.Context(), o, Request{Keys: []string{"v"}, Cancels: []string{"v"}}, sleeping(5*time.Second, "unstaged"))
		synctest.Wait()
		start := time.Now()
		want(t, <-ask(t.Context(), o, Request{Keys: []string{"v"}, Cancels: []string{"v"}}, sleeping(0, "")), "", errs.Busy)
		if time.Since(start) != 3*time.Second {
			t.Errorf("waited %s", time.Since(start))
		}
		want(t, <-first, "unstaged", nil)
	})
}

func TestUndoingIsBoundedByItsCaller(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		stuck := ask(t.Context(), o, Request{Keys: []string{"v"}}, func(context.Context) (string, error) {
			time.Sleep(time.Hour)
			return "late", nil
		})
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		want(t, <-ask(ctx, o, Request{Keys: []string{"v"}, Cancels: []string{"v"}}, sleeping(0, "")), "", context.DeadlineExceeded)
		want(t, <-stuck, "late", nil)
	})
}

func TestAnswerWithAKindSurvivesBeingUndone(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		create := ask(t.Context(), o, Request{Keys: []string{"v"}}, func(ctx context.Context) (string, error) {
			<-ctx.Done()
			return "", errs.Errorf(errs.Exists, "the name is taken")
		})
		synctest.Wait()
		want(t, <-ask(t.Context(), o, Request{Keys: []string{"v"}, Cancels: []string{"v"}}, sleeping(0, "ok")), "ok", nil)
		want(t, <-create, "", errs.Exists)
	})
}

func TestCancelledOperationIsNotJoined(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		r := Request{Keys: []string{"v"}, Fingerprint: "c", What: "Create"}
		create := ask(t.Context(), o, r, func(ctx context.Context) (string, error) {
			<-ctx.Done()
			time.Sleep(time.Second)
			return "", ctx.Err()
		})
		synctest.Wait()
		remove := ask(t.Context(), o, Request{Keys: []string{"v"}, Cancels: []string{"v"}}, sleeping(0, "deleted"))
		synctest.Wait()
		again := ask(t.Context(), o, r, sleeping(0, "made again"))
		want(t, <-create, "", ErrUndone)
		want(t, <-remove, "deleted", nil)
		want(t, <-again, "made again", nil)
	})
}

// NodeUnpublishVolume must not cancel operations on the volume at other
// targets.
func TestUndoingCancelsOnlyItsObjects(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		other := ask(t.Context(), o, Request{Keys: []string{"v", "target-1"}}, sleeping(time.Second, "published"))
		synctest.Wait()
		r := Request{Keys: []string{"v", "target-2"}, Cancels: []string{"target-2"}}
		want(t, <-ask(t.Context(), o, r, sleeping(0, "unpublished")), "unpublished", nil)
		want(t, <-other, "published", nil)
		own := ask(t.Context(), o, Request{Keys: []string{"v", "target-2"}}, sleeping(time.Hour, ""))
		synctest.Wait()
		want(t, <-ask(t.Context(), o, r, sleeping(0, "unpublished")), "unpublished", nil)
		want(t, <-own, "", ErrUndone)
	})
}

// Background work yields to all other requests.
func TestYielding(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		trim := Request{Keys: []string{"v"}, What: "Trim", Yields: true}
		running := ask(t.Context(), o, trim, sleeping(time.Hour, ""))
		synctest.Wait()
		first := ask(t.Context(), o, Request{Keys: []string{"v"}}, sleeping(time.Second, "first"))
		want(t, <-running, "", ErrYielded)
		waiting := ask(t.Context(), o, trim, sleeping(0, "trimmed"))
		synctest.Wait()
		second := ask(t.Context(), o, Request{Keys: []string{"v"}}, func(context.Context) (string, error) {
			select {
			case a := <-waiting:
				t.Errorf("trimmed before a call that waited: %v", a)
			default:
			}
			return "second", nil
		})
		want(t, <-first, "first", nil)
		want(t, <-second, "second", nil)
		want(t, <-waiting, "trimmed", nil)
	})
}

func panicFreeExit() { runtime.Goexit() }

// Many clients on few objects, in real time: no concurrent operations on an
// object, no deadlock, no leak.
func TestStormOfOperations(t *testing.T) {
	o := New(t.Context(), 50*time.Millisecond)
	var inside [5]atomic.Int32
	var clients sync.WaitGroup
	for c := range 64 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(uint64(c), 1))
			for range 60 {
				picked := random.Perm(len(inside))[:1+random.IntN(2)]
				kind := random.IntN(8)
				r := Request{Yields: kind == 0, Fingerprint: fmt.Sprint(picked, kind == 0, random.IntN(3))}
				for _, i := range picked {
					r.Keys = append(r.Keys, fmt.Sprint(i))
				}
				if kind < 3 && !r.Yields {
					r.Cancels = r.Keys[:1]
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
	testkit.Must(t, o.Close(t.Context()))
	if len(o.held) != 0 || len(o.queue) != 0 {
		t.Errorf("left over: %d keys, %d waiters", len(o.held), len(o.queue))
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
		t.Errorf("left over: %d keys, %d waiters", len(l.held), len(l.queue))
	}
}

func TestLockIsAllOrNothing(t *testing.T) {
	var l Locks
	unlockA := testkit.Value(l.Lock(t.Context(), "a"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	both := make(chan error, 1)
	go func() {
		_, err := l.Lock(ctx, "a", "b")
		both <- err
	}()
	waitForQueue(&l, 1)
	behind := make(chan error, 1)
	go func() { // waits for the caller of both
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
	testkit.Must(t, <-behind)
	unlockA()
	if len(l.held) != 0 || len(l.queue) != 0 {
		t.Errorf("left over: %d keys, %d waiters", len(l.held), len(l.queue))
	}
}

func TestTryLock(t *testing.T) {
	var l Locks
	unlock, ok := l.TryLock("a", "b")
	if !ok {
		t.Fatal("refused though the keys are free")
	}
	if _, ok := l.TryLock("b", "c"); ok {
		t.Error("b was locked twice")
	}
	unlock()
	unlock = testkit.Value(l.Lock(t.Context(), "c"))(t) // not kept by the call that was refused
	unlock()
	if len(l.held) != 0 || len(l.queue) != 0 {
		t.Errorf("left over: %d keys, %d waiters", len(l.held), len(l.queue))
	}
}

func waitForQueue(l *Locks, length int) {
	for queued := 0; queued < length; runtime.Gosched() {
		l.mu.Lock()
		queued = len(l.queue)
		l.mu.Unlock()
	}
}

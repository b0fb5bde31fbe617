package op

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type answer struct {
	value string
	err   error
}

func ask(ctx context.Context, o *Operations, r Request, fn func(context.Context) (string, error)) <-chan answer {
	out := make(chan answer, 1)
	go func() {
		v, err := Do(ctx, o, r, fn)
		out <- answer{v, err}
	}()
	return out
}

func sleeping(d time.Duration, result string) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		select {
		case <-time.After(d):
			return result, nil
		case <-ctx.Done():
			return "", ctx.Err()
		}
	}
}

// bubble runs a test with its own clock, and checks for leaks.
func bubble(t *testing.T, test func(t *testing.T, o *Operations), options ...Option) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		o := New(t.Context(), 3*time.Second, options...)
		test(t, o)
		synctest.Wait()
		if len(o.held) != 0 || len(o.queue) != 0 {
			t.Errorf("left over: %d keys, %d waiters", len(o.held), len(o.queue))
		}
		testkit.Must(t, o.Close(t.Context()))
	})
}

func want(t *testing.T, got answer, value string, kind error) {
	t.Helper()
	if kind == nil && got.err != nil || kind != nil && !errors.Is(got.err, kind) || got.value != value {
		t.Errorf("got %q, %v; want %q, %v", got.value, got.err, value, kind)
	}
}

func TestSameRequestJoins(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		runs := 0
		work := func(ctx context.Context) (string, error) {
			runs++
			return sleeping(10*time.Second, "made")(ctx)
		}
		first := ask(t.Context(), o, Request{Keys: []string{"b", "a"}, Fingerprint: "f", What: "Create"}, work)
		synctest.Wait()
		second := ask(t.Context(), o, Request{Keys: []string{"a", "b", "a"}, Fingerprint: "f"}, work)
		synctest.Wait()
		r := o.Running()
		if len(r) != 1 || r[0].What != "Create" || !slices.Equal(r[0].Keys, []string{"a", "b"}) || r[0].Joined != 2 || r[0].Since.IsZero() {
			t.Errorf("running: %+v", r)
		}
		want(t, <-first, "made", nil)
		want(t, <-second, "made", nil)
		if runs != 1 {
			t.Errorf("ran %d times", runs)
		}
	})
}

func TestQueuedEqualRequestsJoinEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		runs := 0
		work := func(ctx context.Context) (string, error) { runs++; return sleeping(time.Second, "x")(ctx) }
		other := ask(t.Context(), o, Request{Keys: []string{"a"}, Fingerprint: "other"}, sleeping(time.Second, "o"))
		synctest.Wait()
		r := Request{Keys: []string{"a"}, Fingerprint: "same"}
		one, two := ask(t.Context(), o, r, work), ask(t.Context(), o, r, work)
		want(t, <-other, "o", nil)
		want(t, <-one, "x", nil)
		want(t, <-two, "x", nil)
		if runs != 1 {
			t.Errorf("ran %d times", runs)
		}
	})
}

func TestNotJoined(t *testing.T) {
	for name, r := range map[string]Request{
		"other fingerprint":   {Keys: []string{"a"}, Fingerprint: "g"},
		"no fingerprint":      {Keys: []string{"a"}},
		"more keys":           {Keys: []string{"a", "b"}, Fingerprint: "f"},
		"other half of queue": {Keys: []string{"b", "a"}, Fingerprint: ""},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, o *Operations) {
				first := ask(t.Context(), o, Request{Keys: []string{"a"}, Fingerprint: "f"}, sleeping(time.Second, "one"))
				synctest.Wait()
				want(t, <-ask(t.Context(), o, r, sleeping(time.Second, "two")), "two", nil)
				want(t, <-first, "one", nil)
			})
		})
	}
}

func TestOtherRequestWaitsThenIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		long := ask(t.Context(), o, Request{Keys: []string{"volume v"}, What: "CreateVolume"}, sleeping(time.Minute, "made"))
		synctest.Wait()
		start := time.Now()
		got := <-ask(t.Context(), o, Request{Keys: []string{"x", "volume v"}, What: "ExpandVolume"}, sleeping(0, "never"))
		want(t, got, "", errs.Busy)
		if waited := time.Since(start); waited != 3*time.Second {
			t.Errorf("waited %s", waited)
		}
		for _, word := range []string{"volume v", "CreateVolume", "ExpandVolume", "3s"} {
			if !strings.Contains(got.err.Error(), word) {
				t.Errorf("%q does not name %q", got.err, word)
			}
		}
		// Its other key is free again, and others were never kept out.
		want(t, <-ask(t.Context(), o, Request{Keys: []string{"x"}}, sleeping(0, "free")), "free", nil)
		want(t, <-long, "made", nil)
	})
}

func TestBusyNamesEarlierWaiter(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		long := ask(t.Context(), o, Request{Keys: []string{"a"}}, sleeping(time.Minute, ""))
		synctest.Wait()
		front := ask(t.Context(), o, Request{Keys: []string{"a", "b"}, What: "Front"}, sleeping(0, ""))
		synctest.Wait()
		o.wait = time.Second
		back := <-ask(t.Context(), o, Request{Keys: []string{"b"}, What: "Back"}, sleeping(0, ""))
		want(t, back, "", errs.Busy)
		if !strings.Contains(back.err.Error(), "Front waits for it") {
			t.Error(back.err)
		}
		want(t, <-front, "", errs.Busy)
		want(t, <-long, "", nil)
	})
}

func TestDifferentObjectsRunInParallel(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		start := time.Now()
		var all []<-chan answer
		for _, key := range []string{"a", "b", "c"} {
			all = append(all, ask(t.Context(), o, Request{Keys: []string{key}}, sleeping(time.Minute, key)))
		}
		for _, a := range all {
			<-a
		}
		if took := time.Since(start); took != time.Minute {
			t.Errorf("took %s", took)
		}
	})
}

func TestOrderOfArrival(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		var order []string
		var all []<-chan answer
		for _, name := range []string{"0", "1", "2", "3", "4"} {
			all = append(all, ask(t.Context(), o, Request{Keys: []string{"a"}}, func(ctx context.Context) (string, error) {
				order = append(order, name)
				return sleeping(time.Second/2, name)(ctx)
			}))
			synctest.Wait()
		}
		for i, a := range all {
			want(t, <-a, string(rune('0'+i)), nil)
		}
		if !slices.IsSorted(order) || len(order) != 5 {
			t.Errorf("order: %v", order)
		}
	})
}

func TestWorkOutlivesItsCaller(t *testing.T) {
	type key struct{}
	bubble(t, func(t *testing.T, o *Operations) {
		ctx, cancel := context.WithTimeout(context.WithValue(t.Context(), key{}, "request 7"), time.Second)
		defer cancel()
		r := Request{Keys: []string{"v"}, Fingerprint: "f"}
		first := ask(ctx, o, r, func(ctx context.Context) (string, error) {
			if _, has := ctx.Deadline(); has || ctx.Value(key{}) != "request 7" {
				t.Error("the context of the work has the caller's deadline, or not its values")
			}
			return sleeping(10*time.Second, "made")(ctx)
		})
		want(t, <-first, "", context.DeadlineExceeded)
		want(t, <-ask(t.Context(), o, r, sleeping(0, "ran twice")), "made", nil)
	})
}

func TestCanceledWaiterNeverRuns(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		first := ask(t.Context(), o, Request{Keys: []string{"v"}}, sleeping(2*time.Second, "one"))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		got := <-ask(ctx, o, Request{Keys: []string{"v"}}, func(context.Context) (string, error) { t.Error("ran"); return "", nil })
		want(t, got, "", context.DeadlineExceeded)
		if errors.Is(got.err, errs.Busy) || !strings.Contains(got.err.Error(), "has been in progress") {
			t.Error(got.err)
		}
		want(t, <-first, "one", nil)
		done, stop := context.WithCancel(t.Context())
		stop()
		want(t, <-ask(done, o, Request{Keys: []string{"v"}}, func(context.Context) (string, error) { t.Error("ran"); return "", nil }), "", context.Canceled)
	})
}

func TestPanicReachesAllCallers(t *testing.T) {
	var reported []*PanicError
	bubble(t, func(t *testing.T, o *Operations) {
		for name, end := range map[string]func(){"panic": func() { panic("secret of the volume") }, "exit": func() { panicFreeExit() }} {
			r := Request{Keys: []string{"v"}, Fingerprint: "f"}
			work := func(context.Context) (string, error) { time.Sleep(time.Second); end(); return "", nil }
			one, two := ask(t.Context(), o, r, work), ask(t.Context(), o, r, work)
			for _, a := range []answer{<-one, <-two} {
				p, ok := errors.AsType[*PanicError](a.err)
				if !ok || strings.Contains(a.err.Error(), "secret") || errs.KindOf(a.err) != errs.Internal {
					t.Errorf("%s: got %v", name, a.err)
				}
				if name == "panic" && (p.Value != "secret of the volume" || !strings.Contains(p.String(), "op_test.go")) {
					t.Errorf("reported: %s", p)
				}
			}
		}
		if len(reported) != 2 {
			t.Errorf("reported %d panics", len(reported))
		}
	}, OnPanic(func(_ context.Context, p *PanicError) { reported = append(reported, p) }))
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := New(t.Context(), 3*time.Second)
		running := ask(t.Context(), o, Request{Keys: []string{"v"}, What: "Create"}, func(ctx context.Context) (string, error) {
			<-ctx.Done()
			time.Sleep(2 * time.Second)
			return "", ctx.Err()
		})
		synctest.Wait()
		queued := ask(t.Context(), o, Request{Keys: []string{"v"}}, sleeping(0, "never"))
		synctest.Wait()
		bound, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		testkit.WantError(t, "bounded close", o.Close(bound), context.DeadlineExceeded, "Create on [v]")
		want(t, <-queued, "", errs.Unavailable)
		testkit.Must(t, o.Close(t.Context()))
		want(t, <-running, "", ErrClosed)
		want(t, <-ask(t.Context(), o, Request{Keys: []string{"x"}}, sleeping(0, "never")), "", ErrClosed)
	})
}

func TestEndOfTheBaseCancels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, cancel := context.WithCancel(t.Context())
		o := New(base, time.Second)
		running := ask(t.Context(), o, Request{Keys: []string{"v"}}, sleeping(time.Hour, ""))
		synctest.Wait()
		cancel()
		want(t, <-running, "", errs.Unavailable)
		want(t, <-ask(t.Context(), o, Request{Keys: []string{"v"}}, sleeping(0, "")), "", errs.Unavailable)
		testkit.Must(t, o.Close(t.Context()))
	})
}

func TestWrongUse(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		want(t, <-ask(t.Context(), o, Request{}, sleeping(0, "")), "", errs.Internal)
		number := make(chan error, 1)
		go func() {
			_, err := Do(t.Context(), o, Request{Keys: []string{"v"}, Fingerprint: "f"}, func(context.Context) (int, error) { time.Sleep(time.Second); return 1, nil })
			number <- err
		}()
		synctest.Wait()
		want(t, <-ask(t.Context(), o, Request{Keys: []string{"v"}, Fingerprint: "f"}, sleeping(0, "")), "", errs.Internal)
		if err := <-number; err != nil {
			t.Error(err)
		}
	})
}

func TestCanceledWaiterUnblocksLaterOnes(t *testing.T) {
	bubble(t, func(t *testing.T, o *Operations) {
		long := ask(t.Context(), o, Request{Keys: []string{"a"}}, sleeping(time.Minute, "long"))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		both := ask(ctx, o, Request{Keys: []string{"a", "b"}}, sleeping(0, "never"))
		synctest.Wait()
		start := time.Now()
		want(t, <-ask(t.Context(), o, Request{Keys: []string{"b"}}, sleeping(0, "b is free")), "b is free", nil)
		if waited := time.Since(start); waited != time.Second {
			t.Errorf("waited %s", waited)
		}
		want(t, <-both, "", context.DeadlineExceeded)
		want(t, <-long, "long", nil)
	})
}

package server

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

type diary struct {
	mu      sync.Mutex
	entries []string
}

func (d *diary) note(entry string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries = append(d.entries, entry)
}

func (d *diary) check(t *testing.T, want string) {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if got := strings.Join(d.entries, " "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// part serves until it is stopped, and records its calls.
func (d *diary) part(name string) Part {
	stop := make(chan struct{})
	return Part{
		Name:    name,
		Prepare: func(context.Context) error { d.note("prepare-" + name); return nil },
		Run: func(context.Context) error {
			<-stop
			d.note("end-" + name)
			return nil
		},
		Stop: func(context.Context) error {
			d.note("stop-" + name)
			close(stop)
			return nil
		},
	}
}

var errBroken = errors.New("broken")

// running runs the parts in a bubble.
func running(t *testing.T, ctx context.Context, parts ...Part) (chan<- os.Signal, <-chan error) {
	signals, result := make(chan os.Signal, 2), make(chan error, 1)
	go func() { result <- run(ctx, options{Signals: signals, Bound: 10 * time.Second}, parts...) }()
	synctest.Wait()
	return signals, result
}

func TestOrder(t *testing.T) {
	for name, end := range map[string]func(signals chan<- os.Signal, cancel func()){
		"signal":  func(signals chan<- os.Signal, _ func()) { signals <- syscall.SIGTERM },
		"context": func(_ chan<- os.Signal, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				signals, result := running(t, ctx, d.part("a"), d.part("b"), Part{Name: "empty"})
				d.check(t, "prepare-a prepare-b")
				end(signals, cancel)
				if err := <-result; err != nil {
					t.Error(err)
				}
				d.check(t, "prepare-a prepare-b stop-b end-b stop-a end-a")
			})
		})
	}
}

func TestFailures(t *testing.T) {
	fails := func(context.Context) error { return errBroken }
	panics := func(context.Context) error { panic("odd") }
	for name, c := range map[string]struct {
		last  func(d *diary) Part
		want  string // in the error
		diary string
	}{
		"prepare": {func(*diary) Part { return Part{Name: "c", Prepare: fails, Stop: panics} }, "prepare c: broken", "prepare-a prepare-b stop-b end-b stop-a end-a"},
		"start":   {func(*diary) Part { return Part{Name: "c", Run: fails} }, "run c: broken", "prepare-a prepare-b stop-b end-b stop-a end-a"},
		"panic":   {func(*diary) Part { return Part{Name: "c", Run: panics} }, "run c: panic: odd", "prepare-a prepare-b stop-b end-b stop-a end-a"},
		"stop": {func(d *diary) Part {
			return Part{Name: "c", Run: fails, Stop: func(context.Context) error { d.note("stop-c"); return errors.New("stuck") }}
		}, "stop c: stuck", "prepare-a prepare-b stop-c stop-b end-b stop-a end-a"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var d diary
				_, result := running(t, t.Context(), d.part("a"), d.part("b"), c.last(&d))
				if err := <-result; err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("got %v", err)
				}
				d.check(t, c.diary)
			})
		})
	}
}

func TestFailureWhileAnotherPrepares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		first := d.part("a")
		fail := make(chan struct{})
		first.Run = func(context.Context) error { <-fail; return errBroken }
		first.Stop = nil
		second := d.part("b")
		second.Prepare = func(ctx context.Context) error { <-ctx.Done(); d.note("prepared-b"); return nil }
		_, result := running(t, t.Context(), first, second, d.part("c"))
		close(fail)
		if err := <-result; !errors.Is(err, errBroken) {
			t.Errorf("got %v", err)
		}
		d.check(t, "prepare-a prepared-b stop-b end-b")
	})
}

func TestEndWhilePreparing(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(ctx context.Context) error
		want    error
		diary   string
	}{
		"gives up":     {func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, nil, "prepare-a stop-a end-a"},
		"succeeds":     {func(ctx context.Context) error { <-ctx.Done(); return nil }, nil, "prepare-a stop-b end-b stop-a end-a"},
		"really fails": {func(ctx context.Context) error { <-ctx.Done(); return errBroken }, errBroken, "prepare-a stop-a end-a"},
	} {
		for _, way := range []string{"signal", "context"} {
			t.Run(name+" "+way, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var d diary
					ctx, cancel := context.WithCancel(t.Context())
					defer cancel()
					second := d.part("b")
					second.Prepare = c.prepare
					signals, result := running(t, ctx, d.part("a"), second, d.part("c"))
					if way == "signal" {
						signals <- syscall.SIGINT
					} else {
						cancel()
					}
					if err := <-result; !errors.Is(err, c.want) {
						t.Errorf("got %v, want %v", err, c.want)
					}
					d.check(t, c.diary)
				})
			})
		}
	}
}

func TestContextOfStartOutlivesTheOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, 1))
		defer cancel()
		stopping := false
		p := Part{
			Name: "a",
			Run: func(ctx context.Context) error {
				<-ctx.Done()
				if !stopping || ctx.Value(key{}) != 1 {
					t.Error("the context ended before Stop, or has lost its values")
				}
				return ctx.Err() // as many Serve functions; not a failure
			},
			Stop: func(ctx context.Context) error {
				if _, bounded := ctx.Deadline(); !bounded || ctx.Err() != nil {
					t.Error("the context of Stop is not that of the bound")
				}
				stopping = true
				return nil
			},
		}
		_, result := running(t, ctx, p)
		cancel()
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
}

func TestPartsThatEndByThemselves(t *testing.T) {
	ran := make(chan struct{}, 3)
	once := Part{Name: "once", Run: func(context.Context) error { ran <- struct{}{}; return nil }}
	synctest.Test(t, func(t *testing.T) {
		var d diary
		signals, result := running(t, t.Context(), d.part("a"), Part{Name: "done at once", Run: func(context.Context) error { return nil }})
		d.check(t, "prepare-a") // the part continues
		signals <- syscall.SIGTERM
		if err := <-result; err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(run(t.Context(), options{}, once, once), run(t.Context(), options{})); err != nil || len(ran) != 2 {
		t.Errorf("ran %d, %v", len(ran), err)
	}
}

func TestBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		release := make(chan struct{})
		stuck := Part{
			Name: "stuck",
			Run:  func(context.Context) error { <-release; return nil },
			Stop: func(context.Context) error { <-release; return nil },
		}
		slow := d.part("slow")
		inner := slow.Stop
		slow.Stop = func(ctx context.Context) error { <-ctx.Done(); return errors.Join(inner(ctx), ctx.Err()) }
		begun := time.Now()
		signals, result := running(t, t.Context(), slow, stuck)
		signals <- syscall.SIGTERM
		err := <-result
		for _, want := range []string{"stop stuck: timed out", "run stuck: still running", "stop slow: context deadline exceeded"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q", err, want)
			}
		}
		if took := time.Since(begun); took < 10*time.Second || took > 15*time.Second {
			t.Errorf("took %s", took)
		}
		close(release)
	})
}

// A disk that does not answer can keep a part from preparing. The parts before
// it are stopped.
func TestBoundWhilePreparing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var d diary
		release := make(chan struct{})
		stuck := Part{Name: "stuck", Prepare: func(context.Context) error { <-release; return nil }}
		begun := time.Now()
		signals, result := running(t, t.Context(), d.part("a"), stuck)
		signals <- syscall.SIGTERM
		if err := <-result; err == nil || !strings.Contains(err.Error(), "prepare stuck: still running after stop") {
			t.Errorf("got %v", err)
		}
		if took := time.Since(begun); took < 10*time.Second || took > 15*time.Second {
			t.Errorf("took %s", took)
		}
		d.check(t, "prepare-a stop-a end-a")
		close(release)
	})
}

func TestSecondSignalForces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		hangs := func(context.Context) error { <-release; return nil }
		for name, parts := range map[string][]Part{
			"stopping":  {{Name: "a", Run: hangs, Stop: hangs}},
			"preparing": {{Name: "a", Prepare: hangs}},
		} {
			begun := time.Now()
			signals, result := running(t, t.Context(), parts...)
			signals <- syscall.SIGTERM
			synctest.Wait()
			signals <- syscall.SIGTERM
			if err := <-result; !errors.Is(err, errForced) || time.Since(begun) != 0 {
				t.Errorf("%s: got %v after %s", name, err, time.Since(begun))
			}
		}
		close(release)
	})
}

// After Abandon no part is stopped: a call could still be answered meanwhile.
func TestAbandon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		hangs := func(context.Context) error { <-release; return nil }
		lost, begun := errors.New("lost"), time.Now()
		_, result := running(t, t.Context(),
			Part{Name: "a", Run: func(context.Context) error { time.Sleep(time.Second); return Abandon(lost) }},
			Part{Name: "b", Run: hangs, Stop: hangs})
		if err := <-result; !errors.Is(err, lost) || time.Since(begun) != time.Second {
			t.Errorf("got %v after %s", err, time.Since(begun))
		}
		close(release)
	})
}

func TestRealSignal(t *testing.T) {
	var d diary
	var log bytes.Buffer
	p := d.part("a")
	inner := p.Run
	p.Run = func(ctx context.Context) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		return inner(ctx)
	}
	if err := run(t.Context(), options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, p); err != nil {
		t.Error(err)
	}
	if !strings.Contains(log.String(), "signal=terminated") {
		t.Errorf("log: %s", log.String())
	}
}

package adapter_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/kubelet/handler/adapter"
	"github.com/cleatproject/cleat/kubelet/watch"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// kubelets is a handler as the kubelet has them. do is called in each call.
type kubelets struct {
	mu    sync.Mutex
	calls []string
	do    func(call string) error
}

func (k *kubelets) made(call string) error {
	k.mu.Lock()
	k.calls = append(k.calls, call)
	k.mu.Unlock()
	if k.do != nil {
		return k.do(call)
	}
	return nil
}

func (k *kubelets) ValidatePlugin(name, endpoint string, versions []string) error {
	return k.made(fmt.Sprint("validate ", name, endpoint, versions))
}

func (k *kubelets) RegisterPlugin(name, endpoint string, versions []string, timeout *time.Duration) error {
	return k.made(fmt.Sprint("register ", name, endpoint, versions, timeout == nil))
}

func (k *kubelets) DeRegisterPlugin(name, endpoint string) {
	_ = k.made(fmt.Sprint("deregister ", name, endpoint))
}

func plugin(name string) watch.Plugin {
	return watch.Plugin{Type: "Word", Name: name, Endpoint: "/run/p.sock", Versions: []string{"1", "2"}, Socket: "/run/reg.sock"}
}

func TestCallsArePassedOn(t *testing.T) {
	k := &kubelets{}
	h := adapter.New(k, nil)
	for _, call := range []func(context.Context, watch.Plugin) error{h.Validate, h.Register, h.DeRegister} {
		if err := call(t.Context(), plugin("p")); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{"validate p/run/p.sock[1 2]", "register p/run/p.sock[1 2] true", "deregister p/run/p.sock"}
	if diff := cmp.Diff(want, k.calls); diff != "" {
		t.Error(diff)
	}
	refused := errors.New("the text that the plugin is told")
	k.do = func(string) error { return refused }
	if err := h.Validate(t.Context(), plugin("p")); !errors.Is(err, refused) || err.Error() != refused.Error() {
		t.Errorf("Validate: %v", err)
	}
	if err := h.Register(t.Context(), plugin("p")); !errors.Is(err, refused) {
		t.Errorf("Register: %v", err)
	}
	if err := h.DeRegister(t.Context(), plugin("p")); err != nil {
		t.Errorf("DeRegister: %v", err)
	}
	if err := h.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := h.Validate(t.Context(), plugin("p")); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("after Close: %v", err)
	}
}

func TestPanicIsAnError(t *testing.T) {
	for want, do := range map[string]func(string) error{
		"panic: out of luck":   func(string) error { panic("out of luck") },
		"ended its goroutine":  func(string) error { runtime.Goexit(); return nil },
		"invalid memory addre": func(string) error { var p *kubelets; return p.do("") },
	} {
		h := adapter.New(&kubelets{do: do}, nil)
		for _, call := range []func(context.Context, watch.Plugin) error{h.Validate, h.Register, h.DeRegister} {
			if err := call(t.Context(), plugin("p")); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want something with %q", err, want)
			}
		}
		if running := h.Running(); len(running) != 0 {
			t.Errorf("still running: %v", running)
		}
	}
}

// A call that hangs is reported, holds up its own name only, and ends before
// the next one for that name begins.
func TestHungCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		k := &kubelets{do: func(call string) error {
			if strings.HasPrefix(call, "register p/") {
				<-release
				return errors.New("too late to be heard")
			}
			return nil
		}}
		var log bytes.Buffer
		h := adapter.New(k, slog.New(slog.NewTextHandler(&log, nil)))

		short := func(call func(context.Context, watch.Plugin) error) error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			return call(ctx, plugin("p"))
		}
		if err := short(h.Register); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "still runs RegisterPlugin") {
			t.Errorf("Register: %v", err)
		}
		if err := short(h.DeRegister); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "still runs RegisterPlugin of Word \"p\" (/run/p.sock), which began 2s ago") {
			t.Errorf("DeRegister: %v", err)
		}
		if err := h.Register(t.Context(), plugin("other")); err != nil {
			t.Errorf("another name: %v", err)
		}
		if running := h.Running(); len(running) != 1 || running[0].Method != "RegisterPlugin" || running[0].Name != "p" {
			t.Errorf("running: %v", running)
		}
		ended := make(chan error, 1)
		go func() { ended <- h.DeRegister(t.Context(), plugin("p")) }()
		synctest.Wait()
		close(release)
		if err := <-ended; err != nil {
			t.Errorf("DeRegister at last: %v", err)
		}
		want := []string{"register p/run/p.sock[1 2] true", "register other/run/p.sock[1 2] true", "deregister p/run/p.sock"}
		if diff := cmp.Diff(want, k.calls); diff != "" {
			t.Error(diff)
		}
		for _, word := range []string{"cannot be cancelled", "has ended after all", "too late to be heard"} {
			if !strings.Contains(log.String(), word) {
				t.Errorf("the log does not say %q:\n%s", word, &log)
			}
		}
	})
}

func TestCloseNamesWhatStillRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		h := adapter.New(&kubelets{do: func(string) error { <-release; return nil }}, nil)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := h.Validate(ctx, plugin("p")); err == nil {
			t.Error("a hung call returned nil")
		}
		if err := h.Close(ctx); err == nil || !strings.Contains(err.Error(), "ValidatePlugin of Word \"p\"") {
			t.Errorf("Close: %v", err)
		}
		close(release)
		if err := h.Close(t.Context()); err != nil {
			t.Errorf("Close again: %v", err)
		}
	})
}

// Callers of all names at once: never two calls of one name.
func TestOneCallOfANameAtATime(t *testing.T) {
	var mu sync.Mutex
	inside := map[string]int{}
	h := adapter.New(&kubelets{do: func(call string) error {
		_, rest, _ := strings.Cut(call, " ")
		name, _, _ := strings.Cut(rest, "/")
		mu.Lock()
		inside[name]++
		if inside[name] != 1 {
			t.Errorf("%d calls of %s at once", inside[name], name)
		}
		mu.Unlock()
		runtime.Gosched()
		mu.Lock()
		inside[name]--
		mu.Unlock()
		return nil
	}}, nil)
	var callers sync.WaitGroup
	for i := range 24 {
		callers.Go(func() {
			for range 50 {
				if err := h.Register(t.Context(), plugin(fmt.Sprint("p", i%3))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	callers.Wait()
}

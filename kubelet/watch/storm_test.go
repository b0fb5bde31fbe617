package watch

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/test/testkit"
)

// flaky is a handler that fails, panics and is slow until it is repaired. It
// checks that calls for one name are serial.
type flaky struct {
	t        *testing.T
	repaired atomic.Bool

	mu     sync.Mutex
	inside map[string]int // calls, by name
	has    map[string]string
}

func (m *flaky) call(ctx context.Context, p Plugin, done func()) error {
	m.mu.Lock()
	if m.inside[p.Name]++; m.inside[p.Name] > 1 {
		m.t.Errorf("two calls for %s at a time", p.Name)
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.inside[p.Name]--
	}()
	if !m.repaired.Load() {
		switch rand.IntN(20) {
		case 0:
			return errors.New("flaky")
		case 1:
			panic("flaky")
		case 2, 3:
			select {
			case <-time.After(time.Duration(rand.IntN(120)) * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	done()
	return nil
}

func (m *flaky) Validate(ctx context.Context, p Plugin) error { return m.call(ctx, p, func() {}) }
func (m *flaky) Register(ctx context.Context, p Plugin) error {
	return m.call(ctx, p, func() { m.has[p.Socket] = p.Name })
}
func (m *flaky) DeRegister(ctx context.Context, p Plugin) error {
	return m.call(ctx, p, func() { delete(m.has, p.Socket) })
}

// After any sequence of plugins that come, go, swap, hang and fail, with a
// failing handler, exactly the existing plugins are registered.
func TestStorm(t *testing.T) {
	t.Parallel()
	m := &flaky{t: t, inside: map[string]int{}, has: map[string]string{}}
	var calm atomic.Bool
	r := startRig(t, func(o *Options) {
		o.Handlers = map[string]Handler{"T": m}
		o.Concurrency = 4
		o.BackOff = BackOff{First: time.Millisecond, Most: 50 * time.Millisecond}
		o.Timeouts = Timeouts{Dial: 800 * time.Millisecond, GetInfo: 200 * time.Millisecond, Register: 80 * time.Millisecond, Notify: 200 * time.Millisecond}
		o.Grace = 20 * time.Millisecond
	})
	chances := func(ctx context.Context) error {
		switch chance := rand.IntN(30); {
		case calm.Load():
		case chance == 0:
			return errors.New("flaky")
		case chance == 1:
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	const n = 40
	name := func(i int) string { return fmt.Sprint("n", i%15) } // some share one
	hidden := func(i int) string { return r.path(fmt.Sprint(".", i)) }
	serve := func(i int) {
		newPlugin(t, hidden(i), "T", name(i), func(p *plugin) {
			p.info = func(ctx context.Context) (*registration.PluginInfo, error) {
				return &registration.PluginInfo{Type: "T", Name: name(i)}, chances(ctx)
			}
			p.notify = func(ctx context.Context, _ *registration.RegistrationStatus) error { return chances(ctx) }
		})
	}
	at := map[int]string{} // path of each plugin; no entry: hidden
	for i := range n {
		serve(i)
	}
	testkit.Must(t, os.Mkdir(r.path("d0"), 0o750), os.Mkdir(r.path("d1"), 0o750), os.Mkdir(r.path("d2"), 0o750))
	for range 1500 {
		i, place := rand.IntN(n), r.path(fmt.Sprintf("d%d/s%d", rand.IntN(3), rand.IntN(n)))
		from, shown := at[i]
		switch {
		case rand.IntN(20) == 0: // a dead socket comes and goes
			dead := r.path(fmt.Sprint("dead", i))
			testkit.Must(t, listen(t, dead).Close(), os.Remove(dead))
		case shown && rand.IntN(2) == 0:
			testkit.Must(t, os.Rename(from, hidden(i)))
			delete(at, i)
		case place != from: // comes or moves, perhaps to a path that is in use
			if !shown {
				from = hidden(i)
			}
			testkit.Must(t, os.Rename(from, place))
			for j, where := range at {
				if where == place {
					delete(at, j)
					serve(j)
				}
			}
			at[i] = place
		}
		if rand.IntN(10) == 0 {
			time.Sleep(time.Millisecond) // so that the host can act in between
		}
	}
	calm.Store(true)
	m.repaired.Store(true)
	want := map[string]string{}
	for i, place := range at {
		want[place] = name(i)
	}
	testkit.EventuallyNil(t, "exactly the plugins that serve are registered", func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		if diff := cmp.Diff(want, m.has); diff != "" || len(r.List()) != len(want) {
			return fmt.Errorf("serves-, registered+:\n%s\n%+v", diff, r.List())
		}
		return nil
	})
	if err := r.Close(testkit.Context(t), true); err != nil || len(m.has) != 0 || len(r.List()) != 0 {
		t.Errorf("after Close: %v, registered %v, %+v", err, m.has, r.List())
	}
}

// Close at any time: nothing starts afterwards, and plugins that are not
// deregistered are reported.
func TestCloseAtAnyTime(t *testing.T) {
	t.Parallel()
	for range 30 {
		m := &flaky{t: t, inside: map[string]int{}, has: map[string]string{}}
		r := newRig(t, func(o *Options) {
			o.Handlers = map[string]Handler{"T": m}
			o.BackOff = BackOff{First: time.Millisecond, Most: 5 * time.Millisecond}
			o.Timeouts.Register = 80 * time.Millisecond
		})
		for i := range 10 {
			newPlugin(t, r.path(fmt.Sprint("s", i)), "T", fmt.Sprint("n", i%7), nil)
		}
		testkit.Must(t, r.Start(t.Context()))
		time.Sleep(time.Duration(rand.IntN(20)) * time.Millisecond) // any moment will do
		err := r.Close(testkit.Context(t), true)
		if left := len(r.notDeregistered); left < len(m.has) || len(r.List()) != 0 || (err != nil) != (left > 0) {
			t.Errorf("Close: %v, registered %v, %+v", err, m.has, r.List())
		}
	}
}

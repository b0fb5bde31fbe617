package generic_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/kubelet/handler/generic"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// at returns an instance of the plugin "p".
func at(endpoint string) watch.Plugin {
	return watch.Plugin{Type: "Word", Name: "p", Endpoint: endpoint, Socket: endpoint + "-reg", Versions: []string{"1"}}
}

func register(t *testing.T, h *generic.Handler, p watch.Plugin) {
	t.Helper()
	testkit.Must(t, h.Register(t.Context(), p))
}

func deregister(t *testing.T, h *generic.Handler, p watch.Plugin) {
	t.Helper()
	testkit.Must(t, h.DeRegister(t.Context(), p))
}

func wantServing(t *testing.T, h *generic.Handler, want string) {
	t.Helper()
	p, found := h.Serving("Word", "p")
	if p.Endpoint != want || found != (want != "") {
		t.Errorf("serving: %q, %v; want %q", p.Endpoint, found, want)
	}
}

func TestNewestServesThenOlder(t *testing.T) {
	h := generic.New(generic.Options{})
	one, two, three := at("/1"), at("/2"), at("/3")
	wantServing(t, h, "")
	for _, p := range []watch.Plugin{one, two, three, one} { // the last is a repeat
		register(t, h, p)
	}
	wantServing(t, h, "/3")
	testkit.Diff(t, "result", []watch.Plugin{three, two, one}, h.Instances("Word", "p"))
	deregister(t, h, two)
	wantServing(t, h, "/3")
	deregister(t, h, three)
	deregister(t, h, three)
	wantServing(t, h, "/1")
	deregister(t, h, one)
	wantServing(t, h, "")
	if names := h.Names(); len(names) != 0 {
		t.Errorf("left over: %v", names)
	}
}

// An old registrar ends after the new one has announced the same endpoint.
func TestOneEndpointTwoSockets(t *testing.T) {
	h := generic.New(generic.Options{})
	before, after := at("/p"), at("/p")
	after.Socket = "/another-reg"
	register(t, h, before)
	register(t, h, after)
	deregister(t, h, before)
	wantServing(t, h, "/p")
	deregister(t, h, after)
	wantServing(t, h, "")
}

func TestTypesAndNamesAreDistinct(t *testing.T) {
	h := generic.New(generic.Options{})
	other, another := at("/1"), at("/1")
	other.Type, another.Name = "Other", "q"
	for _, p := range []watch.Plugin{at("/1"), other, another} {
		register(t, h, p)
	}
	deregister(t, h, at("/1"))
	var left []string
	for _, n := range h.Names() {
		left = append(left, n.Type+" "+n.Name)
	}
	testkit.Diff(t, "left", []string{"Other p", "Word q"}, left)
}

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*watch.Plugin){
		"no type":   func(p *watch.Plugin) { p.Type = "" },
		"no name":   func(p *watch.Plugin) { p.Name = "" },
		"printable": func(p *watch.Plugin) { p.Name = "p\x1b[2J" },
		"as a path": func(p *watch.Plugin) { p.Endpoint = "unix:///run/p.sock" },
		"relative":  func(p *watch.Plugin) { p.Endpoint = "p.sock" },
	} {
		h := generic.New(generic.Options{})
		p := at("/run/p.sock")
		change(&p)
		for name, call := range map[string]func(context.Context, watch.Plugin) error{"Validate": h.Validate, "Register": h.Register} {
			if err := call(t.Context(), p); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want something with %q", name, err, want)
			}
		}
		if len(h.Names()) != 0 {
			t.Errorf("%s: a refused plugin is kept", want)
		}
	}
}

// recorder records the calls of OnChange; fail decides their result.
type recorder struct {
	states []string
	fail   func(state string) error
}

func (c *recorder) onChange(_ context.Context, n generic.Name) error {
	state := ""
	for _, p := range n.Instances {
		state += p.Endpoint
	}
	c.states = append(c.states, state)
	if c.fail != nil {
		return c.fail(state)
	}
	return nil
}

func (c *recorder) want(t *testing.T, states ...string) {
	t.Helper()
	testkit.Diff(t, "c.states", states, c.states)
	c.states = nil
}

func TestOnChange(t *testing.T) {
	var c recorder
	h := generic.New(generic.Options{OnChange: c.onChange})
	register(t, h, at("/1"))
	register(t, h, at("/1"))
	register(t, h, at("/2"))
	deregister(t, h, at("/3"))
	c.want(t, "/1", "/2/1")

	// A refused instance never becomes visible, and OnChange gets the old state
	// again.
	c.fail = func(state string) error {
		if strings.Contains(state, "/3") {
			return errors.New("disk full")
		}
		return nil
	}
	if err := h.Register(t.Context(), at("/3")); err == nil || !strings.Contains(err.Error(), "disk full") {
		t.Errorf("got %v", err)
	}
	wantServing(t, h, "/2")
	c.want(t, "/3/2/1", "/2/1")

	// A deregistered instance is hidden first, and OnChange is retried until it
	// succeeds.
	c.fail = func(string) error { panic("no disk") }
	if err := h.DeRegister(t.Context(), at("/2")); err == nil || !strings.Contains(err.Error(), "panic: no disk") {
		t.Errorf("got %v", err)
	}
	wantServing(t, h, "/1")
	c.fail = nil
	deregister(t, h, at("/2"))
	deregister(t, h, at("/2"))
	c.want(t, "/1", "/1")
	deregister(t, h, at("/1"))
	c.want(t, "")
}

// If OnChange also fails for the previous state, the next call repeats it: the
// host deregisters after an interrupted Register.
func TestOnChangeRetriedAfterInterruptedRegister(t *testing.T) {
	var c recorder
	h := generic.New(generic.Options{OnChange: c.onChange})
	c.fail = func(string) error { return context.DeadlineExceeded }
	if err := h.Register(t.Context(), at("/1")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	c.want(t, "/1", "")
	c.fail = nil
	deregister(t, h, at("/1"))
	deregister(t, h, at("/1"))
	c.want(t, "")
}

func TestChangesOfANameAreSerial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inside := make(chan struct{})
		h := generic.New(generic.Options{OnChange: func(ctx context.Context, n generic.Name) error {
			if n.Name == "p" && n.Instances[0].Endpoint == "/slow" {
				<-inside
			}
			return nil
		}})
		var calls sync.WaitGroup
		calls.Go(func() { register(t, h, at("/slow")) })
		synctest.Wait()
		other := at("/1")
		other.Name = "q"
		register(t, h, other) // another name does not wait
		ctx, cancel := context.WithCancel(t.Context())
		calls.Go(func() {
			if err := h.Register(ctx, at("/1")); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "in progress") {
				t.Errorf("got %v", err)
			}
		})
		synctest.Wait()
		wantServing(t, h, "") // visible only after OnChange returned
		cancel()
		synctest.Wait()
		close(inside)
		calls.Wait()
		wantServing(t, h, "/slow")
	})
}

func TestProbeAndReach(t *testing.T) {
	dir := t.TempDir()
	live, dead := at(filepath.Join(dir, "live.sock")), at(filepath.Join(dir, "dead.sock"))
	l := testkit.Value(net.Listen("unix", live.Endpoint))(t)
	defer func() { _ = l.Close() }()

	h := generic.New(generic.Options{Probe: generic.Connect})
	if err := h.Register(t.Context(), dead); err == nil || !strings.Contains(err.Error(), "does not serve") {
		t.Errorf("got %v", err)
	}
	register(t, h, live)

	h = generic.New(generic.Options{})
	if _, err := h.Reach(t.Context(), "Word", "p"); err == nil || !strings.Contains(err.Error(), "registered") {
		t.Errorf("got %v", err)
	}
	register(t, h, live)
	register(t, h, dead) // killed, its socket file is left over
	wantServing(t, h, dead.Endpoint)
	p, err := h.Reach(t.Context(), "Word", "p")
	if err != nil || p.Endpoint != live.Endpoint {
		t.Errorf("got %q, %v", p.Endpoint, err)
	}
	deregister(t, h, live)
	if _, err := h.Reach(t.Context(), "Word", "p"); err == nil || !strings.Contains(err.Error(), dead.Endpoint) {
		t.Errorf("got %v", err)
	}
}

func TestChanges(t *testing.T) {
	h := generic.New(generic.Options{})
	register(t, h, at("/1"))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := h.Changes(ctx)
	register(t, h, at("/2")) // not read yet: only the last state is reported
	register(t, h, at("/3"))
	var got []string
	for n := range changes {
		p, found := n.Serving()
		got = append(got, fmt.Sprint(p.Endpoint, found))
		switch len(got) {
		case 1:
			deregister(t, h, at("/9")) // changes nothing
			deregister(t, h, at("/3"))
		case 2:
			deregister(t, h, at("/2"))
			deregister(t, h, at("/1"))
		case 3:
			cancel()
		}
	}
	testkit.Diff(t, "result", []string{"/3true", "/2true", "false"}, got)
	other := at("/1")
	other.Name = "q"
	register(t, h, other)
	for n := range h.Changes(t.Context()) {
		if n.Name != "q" {
			t.Errorf("got %q, which is gone", n.Name)
		}
		break
	}
}

// A caller that modifies a passed or returned slice does not affect the
// handler.
func TestResultsAreCopies(t *testing.T) {
	h := generic.New(generic.Options{})
	given := at("/1")
	register(t, h, given)
	given.Versions[0] = "changed"
	h.Instances("Word", "p")[0].Versions[0] = "changed"
	if p, _ := h.Serving("Word", "p"); p.Versions[0] != "1" {
		t.Error("the handler's own list was changed from outside")
	}
}

package remote

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	hostv1 "github.com/cleatproject/cleat/api/host/v1"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestEveryKindHasItsNumber(t *testing.T) {
	if got, want := len(kinds()), len(hostv1.WatchPluginsResponse_Kind_name)-1; got != want {
		t.Errorf("%d kinds, the contract has %d", got, want)
	}
	at := time.Unix(7, 0).UTC()
	for _, want := range []Change{
		{Kind: Synced, Time: at}, {Kind: Restart, Time: at},
		{Kind: Present, Time: at, Plugin: &watch.Status{Plugin: watch.Plugin{Socket: "/a"}, Phase: watch.Asking}},
		{Kind: Gone, Time: at, Plugin: &watch.Status{Plugin: watch.Plugin{Socket: "/a"}, Phase: watch.Gone}},
	} {
		testkit.Diff(t, "result", want, changeFromWire(changeToWire(want)))
	}
}

// mirror is the state of a client that only watches.
type mirror struct {
	synced bool
	by     map[string]watch.Status
}

func (m *mirror) apply(c Change) {
	switch c.Kind {
	case Present:
		m.by[c.Plugin.Socket] = *c.Plugin
	case Gone:
		delete(m.by, c.Plugin.Socket)
	case Synced:
		m.synced = true
	case Restart:
		m.synced, m.by = false, map[string]watch.Status{}
	}
}

func (m *mirror) list() []watch.Status {
	var all []watch.Status
	for _, socket := range slices.Sorted(maps.Keys(m.by)) {
		all = append(all, m.by[socket])
	}
	return all
}

// A client that starts to watch at any moment ends with the state of the host.
func TestWatchMirrorsTheHost(t *testing.T) {
	r := newRig(t)
	const sockets = 5
	removes := map[string]func(){}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	followers := make(chan error, 20)
	for round := range 20 {
		go func() { followers <- r.followToTheEnd(ctx) }()
		socket := r.path(fmt.Sprintf("%d.sock", round%sockets))
		if remove := removes[socket]; remove != nil {
			remove()
			delete(removes, socket)
			untilGone(t, r, socket)
		} else {
			name := fmt.Sprint("plugin-", round)
			removes[socket] = serve(t, socket, csiPlugin(name))
			r.until(t, name)
		}
	}
	serve(t, r.path("end.sock"), csiPlugin("end"))
	for range 20 {
		if err := <-followers; err != nil {
			t.Error(err)
		}
	}
}

// followToTheEnd watches until the plugin "end" is registered, which is the
// last change.
func (r *rig) followToTheEnd(ctx context.Context) error {
	m := mirror{by: map[string]watch.Status{}}
	for c, err := range r.remote.Watch(ctx) {
		if err != nil {
			return err
		}
		m.apply(c)
		if end := m.by[r.path("end.sock")]; !m.synced || end.Phase != watch.Registered {
			continue
		}
		if diff := cmp.Diff(r.host.List(), m.list(), timesEqual()); diff != "" {
			return fmt.Errorf("(-host +follower):\n%s", diff)
		}
		return nil
	}
	return nil
}

func TestFollowEnds(t *testing.T) {
	r := newRig(t)
	serve(t, r.path("a.sock"), csiPlugin("a"))
	r.until(t, "a")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var seen []Kind
	for c := range Follow(ctx, r.host) {
		if seen = append(seen, c.Kind); c.Kind == Synced {
			cancel()
		}
	}
	testkit.Diff(t, "seen", []Kind{Present, Synced}, seen)
	for range Follow(t.Context(), r.host) { // left at the first change
		break
	}
	for _, err := range r.remote.Watch(t.Context()) {
		if err != nil {
			t.Error(err)
		}
		break
	}
}

// lossy is a host with one more plugin at each snapshot, whose first subscriber
// loses events.
type lossy struct{ subscribed, snapshots int }

func (l *lossy) Subscribe(context.Context) iter.Seq[watch.Event] {
	l.subscribed++
	event := watch.Event{Serial: 9, Lost: l.subscribed == 1, Status: l.status(9)}
	return func(yield func(watch.Event) bool) { yield(event) }
}

func (l *lossy) Snapshot() (serial uint64, all []watch.Status) {
	l.snapshots++
	for i := range l.snapshots {
		all = append(all, l.status(i))
	}
	return 4, all
}

func (l *lossy) status(i int) watch.Status {
	return watch.Status{Plugin: watch.Plugin{Socket: fmt.Sprintf("/%d.sock", i)}}
}

// A client that is too slow receives Restart and then everything again.
func TestSlowWatchersRestart(t *testing.T) {
	var seen []string
	for c := range Follow(t.Context(), &lossy{}) {
		seen = append(seen, string(c.Kind))
		if c.Plugin != nil {
			seen[len(seen)-1] += " " + c.Plugin.Socket
		}
	}
	testkit.Diff(t, "seen", []string{
		"present /0.sock", "synced", "restart",
		"present /0.sock", "present /1.sock", "synced", "present /9.sock",
	}, seen)
}

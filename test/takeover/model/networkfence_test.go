package model

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/takeover/networkfence"
	"github.com/cleatproject/cleat/test/soak"
)

// The world of NetworkFences: two remediations of one node, a user, the manager
// of CSI-Addons, and a driver that knows fenced addresses and no owners. A
// remediation reads all objects at one moment and writes at later ones; the manager
// works for each object apart from the others, in steps, and repeats all when it
// restarts.

// maxObjects that ever exist.
const maxObjects = 5

// fenceScopes are how many events happen at most that no remediation causes, and how
// many remediations can be released.
func fenceScopes() []struct{ events, releases uint8 } {
	return soak.Pick(2, []struct{ events, releases uint8 }{{1, 1}, {0, 2}, {2, 1}, {1, 2}})
}

type fenceWorld struct {
	objects [maxObjects]fence
	created uint8 // objects that ever existed
	driver  bool  // the address is fenced
	actors  [2]fenceActor
	// A user, or a restart of the manager with an object of a user, has lifted.
	userLifted bool
	userFenced bool // an object of the user fences, with success
	budget     uint8
	releases   uint8 // remediations that can be released
}

// fence is a NetworkFence.
type fence struct {
	owner             uint8 // 1, 2, user
	number            uint8
	exists, fenced    bool
	changed, deleting bool
	empty             bool // a marker: it does nothing
	void, dropped     bool
	released          bool
	pending, result   bool // the manager's finalizer; result Succeeded
	working           uint8
	sawUser           bool // its creator read the fence of a user
}

const (
	user = 3

	notWorking uint8 = iota
	toFence          // the call is sent, and not done
	toUnfence
)

// fenceActor is a remediation. Its writes come from a read that can be old.
type fenceActor struct {
	releasing, certified, ended bool
	lifted                      bool // in the status
	fences                      bool // and so unfences with its own release
	writes                      [3]write
	sawUser                     bool // when it read
}

type write struct {
	kind   uint8 // ChangeKind + 1
	at     uint8 // object
	number uint8
	fenced bool
	empty  bool
	was    fence // as read; only Drop relies on it
}

// fenceMutant breaks one rule.
type fenceMutant struct {
	name, violates string
	see            func(networkfence.Object) networkfence.Object
	release        func(all []networkfence.Object) []networkfence.Change // instead of UnfenceChanges
	releases       uint8                                                 // zero is 1
	absent         bool                                                  // what has no object counts as lifted
}

var nodeAddress = []netip.Addr{netip.MustParseAddr("192.0.2.1")}

func (w *fenceWorld) seen(actor uint8, broken fenceMutant) (all []networkfence.Object) {
	for i, f := range w.objects {
		if !f.exists || f.dropped && f.owner == actor {
			continue
		}
		o := networkfence.Object{
			Name: fmt.Sprint(i), Fenced: f.fenced, Deleting: f.deleting, Void: f.void, Released: f.released, Pending: f.pending, Cleat: f.owner != user && f.owner != actor,
			Blocks: []netip.Prefix{netip.PrefixFrom(nodeAddress[0], 32)},
		}
		if f.owner == actor {
			if o.Number = int(f.number); f.changed {
				o.Changed = "by a user"
			}
		}
		if f.result {
			o.Result = "Succeeded"
		}
		if broken.see != nil {
			o = broken.see(o)
		}
		all = append(all, o)
	}
	return all
}

// observe is a read of a remediation: what it certifies, and what it will write.
func (w *fenceWorld) observe(i int, broken fenceMutant) (violation string) {
	actor, a := uint8(i+1), &w.actors[i]
	all := w.seen(actor, broken)
	var changes []networkfence.Change
	if s := networkfence.Read(all, nodeAddress); a.releasing {
		switch a.lifted = s.Lifted || len(s.Recorded) == 0 && (a.lifted || broken.absent); {
		case len(s.Recorded) == 0 && a.lifted:
			isLeft := w.actors[1-i].fences
			*a = fenceActor{ended: true}
			others := slices.ContainsFunc(w.objects[:], func(f fence) bool { return f.exists && f.owner != actor && (f.fenced || f.owner != user) })
			if w.driver && !others && !isLeft && !w.userFenced {
				return "an ended remediation has left a fence"
			}
			return ""
		case a.lifted:
			changes, _ = networkfence.ForgetChanges(all, nodeAddress)
		case broken.release != nil:
			changes = broken.release(all)
		default:
			changes, _ = networkfence.UnfenceChanges(all, nodeAddress)
		}
	} else if s.Held && s.FenceBlocked == "" {
		a.certified = true
		if !w.driver && !w.userLifted {
			return "a certificate, and the driver does not fence"
		}
	} else {
		changes, _ = networkfence.FenceChanges(all, nodeAddress)
	}
	a.writes, a.sawUser = [3]write{}, false
	for n, c := range changes[:min(len(changes), 3)] {
		next := write{kind: uint8(c.Kind) + 1, number: uint8(c.Number), fenced: c.Fenced, empty: c.Marker}
		_, _ = fmt.Sscan(c.Name, &next.at)
		if c.Kind == networkfence.Drop {
			next.was = w.objects[next.at].visible()
		}
		a.writes[n] = next
		a.sawUser = next.kind == uint8(networkfence.Create)+1 && !next.fenced && slices.ContainsFunc(w.objects[:], isUsers)
	}
	return ""
}

func (w *fenceWorld) add(f fence) bool {
	if w.created == maxObjects {
		return false
	}
	f.exists = true
	w.objects[w.created], w.created = f, w.created+1
	return true
}

// visible is what a resourceVersion is of.
func (f fence) visible() fence {
	f.working = notWorking
	return f
}

// isUsers is true for a fence of a user that holds.
func isUsers(f fence) bool {
	return f.owner == user && f.fenced && !f.changed && f.result && !f.deleting
}

func (w *fenceWorld) gone(at int) {
	if f := &w.objects[at]; f.deleting && !f.pending && (f.owner == user || f.dropped) {
		*f = fence{}
	}
}

// write performs the first write of an actor; actors write in order.
func (w *fenceWorld) write(i int) bool {
	a := &w.actors[i]
	next := a.writes[0]
	copy(a.writes[:], a.writes[1:])
	a.writes[2] = write{}
	f := &w.objects[next.at]
	switch networkfence.ChangeKind(next.kind - 1) {
	case networkfence.Create:
		for _, other := range w.objects {
			if other.exists && other.owner == uint8(i+1) && other.number == next.number {
				return true
			}
		}
		a.fences = a.fences || next.fenced
		return w.add(fence{owner: uint8(i + 1), number: next.number, fenced: next.fenced, empty: next.empty, changed: next.empty, sawUser: a.sawUser})
	case networkfence.Release:
		f.void, f.released = f.exists, f.exists
	case networkfence.Delete:
		f.deleting, f.void = f.exists, f.exists
	case networkfence.Drop:
		if f.visible() != next.was {
			return true
		}
		f.deleting, f.dropped = f.exists, f.exists
		w.gone(int(next.at))
	}
	return true
}

// fenceSteps calls visit with each world that follows. It is full if an object could
// not be created for want of space in the model.
func fenceSteps(w fenceWorld, broken fenceMutant, visit func(next fenceWorld, what, violation string)) (full bool) {
	for i := range w.actors {
		next := w
		switch a := &next.actors[i]; {
		case a.ended:
			continue
		case a.writes[0].kind != 0:
			if next.write(i) {
				visit(next, fmt.Sprintf("remediation %d writes %+v", i+1, w.actors[i].writes[0]), "")
			} else {
				full = true
			}
			next = w // killed before it
			next.actors[i].writes = [3]write{}
			visit(next, fmt.Sprintf("remediation %d is interrupted", i+1), "")
		default:
			violation := next.observe(i, broken)
			visit(next, fmt.Sprintf("remediation %d reads", i+1), violation)
		}
		next = w
		if a := &next.actors[i]; (a.certified || w.releases > 1) && !a.releasing && i < int(w.releases) { // what it sends is from before
			a.releasing = true
			visit(next, fmt.Sprintf("remediation %d is released", i+1), "")
		}
	}
	for i, f := range w.objects {
		next := w
		g := &next.objects[i]
		switch {
		case !f.exists:
			continue
		case f.working == toFence || f.working == toUnfence:
			next.driver = f.working == toFence
			g.working, g.result = notWorking, (f.working == toFence) == f.fenced && !f.deleting || f.result // a changed object's status write conflicts
			if f.owner == user {
				next.userFenced = next.driver
				next.userLifted = next.userLifted || !next.driver
			} else if f.changed && f.working == toUnfence {
				next.userLifted = true
			}
			violation := ""
			if !next.driver && f.owner != user && !f.changed {
				// One that a user creates during an unfence is lifted: the driver has no owners.
				if f.sawUser && slices.ContainsFunc(w.objects[:], isUsers) && !w.userLifted {
					violation = "a user's fence is lifted"
				}
				for k, a := range w.actors {
					if a.certified && !a.releasing && !next.userLifted {
						violation = fmt.Sprintf("the certified fence of remediation %d is lifted", k+1)
					}
				}
			}
			visit(next, fmt.Sprintf("the driver has handled object %d", i), violation)
		case f.deleting && f.pending:
			g.pending = false
			next.gone(i)
			visit(next, fmt.Sprintf("the manager leaves object %d", i), "")
		case !f.deleting && !f.result:
			g.pending, g.working = true, toUnfence
			if f.fenced {
				g.working = toFence
			} else if f.empty {
				g.working = notWorking
			}
			visit(next, fmt.Sprintf("the manager handles object %d", i), "")
		}
	}
	if w.budget == 0 {
		return full
	}
	event := func(what string, change func(next *fenceWorld) bool) {
		next := w
		if next.budget--; change(&next) {
			visit(next, what, "")
		}
	}
	event("the manager restarts", func(next *fenceWorld) bool {
		for i := range next.objects {
			if f := &next.objects[i]; f.exists && !f.deleting && !f.empty && f.working == notWorking {
				f.working, f.pending = toUnfence, true
				if f.fenced {
					f.working = toFence
				}
			}
		}
		return *next != w
	})
	event("a user fences", func(next *fenceWorld) bool { return next.add(fence{owner: user, fenced: true}) })
	event("a user unfences by an object", func(next *fenceWorld) bool { return next.add(fence{owner: user}) })
	for i, f := range w.objects {
		if !f.exists {
			continue
		}
		event(fmt.Sprintf("a user removes object %d by force", i), func(next *fenceWorld) bool {
			if f.owner == user || f.working != notWorking {
				return false
			}
			// Others find neither the fence nor the unfence then.
			next.userLifted = next.userLifted || f.deleting || !f.fenced || !w.actors[f.owner-1].releasing
			next.objects[i] = fence{}
			return true
		})
		if f.deleting || f.empty {
			continue
		}
		event(fmt.Sprintf("a user changes the state of object %d", i), func(next *fenceWorld) bool {
			g := &next.objects[i] // the manager handles it again; the result is of before
			g.fenced, g.changed, g.pending, g.working = !f.fenced, true, true, toFence
			if f.fenced {
				g.working = toUnfence
			}
			next.userLifted = next.userLifted || f.fenced
			return f.working == notWorking
		})
		event(fmt.Sprintf("a user deletes object %d", i), func(next *fenceWorld) bool {
			next.objects[i].deleting = true
			next.gone(i)
			return true
		})
	}
	return full
}

const noProgress = "no progress is possible"

// exploreFences also finds a world from which both remediations can never end, if
// both can be released, and otherwise one from which the second can never have a
// certificate: in one without objects that a user has created or changed, and without
// further events.
func exploreFences(broken fenceMutant, events, releases uint8) (worlds int, violation, way string) {
	type step struct {
		parent int
		what   string
	}
	all := []fenceWorld{{budget: events, releases: releases}}
	known := map[fenceWorld]int{all[0]: 0}
	steps := []step{{-1, ""}}
	from := [][]int{nil} // the worlds before, without events
	var ends []int
	trace := func(at int, last string) string {
		for k := at; steps[k].parent >= 0; k = steps[k].parent {
			last = steps[k].what + "\n" + last
		}
		return last
	}
	for at := 0; at < len(all); at++ {
		full := fenceSteps(all[at], broken, func(next fenceWorld, what, wrong string) {
			if wrong != "" && violation == "" {
				violation, way = wrong, trace(at, what)
			}
			if violation != "" {
				return
			}
			index, found := known[next]
			if !found {
				index = len(all)
				known[next] = index
				all, steps, from = append(all, next), append(steps, step{at, what}), append(from, nil)
			}
			if next.budget == all[at].budget {
				from[index] = append(from[index], at)
			}
		})
		if violation != "" {
			return len(all), violation, way
		}
		w := all[at]
		reached := w.actors[1].certified
		if releases > 1 {
			reached = w.actors[0].ended && w.actors[1].ended
		}
		if full || reached || slices.ContainsFunc(w.objects[:], func(f fence) bool { return f.owner == user || f.changed && !f.empty }) {
			ends = append(ends, at)
		}
	}
	canEnd := make([]bool, len(all))
	for len(ends) > 0 {
		at := ends[len(ends)-1]
		ends = ends[:len(ends)-1]
		if !canEnd[at] {
			canEnd[at] = true
			ends = append(ends, from[at]...)
		}
	}
	if at := slices.Index(canEnd, false); at >= 0 {
		return len(all), noProgress, trace(at, "")
	}
	return len(all), "", ""
}

// TestNetworkFences: what the backend of CSI-Addons certifies is fenced, whatever
// another remediation, a user and the manager do in between.
func TestNetworkFences(t *testing.T) {
	for _, c := range fenceScopes() {
		begin := time.Now()
		worlds, violation, way := exploreFences(fenceMutant{}, c.events, c.releases)
		t.Logf("%d worlds with up to %d events and %d releases, %v", worlds, c.events, c.releases, time.Since(begin))
		if violation != "" {
			t.Fatalf("%s:\n%s", violation, way)
		}
	}
}

var fenceMutants = []fenceMutant{
	{
		name: "the result of a fence is not waited for", violates: "the driver does not fence",
		see: func(o networkfence.Object) networkfence.Object {
			if o.Fenced {
				o.Result = "Succeeded"
			}
			return o
		},
	},
	{
		name: "objects of other remediations are not looked at", violates: "is lifted",
		see: func(o networkfence.Object) networkfence.Object {
			if o.Cleat {
				o.Blocks = nil
			}
			return o
		},
	},
	{
		name: "what a user deletes counts as released", violates: "is lifted",
		see: func(o networkfence.Object) networkfence.Object {
			o.Released = o.Released || o.Deleting
			return o
		},
	},
	{
		name: "what is replaced counts as released", violates: "is lifted",
		see: func(o networkfence.Object) networkfence.Object {
			o.Released = o.Released || o.Void
			return o
		},
	},
	{
		name: "a deletion is not waited for", violates: "fence",
		see: func(o networkfence.Object) networkfence.Object { o.Pending = false; return o },
	},
	{
		name: "a user's fence is not looked at", violates: "a user's fence is lifted",
		see: func(o networkfence.Object) networkfence.Object {
			if o.Number == 0 && !o.Cleat {
				o.Blocks = nil
			}
			return o
		},
	},
	{
		name: "the objects are deleted without an unfence", violates: "an ended remediation has left a fence", absent: true,
		release: func(all []networkfence.Object) (drops []networkfence.Change) {
			for _, o := range all {
				if o.Number > 0 {
					drops = append(drops, networkfence.Change{Kind: networkfence.Drop, Name: o.Name})
				}
			}
			return drops
		},
	},
	{
		name: "that another remediation is released is not looked at", violates: "is lifted",
		see: func(o networkfence.Object) networkfence.Object {
			o.Released = o.Released && !o.Cleat
			return o
		},
	},
	{
		name: "what was removed counts as lifted", violates: "an ended remediation has left a fence", absent: true,
	},
	{
		name: "a release always waits for the fence of another remediation", violates: noProgress,
		release: func(all []networkfence.Object) []networkfence.Change {
			if slices.ContainsFunc(all, func(o networkfence.Object) bool { return o.Cleat && o.Fenced && !o.Released }) {
				return nil
			}
			changes, _ := networkfence.UnfenceChanges(all, nodeAddress)
			return changes
		},
	},
	{
		name: "a release does not wait until another remediation replaces its fence", violates: "the driver does not fence",
		see: func(o networkfence.Object) networkfence.Object {
			o.Void = o.Void || o.Cleat && o.Fenced
			return o
		},
	},
	{
		name: "an unfence begins without an object that others find", violates: "is lifted",
		release: func(all []networkfence.Object) []networkfence.Change {
			changes, _ := networkfence.UnfenceChanges(all, nodeAddress)
			for i := range changes {
				changes[i].Marker = false
			}
			return changes
		},
	},
	{
		name: "the result of an unfence is not waited for", violates: "an ended remediation has left a fence",
		see: func(o networkfence.Object) networkfence.Object {
			if !o.Fenced {
				o.Result = "Succeeded"
			}
			return o
		},
	},
}

func TestNetworkFenceMutants(t *testing.T) {
	for _, broken := range fenceMutants {
		t.Run(broken.name, func(t *testing.T) {
			releases := max(broken.releases, 1)
			events := 2 - releases
			if broken.violates == noProgress {
				events = 0
			}
			worlds, violation, way := exploreFences(broken, events, releases)
			if violation == "" || !strings.Contains(violation, broken.violates) {
				t.Errorf("in %d worlds the model finds %q, and not %q:\n%s", worlds, violation, broken.violates, way)
			}
		})
	}
}

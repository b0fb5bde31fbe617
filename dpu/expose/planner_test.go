package expose

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/spdk/snap"
)

// model is a SNAP process of which the releases that nobody could try differ:
// when a hot-plug function gets its address and is called hot-plugged, and
// whether SNAP tells which controllers are suspended.
type model struct {
	block
	early bool // both from its making
	tells bool
	made  int
	busy  map[string]bool // controllers that are plugged in
	down  map[string]bool // controllers that are suspended
}

func (m *model) clone() *model {
	c := *m
	c.functions = slices.Clone(m.functions)
	c.subsystems = slices.Clone(m.subsystems)
	for i := range c.subsystems {
		c.subsystems[i].Namespaces = slices.Clone(c.subsystems[i].Namespaces)
		c.subsystems[i].Controllers = slices.Clone(c.subsystems[i].Controllers)
		for j := range c.subsystems[i].Namespaces {
			c.subsystems[i].Namespaces[j].Controllers = slices.Clone(c.subsystems[i].Namespaces[j].Controllers)
		}
	}
	return &c
}

func (m *model) sub(nqn string) *snap.Subsystem {
	for i := range m.subsystems {
		if m.subsystems[i].NQN == nqn {
			return &m.subsystems[i]
		}
	}
	return nil
}

func (m *model) fn(fits func(snap.Function) bool) *snap.Function {
	if i := slices.IndexFunc(m.functions, fits); i >= 0 {
		return &m.functions[i]
	}
	return nil
}

// state is what the planner sees.
func (m *model) state() block {
	s := m.clone().block
	s.suspended = map[string]bool{}
	for _, f := range s.functions {
		if m.tells && f.Controller != "" {
			s.suspended[f.Controller] = m.down[f.Controller]
		}
	}
	return s
}

// do carries a step out as SNAP would; false: it refuses.
func (m *model) do(t *rapid.T, device string, s Step, loseName bool) bool {
	ctrl := snap.ControllerRef{ID: s.Controller}
	on := func(f snap.Function) bool { return f.Controller == s.Controller }
	switch s.Op {
	case NoteFunction:
		m.note.made(s.Function)
		m.note.there = true
	case NoteGiven:
		m.note.Given, m.note.there = s.Function, true
	case ForgetNote:
		m.note = note{}
	case CreateSubsystem:
		m.subsystems = append(m.subsystems, snap.Subsystem{NQN: s.NQN})
	case CreateNamespace:
		sub := m.sub(s.NQN)
		sub.Namespaces = append(sub.Namespaces, snap.Namespace{Bdev: device, NSID: s.NSID, UUID: s.UUID})
	case CreateFunction:
		if !m.note.Begun {
			m.note.VUID, m.note.Begun, m.note.there = "", true, true
			for _, f := range m.functions {
				m.note.Known = append(m.note.Known, f.VUID)
			}
		}
		m.made++
		f := snap.Function{EmulationType: "NVME", VUID: fmt.Sprint("made", m.made), Hotplugged: m.early}
		if m.early {
			f.PCI = fmt.Sprintf("0000:60:00.%d", m.made)
		}
		m.functions = append(m.functions, f)
		if !loseName {
			m.note.made(f.VUID)
		}
	case CreateController:
		f := m.fn(func(f snap.Function) bool {
			return f.VUID == s.Function && s.PCI == "" || s.PCI != "" && f.PCI == s.PCI
		})
		if f == nil || f.Controller != "" {
			t.Fatalf("%+v on %+v", s, f)
		}
		m.made++
		f.Controller = fmt.Sprint("ctrl", m.made)
		m.down[f.Controller] = true
		sub := m.sub(s.NQN)
		sub.Controllers = append(sub.Controllers, snap.ControllerRef{ID: f.Controller})
	case AttachNamespace:
		ns := m.space(device)
		if ns == nil || slices.Contains(ns.Controllers, ctrl) {
			t.Fatalf("%+v to %+v", s, ns)
		}
		ns.Controllers = append(ns.Controllers, ctrl)
	case ResumeController:
		was := m.down[s.Controller]
		m.down[s.Controller] = false
		return was
	case PlugController:
		f := m.fn(on)
		if m.down[s.Controller] {
			t.Fatalf("plugs %+v in while it is suspended", f)
		}
		was := m.busy[s.Controller]
		m.busy[s.Controller], f.Hotplugged = true, true
		if f.PCI == "" {
			f.PCI = "0000:61:00.0"
		}
		return !was
	case UnplugController:
		f := m.fn(on)
		m.busy[s.Controller] = false
		if !m.early {
			f.Hotplugged, f.PCI = false, ""
		}
	case DetachNamespace:
		ns := m.space(device)
		ns.Controllers = slices.DeleteFunc(ns.Controllers, func(c snap.ControllerRef) bool { return c == ctrl })
	case DestroyController:
		if m.busy[s.Controller] {
			t.Fatalf("%+v while the host has it", s)
		}
		m.fn(on).Controller = ""
		for i := range m.subsystems {
			m.subsystems[i].Controllers = slices.DeleteFunc(m.subsystems[i].Controllers, func(c snap.ControllerRef) bool { return c == ctrl })
		}
	case DestroyNamespace:
		sub := m.sub(s.NQN)
		if i := slices.IndexFunc(sub.Namespaces, func(n snap.Namespace) bool { return n.NSID == s.NSID }); i < 0 || sub.Namespaces[i].Bdev != device || len(sub.Namespaces[i].Controllers) > 0 {
			t.Fatalf("%+v in %+v", s, sub)
		}
		sub.Namespaces = slices.DeleteFunc(sub.Namespaces, func(n snap.Namespace) bool { return n.NSID == s.NSID })
	case DestroyFunction:
		f := m.fn(func(f snap.Function) bool { return f.VUID == s.Function })
		if f == nil || f.Controller != "" {
			t.Fatalf("%+v of %+v", s, f)
		}
		m.functions = slices.DeleteFunc(m.functions, func(f snap.Function) bool { return f.VUID == s.Function })
	case DestroySubsystem:
		if sub := m.sub(s.NQN); len(sub.Namespaces)+len(sub.Controllers) > 0 {
			t.Fatalf("%+v with %+v", s, sub)
		}
		m.subsystems = slices.DeleteFunc(m.subsystems, func(sub snap.Subsystem) bool { return sub.NQN == s.NQN })
	default:
		t.Fatalf("%+v is no step of a block device", s)
	}
	return true
}

func (m *model) space(bdev string) *snap.Namespace {
	for i := range m.subsystems {
		for j := range m.subsystems[i].Namespaces {
			if m.subsystems[i].Namespaces[j].Bdev == bdev {
				return &m.subsystems[i].Namespaces[j]
			}
		}
	}
	return nil
}

// walk does as many steps as are left, or fewer: then it was cut off, maybe just
// when the name of a new function came. It tells whether it got to the end.
func (m *model) walk(t *rapid.T, q Request, hide bool, most int, loseName bool) (Exposed, bool) {
	did := steps{}
	for n := 0; ; n++ {
		s := m.state()
		var step Step
		var shown Exposed
		var err error
		if hide {
			var all []Step
			all, err = s.hide(q, did)
			step = first(all)
		} else {
			step, shown, err = s.expose(q, did)
		}
		switch {
		case err != nil:
			t.Fatalf("%v in %+v", err, s)
		case step.Op == "":
			return shown, true
		case n == most:
			return shown, false
		case n > 20:
			t.Fatalf("still %+v", step)
		}
		lost := loseName && n+1 == most
		if done := m.do(t, q.Device, step, lost); !done && !step.Maybe {
			t.Fatalf("%+v is refused in %+v", step, s)
		}
		did[step] = true
	}
}

// However often exposing and hiding are cut off, and in whatever release: the
// next Expose ends with one function, the next Hide with nothing, and what is of
// others is never touched.
func TestWalksOfBlock(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{early: rapid.Bool().Draw(t, "early"), tells: rapid.Bool().Draw(t, "tells"), busy: map[string]bool{}, down: map[string]bool{}}
		m.random = "6f3a1e2c-0a7b-4c53-9d55-3f9f4f2a1b01"
		m.functions = []snap.Function{
			{EmulationType: "NVME", VUID: "static", PCI: "0000:5e:00.2"},
			{EmulationType: "NVME", VUID: "free of others"},
			{EmulationType: "NVME", VUID: "of others", PCI: "0000:5f:00.0", Hotplugged: true, Controller: "c0"},
		}
		m.subsystems = []snap.Subsystem{{NQN: "nqn.others", Controllers: []snap.ControllerRef{{ID: "c0"}},
			Namespaces: []snap.Namespace{{Bdev: "b", NSID: 1, Controllers: []snap.ControllerRef{{ID: "c0"}}}}}}
		q := blockDevice("a")
		if rapid.Bool().Draw(t, "shared") { // as older releases of the node driver leave it
			m.subsystems[0].Namespaces = append(m.subsystems[0].Namespaces, snap.Namespace{Bdev: "a", NSID: 2})
		}
		others := m.clone().block
		others.subsystems[0].Namespaces = others.subsystems[0].Namespaces[:1]
		if rapid.Bool().Draw(t, "given") {
			q.PCI = "0000:5e:00.2"
		}
		for range rapid.IntRange(0, 6).Draw(t, "cuts") {
			m.walk(t, q, rapid.Bool().Draw(t, "hide"), rapid.IntRange(0, 10).Draw(t, "steps"), rapid.Bool().Draw(t, "lost"))
		}
		shown, _ := m.walk(t, q, false, -1, false)
		made := slices.DeleteFunc(slices.Clone(m.functions), func(f snap.Function) bool {
			return slices.ContainsFunc(others.functions, func(o snap.Function) bool { return o.VUID == f.VUID })
		})
		if f := m.fn(func(f snap.Function) bool { return f.VUID == shown.VUID }); f == nil || f.Controller != shown.Controller || m.down[f.Controller] || len(made) != map[bool]int{true: 0, false: 1}[q.PCI != ""] {
			t.Fatalf("%+v on %+v, made %+v", shown, f, made)
		}
		if rapid.Bool().Draw(t, "notes are lost") {
			m.note = note{}
		}
		for range rapid.IntRange(0, 3).Draw(t, "cuts of hide") {
			m.walk(t, q, true, rapid.IntRange(0, 10).Draw(t, "steps"), false)
		}
		m.walk(t, q, true, -1, false)
		if diff := cmp.Diff(others, m.block, cmp.AllowUnexported(block{}, note{}), cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("hidden:\n%s", diff)
		}
	})
}

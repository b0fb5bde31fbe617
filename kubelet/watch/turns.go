package watch

import "slices"

// turns has the calls of handlers come one after the other for each name, in
// the order in which they were wanted.
type turns map[name]*turn

type name struct{ kind, name string }

// turn is one name's: who has it, and who waits.
type turn struct {
	owner   *socket
	waiting []*socket
}

func (s *socket) name() name { return name{s.status.Type, s.status.Name} }

// enter reports whether the socket has the turn at once; else it waits.
func (t turns) enter(s *socket) bool {
	if of := t[s.name()]; of != nil {
		of.waiting = append(of.waiting, s)
		return false
	}
	t[s.name()] = &turn{owner: s}
	return true
}

// leave returns who has the turn now, if anybody.
func (t turns) leave(s *socket) *socket {
	of := t[s.name()]
	if len(of.waiting) == 0 {
		delete(t, s.name())
		return nil
	}
	of.owner = of.waiting[0]
	of.waiting[0] = nil
	of.waiting = of.waiting[1:]
	return of.owner
}

// withdraw takes back that a socket waits. Sockets that share a name are few.
func (t turns) withdraw(s *socket) {
	of := t[s.name()]
	of.waiting = slices.DeleteFunc(of.waiting, func(other *socket) bool { return other == s })
}

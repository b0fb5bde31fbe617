package plugin

import (
	"maps"
	"sync"
)

// listening is the newest stream of each resource.
type listening struct {
	mu sync.Mutex
	by map[string]*stream
}

func (l *listening) begin(resource string, s *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by == nil {
		l.by = map[string]*stream{}
	}
	l.by[resource] = s
}

func (l *listening) end(resource string, s *stream) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.by[resource] == s {
		delete(l.by, resource)
	}
}

func (l *listening) all() map[string]*stream {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.by)
}

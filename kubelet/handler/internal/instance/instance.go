// Package instance has what the handlers share: ordered sets of plugin
// instances, endpoint checks and connections, and a feed of changes.
package instance

import "slices"

// Instance is one registration: an endpoint and the socket that announced it.
// Two sockets can announce the same endpoint, as the old and new registrar of
// one driver do during an update; the endpoint stays until both are gone.
type Instance[T any] struct {
	Endpoint, Socket string
	Value            T
}

// Set is the instances of one plugin, newest first. During an update two
// instances exist, and either can go first. A Set is immutable: With and
// Without return a new one.
type Set[T any] []Instance[T]

// With returns the set after socket registered an endpoint. A repeated
// registration keeps its position and gets the new value.
func (s Set[T]) With(endpoint, socket string, value T) Set[T] {
	added := Instance[T]{endpoint, socket, value}
	at := s.find(endpoint, socket)
	if at < 0 {
		return slices.Concat(Set[T]{added}, s)
	}
	after := slices.Clone(s)
	after[at] = added
	return after
}

// Without returns the set after socket deregistered an endpoint, and the
// removed value. found is false if that registration was not in the set.
func (s Set[T]) Without(endpoint, socket string) (after Set[T], value T, found bool) {
	at := s.find(endpoint, socket)
	if at < 0 {
		return s, value, false
	}
	return slices.Concat(s[:at], s[at+1:]), s[at].Value, true
}

// Get returns the value of a registration.
func (s Set[T]) Get(endpoint, socket string) (value T, found bool) {
	at := s.find(endpoint, socket)
	if at < 0 {
		return value, false
	}
	return s[at].Value, true
}

// Endpoints returns the newest value of each endpoint, newest first.
func (s Set[T]) Endpoints() []T {
	seen, values := map[string]bool{}, make([]T, 0, len(s))
	for _, i := range s {
		if !seen[i.Endpoint] {
			seen[i.Endpoint] = true
			values = append(values, i.Value)
		}
	}
	return values
}

func (s Set[T]) find(endpoint, socket string) int {
	return slices.IndexFunc(s, func(i Instance[T]) bool { return i.Endpoint == endpoint && i.Socket == socket })
}

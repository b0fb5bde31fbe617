// Package instance is what the handlers share: instances of one plugin in order,
// their endpoints, and a feed of changes.
package instance

import "slices"

// Instance is one registration: an endpoint, and the socket that announced it.
// Two sockets may announce the same endpoint, as the old and the new registrar
// of one driver do: it is gone when both are.
type Instance[T any] struct {
	Endpoint, Socket string
	Value            T
}

// Set is the instances of one plugin, newest first. An update brings a second
// instance beside the first; when either goes, the other one stays. A Set is a
// value: With and Without do not change it.
type Set[T any] []Instance[T]

// With is the set after socket has registered an endpoint. A repeat has the
// new value in the old place.
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

// Without is the set after socket has gone, and what was kept of it; found is
// false when it had not registered that endpoint.
func (s Set[T]) Without(endpoint, socket string) (after Set[T], value T, found bool) {
	at := s.find(endpoint, socket)
	if at < 0 {
		return s, value, false
	}
	return slices.Concat(s[:at], s[at+1:]), s[at].Value, true
}

// Get returns what is kept of a registration.
func (s Set[T]) Get(endpoint, socket string) (value T, found bool) {
	at := s.find(endpoint, socket)
	if at < 0 {
		return value, false
	}
	return s[at].Value, true
}

// Endpoints has the newest of each endpoint's registrations, newest first.
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

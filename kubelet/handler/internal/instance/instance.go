// Package instance has what handlers share: sets of instances, endpoint checks,
// connections, and a feed of changes.
package instance

import "slices"

// Instance is an endpoint and the socket that announced it. During an update
// two sockets can announce the same endpoint, which stays until both are gone.
type Instance[T any] struct {
	Endpoint, Socket string
	Value            T
}

// Set is a plugin's instances, newest first. During an update two exist, and
// either can go first. A Set is immutable.
type Set[T any] []Instance[T]

// With adds a registration. A repeated one keeps its position and gets the new
// value.
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

// Without removes a registration and returns its value. found is false if it
// was not in the set.
func (s Set[T]) Without(endpoint, socket string) (after Set[T], value T, found bool) {
	at := s.find(endpoint, socket)
	if at < 0 {
		return s, value, false
	}
	return slices.Concat(s[:at], s[at+1:]), s[at].Value, true
}

// Get returns a registration's value.
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

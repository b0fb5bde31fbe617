//go:build !crashpoints

// Package crashpoint marks the instants between two durable or kernel steps of
// a call. In the product Hit is empty. A build with the tag crashpoints kills
// the process, or stops the call, at an instant set in its environment, for
// tests.
package crashpoint

// Hit marks an instant, named <call>.<completed step>.
func Hit(string) {}

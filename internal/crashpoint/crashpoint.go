//go:build !crashpoints

// Package crashpoint marks the instants between two durable or kernel steps of
// a mutating call. In the product Hit is empty; a build with the tag
// crashpoints kills the process, or stops the call, at the instant that its
// environment names, so that the tests of crashes and of power cuts can hit
// every one of them.
package crashpoint

// Hit marks an instant, named <call>.<what has just been done>.
func Hit(string) {}

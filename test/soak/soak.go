// Package soak selects how many variants of its cases a test runs. CI runs one
// for each behaviour; `make soak` builds the tests with the tag soak and runs
// all of them.
package soak

// Pick returns all cases in make soak, and the first few elsewhere: list those
// first that test different behaviours.
func Pick[T any](few int, all []T) []T {
	if Enabled {
		return all
	}
	return all[:few]
}

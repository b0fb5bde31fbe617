// Package soak says whether a test runs all variants of its cases. CI runs one
// for each behaviour; `make soak` builds the tests with the tag soak and runs
// all of them.
package soak

// Pick returns all cases in make soak, and the first few of them elsewhere:
// list those first that differ in what they prove.
func Pick[T any](few int, all []T) []T {
	if Enabled {
		return all
	}
	return all[:few]
}

//go:build !crashpoints

package spdk

// child is for the tests that kill a process: they need the build tag
// crashpoints, with which the part crash runs the tests of this package.
func child() {}

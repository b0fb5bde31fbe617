//go:build !soak

package soak

// Enabled reports whether all variants run.
const Enabled = false

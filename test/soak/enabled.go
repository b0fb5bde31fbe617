//go:build soak

package soak

// Enabled says that all variants run.
const Enabled = true

// Package plugin is the storage vendor's plugin itself: it makes devices in the
// SNAP process, remembers them, and takes them back.
package plugin

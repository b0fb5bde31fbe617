// Package control is both ends of sriovdp.control.v1, the socket by which a
// config daemon lets the SR-IOV device plugin offer its devices and takes that
// back. Server puts it before a Plugin; Keeper holds it open on a daemon's
// behalf, over restarts of the plugin; Client asks for people.
package control

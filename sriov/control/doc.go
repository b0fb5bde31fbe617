// Package control is both ends of sriovdp.control.v1, the socket by which a config
// daemon lets the SR-IOV device plugin offer its devices and has them withdrawn.
// Server serves it for a Plugin; Renewer holds EnableDevices open for a daemon,
// over restarts of the plugin; Client makes single calls, for the CLI.
package control

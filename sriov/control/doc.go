// Package control implements both ends of sriovdp.control.v1, the socket by
// which a config daemon lets the SR-IOV device plugin offer its devices and
// withdraws them. Server serves it for a Plugin; Renewer keeps EnableDevices
// open for a daemon, across restarts of the plugin; Client makes single calls
// for the CLI.
package control

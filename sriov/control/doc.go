// Package control implements both ends of sriovdp.control.v1, by which a config
// daemon makes the SR-IOV device plugin offer or withdraw its devices. Server
// serves a Plugin; Renewer keeps EnableDevices open across restarts of the
// plugin; Client makes single calls.
package control

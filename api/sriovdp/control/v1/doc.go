// Package controlv1 is the contract sriovdp.control.v1, generated from
// control.proto: how a config daemon lets the SR-IOV device plugin offer
// devices and withdraws them. Source: the proposal "Device Plugin gRPC Control
// Interface" of the SR-IOV network device plugin. Fields from 100 on and every
// call but EnableDevices are extensions; a peer without them ignores them.
package controlv1

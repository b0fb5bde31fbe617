// Package handler is the house of what a host of plugins (package watch) does
// with each type of plugin; it holds no code of its own.
//
//   - csi takes CSI drivers by the kubelet's rules and knows where each serves.
//   - device keeps the devices of device plugins and allocates them.
//   - generic is for any type: who is there, and which instance serves.
//   - adapter runs a handler that was written for the kubelet.
package handler

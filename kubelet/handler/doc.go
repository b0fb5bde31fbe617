// Package handler has one handler of package watch for each type of plugin;
// the package itself has no code.
//
//   - csi registers CSI drivers by the kubelet's rules.
//   - device keeps the devices of device plugins and allocates them.
//   - generic is for any type: which instances there are, and which one serves.
package handler

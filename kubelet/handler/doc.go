// Package handler contains the watch.Handler implementations:
//
//   - csi registers CSI drivers by the kubelet's rules.
//   - device tracks the devices of device plugins and allocates them.
//   - generic tracks the instances of plugins of any type and which one serves.
package handler

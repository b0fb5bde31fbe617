//go:build tools

// Package csiaddons names the commands of CSI-Addons that are built here, in a
// module of their own: they need older libraries than the sidecars.
package csiaddons

import (
	_ "github.com/csi-addons/kubernetes-csi-addons/cmd/manager"
	_ "github.com/csi-addons/kubernetes-csi-addons/sidecar"
)

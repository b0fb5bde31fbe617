// Package storagev1 is the contract nvidia.storage.plugins.v1, generated from
// storage.proto: what the SNAP node driver of DPF asks of a storage vendor's
// plugin on a DPU. Source: "DPF Storage Development Guide" of NVIDIA.
package storagev1

package main

import "path/filepath"

// samplePluginNames are command names of NVIDIA's sample plugins, hard-coded in
// their chart, with default plugin names.
func samplePluginNames() map[string]string {
	return map[string]string{
		"block-storage-vendor-dpu-plugin": "nvidia",
		"fs-storage-vendor-dpu-plugin":    "nvidia-fs",
		"nfs-storage-vendor-dpu-plugin":   "nvidia-nfs",
		"storage-vendor-dpu-plugin":       "nvidia",
	}
}

const sampleProvider = "nvidia"

// commandLine makes a start under a sample plugin's name run cleat dpu, and one
// as kubectl's plugin cleat kubectl.
func commandLine(args []string) []string {
	if isKubectlPlugin(args[0]) {
		return append([]string{"kubectl"}, args[1:]...)
	}
	if _, is := samplePluginNames()[filepath.Base(args[0])]; is {
		return append([]string{"dpu"}, args[1:]...)
	}
	return args[1:]
}

package main

import "path/filepath"

// samplePluginNames are the command names of NVIDIA's sample plugins, which its
// chart hard-codes, with their default plugin names.
func samplePluginNames() map[string]string {
	return map[string]string{
		"block-storage-vendor-dpu-plugin": "nvidia",
		"fs-storage-vendor-dpu-plugin":    "nvidia-fs",
		"nfs-storage-vendor-dpu-plugin":   "nvidia-nfs",
		"storage-vendor-dpu-plugin":       "nvidia",
	}
}

// sampleProvider is the default name of the SNAP process for all of them.
const sampleProvider = "nvidia"

// commandLine returns the arguments for the root command: a cleat that is started
// by the name of a sample plugin is cleat dpu.
func commandLine(args []string) []string {
	if _, is := samplePluginNames()[filepath.Base(args[0])]; is {
		return append([]string{"dpu"}, args[1:]...)
	}
	return args[1:]
}

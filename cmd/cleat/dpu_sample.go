package main

import "path/filepath"

// samplePluginNames are of NVIDIA's sample plugins, by the command names that its
// chart hard-codes, with the plugin names that they have by default.
func samplePluginNames() map[string]string {
	return map[string]string{
		"block-storage-vendor-dpu-plugin": "nvidia",
		"fs-storage-vendor-dpu-plugin":    "nvidia-fs",
		"nfs-storage-vendor-dpu-plugin":   "nvidia-nfs",
		"storage-vendor-dpu-plugin":       "nvidia",
	}
}

// sampleProvider is the name of the SNAP process by default, for all of them.
const sampleProvider = "nvidia"

// commandLine returns the arguments for the root command. A cleat that is started
// by the name of a sample plugin runs cleat dpu.
func commandLine(args []string) []string {
	if _, is := samplePluginNames()[filepath.Base(args[0])]; is {
		return append([]string{"dpu"}, args[1:]...)
	}
	return args[1:]
}

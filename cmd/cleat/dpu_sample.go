package main

import "path/filepath"

// samplePluginNames returns the command names of NVIDIA's sample plugins, which
// their chart hard-codes, with their default plugin names.
func samplePluginNames() map[string]string {
	return map[string]string{
		"block-storage-vendor-dpu-plugin": "nvidia",
		"fs-storage-vendor-dpu-plugin":    "nvidia-fs",
		"nfs-storage-vendor-dpu-plugin":   "nvidia-nfs",
		"storage-vendor-dpu-plugin":       "nvidia",
	}
}

// sampleProvider is the default SNAP process name of all sample plugins.
const sampleProvider = "nvidia"

// commandLine returns the arguments of the root command: started under the name
// of a sample plugin, cleat runs as cleat dpu.
func commandLine(args []string) []string {
	if _, is := samplePluginNames()[filepath.Base(args[0])]; is {
		return append([]string{"dpu"}, args[1:]...)
	}
	return args[1:]
}

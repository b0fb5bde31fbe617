// Package container decides what a container is given with devices of a pool:
// environment variables, device nodes, CDI devices and the files that tell
// Multus of a device. Names and shapes are those of the SR-IOV network device
// plugin, so that a workload cannot tell which plugin it was served by.
//
// All decisions are pure; Files does the writing and Host the looking.
package container

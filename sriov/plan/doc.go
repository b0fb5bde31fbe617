// Package plan says what is left to do until the SR-IOV functions of a machine
// are as a SriovNetworkNodeState wants them. It is pure: what the machine has
// goes in, steps come out.
package plan

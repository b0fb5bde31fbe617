// Package hostv1 is the contract of cleat host, generated from host.proto:
// which plugins a host of plugins knows, how far each is, and why.
package hostv1

// Package fencev1 is the contract by which a fence service reports what its
// fences cover, generated from fence.proto.
package fencev1

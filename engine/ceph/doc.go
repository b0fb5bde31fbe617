// Package ceph is the engine for volumes in a Ceph cluster: RBD images, reached
// by all nodes.
//
// librados and librbd are the only complete clients of a cluster. Files with
// the build tag "ceph" use them through go-ceph, which follows their API
// release by release; without the tag the package has only what needs no
// cluster: names, ids, metadata, parameters, parsing.
//
// Ceph is the only record. The name of an image follows from the name of its
// volume (names.go), and its metadata has what else a volume is (metadata.go):
//
//   - An image without metadata of its own is an interrupted creation; a repeat
//     completes it.
//   - Deletion renames an image, which frees the name at once. It is removed in
//     the background when no snapshot or clone needs it (reap.go).
//   - An in-memory index answers List; all other calls ask the cluster, so that
//     a new controller can start while an old one ends.
//
// No call waits for the cluster longer than its context: calls into the
// libraries run in goroutines of the engine and end by the timeouts of the
// libraries (call.go). Pools are used with FULL_TRY, so that a full pool
// returns an error instead of blocking.
package ceph

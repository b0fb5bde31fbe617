// Package spdk is the engine for volumes on SPDK targets: lvols, exported over
// NVMe/TCP or RDMA, which hosts reach with the kernel's initiator and DPUs
// through SNAP, with the same locator.
//
// A target forgets all exports when its process ends, and an lvol has no
// metadata. The database has what a volume is (record.go), and which clients
// have a grant (the ledger). The names of lvols and subsystems follow from those
// of volumes (names.go), so that both are recognised without a record; they are
// the names of spdk-csi, whose volumes can be used with their ids.
//
//   - A new volume is recorded before its lvol is created: an interrupted
//     creation is continued where it began.
//   - One function makes an export what the records say (export.go): for a new
//     volume, a grant, a revocation, a fence and after a restart of the target.
//     It runs under the lock of the volume, and reads the records there.
//   - Errors of SPDK often do not say whether an object exists: read, compare,
//     act, and read again.
//   - A snapshot with several clones cannot be deleted. It is recorded, and
//     removed with all but its last clone (delete.go).
package spdk

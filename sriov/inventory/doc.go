// Package inventory reads the SR-IOV functions of a machine, assigns them to
// the resources of config.json and composes what a container gets with them,
// as the SR-IOV network device plugin does:
//
//   - ParseConfig reads config.json. What upstream accepts is accepted with the
//     same meaning; what upstream ignores silently is a warning, and an error in
//     strict mode. Both are of type strictjson.Problem.
//   - Discover reads functions, accelerators and auxiliary devices into one
//     immutable Snapshot; Watch reports when to discover again; Verify checks
//     one device against its Snapshot.
//   - Assign decides which device belongs to which resource; Explain says why.
//   - Allocate, CDISpec and DeviceInfo compose the answer to the kubelet and the
//     files for container runtimes and Multus.
//
// Only Discover, Watch, Verify, DeviceFiles and DeviceNodes do I/O. All else is
// pure: the same configuration and devices, in any order, give the same result.
package inventory

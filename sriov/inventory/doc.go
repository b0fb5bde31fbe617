// Package inventory discovers the SR-IOV functions of a machine, assigns them
// to the resources of config.json, and composes the responses and files for
// containers, compatible with the SR-IOV network device plugin ("upstream"):
//
//   - ParseConfig reads config.json. What upstream accepts is accepted with the
//     same meaning; what upstream ignores silently is a warning, and an error in
//     strict mode. Both are of type strictjson.Problem.
//   - Discover reads functions, accelerators and auxiliary devices into an
//     immutable Snapshot; Watch reports when to discover again; Verify checks one
//     device against its Snapshot.
//   - Assign decides which device belongs to which resource; Explain reports why.
//   - Allocate, CDISpec and DeviceInfo compose the response to the kubelet and the
//     files for container runtimes and Multus.
//
// Only Discover, Watch, Verify, DeviceFiles and DeviceNodes do I/O. All else is
// pure and independent of the order of devices.
package inventory

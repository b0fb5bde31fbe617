package volume

// Severity is the severity of a condition. All but Notice are values of CSI
// 1.13.
type Severity string

const (
	// Notice needs a look, and restricts nothing. CSI has no value for it.
	Notice       Severity = "NOTICE"
	Degraded     Severity = "DEGRADED"
	Inaccessible Severity = "INACCESSIBLE"
	DataLoss     Severity = "DATA_LOSS"
)

// Condition is an adverse condition of a volume or of the shared storage.
// Reason is in CamelCase and unique together with Severity.
type Condition struct {
	Severity Severity `json:"severity"`
	Reason   string   `json:"reason"`
	Message  string   `json:"message"`
}

// NewCondition returns the condition of a reason below. The message begins with
// what to do: CSI passes on 128 bytes. what describes the condition and begins
// with the object, unless that is the volume itself.
func NewCondition(s Severity, reason, what string) Condition {
	return Condition{Severity: s, Reason: reason, Message: actions()[reason] + ": " + what}
}

// Reasons of conditions. They are part of the API.
const (
	// Of a volume on a node.

	// ReasonUnmounted: staged or published, but not mounted.
	ReasonUnmounted = "Unmounted"
	// ReasonRemountedReadOnly: the kernel has made a writable mount read-only.
	ReasonRemountedReadOnly = "RemountedReadOnly"
	// ReasonFileSystemErrors: counted by the kernel.
	ReasonFileSystemErrors = "FileSystemErrors"
	// ReasonFileSystemShutdown: shut down after an error.
	ReasonFileSystemShutdown = "FileSystemShutdown"
	// ReasonFileSystemNotGrown: mounted with its old size on a larger volume.
	ReasonFileSystemNotGrown = "FileSystemNotGrown"
	// ReasonFileDeleted: deleted or replaced while mounted; the data exists
	// until the volume is unstaged.
	ReasonFileDeleted = "BackingFileDeleted"
	// ReasonDeviceLost: the kernel has removed the device.
	ReasonDeviceLost = "DeviceLost"
	// ReasonPathDown: a path of the volume does not work.
	ReasonPathDown = "PathDown"
	// ReasonFlushUncertain: a connection broke, and the kernel can have answered
	// a flush that the target did not execute.
	ReasonFlushUncertain = "FlushUncertain"
	// ReasonInlineVolumeLeft: an inline volume whose pod's directory is gone.
	ReasonInlineVolumeLeft = "InlineVolumeLeft"
	// ReasonStorageUnreachable: the node does not reach the storage.
	ReasonStorageUnreachable = "StorageUnreachable"

	// Of a file of a pool.

	// ReasonFileMissing: the pool is on this machine, without the file.
	ReasonFileMissing = "BackingFileMissing"
	// ReasonFileForeign: a file that is not a volume has its name.
	ReasonFileForeign = "BackingFileForeign"
	// ReasonFileTruncated: shorter than the volume.
	ReasonFileTruncated = "BackingFileTruncated"
	// ReasonFileIncoming: being created, or not moved to its place.
	ReasonFileIncoming = "BackingFileIncoming"
	// ReasonSnapshotDamaged is in StorageHealth: snapshots have no health RPC.
	ReasonSnapshotDamaged = "SnapshotDamaged"
	ReasonOrphanFile      = "OrphanFile"
	// ReasonBeingFilled: a copy into the volume runs.
	ReasonBeingFilled = "BeingFilled"
	// ReasonBeingCopied: the volume cannot be attached before its copies are
	// complete.
	ReasonBeingCopied = "BeingCopied"

	// Of a pool of files, or of Ceph.

	ReasonPoolNearlyFull = "PoolNearlyFull"
	ReasonPoolMissing    = "PoolMissing"
	ReasonPoolReadOnly   = "PoolReadOnly"
	ReasonPoolFailed     = "PoolFailed"

	// Of a Ceph cluster.

	ReasonClusterUnreachable = "ClusterUnreachable"
	ReasonPoolFull           = "PoolFull"
	ReasonPGsInactive        = "PGsInactive"
	ReasonDataDegraded       = "DataDegraded"
	ReasonOSDsDown           = "OSDsDown"
	ReasonMonitorsDown       = "MonitorsDown"
	ReasonDataDamaged        = "DataDamaged"
	ReasonMDSDown            = "MetadataServersDown"
	ReasonMDSSlow            = "MetadataServersSlow"
	ReasonCopyFailed         = "CopyFailed"
	ReasonCopying            = "Copying"

	// Of SPDK targets.

	ReasonTargetUnreachable = "TargetUnreachable"
	ReasonExportsIncomplete = "ExportsIncomplete"
	ReasonLvolMissing       = "LvolMissing"
	ReasonLvolLost          = "LvolLost"
	ReasonStoreFull         = "StoreFull"
	ReasonStoreNearlyFull   = "StoreNearlyFull"
	ReasonUnknownExports    = "UnknownExports"
	ReasonOldDataVisible    = "OldDataVisible"
)

// actions says for each reason in at most maxAction bytes what to do.
func actions() map[string]string {
	return map[string]string{
		ReasonUnmounted:          "delete the pods that use the volume on this node",
		ReasonDeviceLost:         "delete the pods that use the volume on this node",
		ReasonRemountedReadOnly:  "check the kernel log, then stop all its pods on this node",
		ReasonFileSystemErrors:   "check the kernel log, then stop all its pods on this node",
		ReasonFileSystemShutdown: "check the kernel log, then stop all its pods on this node",
		ReasonFileSystemNotGrown: "stop all its pods on this node, and start them again",
		ReasonFileDeleted:        "copy its files to another volume before its pods end",
		ReasonPathDown:           "check this path's target and network",
		ReasonFlushUncertain:     "check the data, then stop all its pods on this node",
		ReasonInlineVolumeLeft:   "if its pod is gone, delete its volume",
		ReasonStorageUnreachable: "check the storage, and this node's way to it",
		ReasonFileMissing:        "restore the file, or delete the volume",
		ReasonFileForeign:        "restore the file, or delete the volume",
		ReasonFileTruncated:      "restore the file, or delete the volume",
		ReasonFileIncoming:       "wait, or free space and restart the driver",
		ReasonSnapshotDamaged:    "restore the file, or delete the snapshot",
		ReasonOrphanFile:         "inspect the file, and delete it if it is not needed",
		ReasonBeingFilled:        "wait for the copy, then use the volume",
		ReasonCopying:            "wait for the copy, then use the volume",
		ReasonBeingCopied:        "wait for the copy, then attach the volume",
		ReasonPoolNearlyFull:     "delete volumes or snapshots, or enlarge the pool",
		ReasonPoolFull:           "delete volumes or snapshots, or enlarge the pool",
		ReasonPoolMissing:        "mount the pool again",
		ReasonPoolReadOnly:       "check the kernel log, then mount the pool for writing",
		ReasonPoolFailed:         "check the kernel log, and repair or replace the disk",
		ReasonClusterUnreachable: "check the cluster's daemons, and the network",
		ReasonPGsInactive:        "start the OSDs that are down (ceph health detail)",
		ReasonOSDsDown:           "start the OSDs that are down (ceph health detail)",
		ReasonDataDegraded:       "wait for the recovery, or start OSDs (ceph health detail)",
		ReasonMonitorsDown:       "start the monitors that are down (ceph health detail)",
		ReasonDataDamaged:        "keep all snapshots, and repair it (ceph health detail)",
		ReasonMDSDown:            "start a metadata server (ceph fs status)",
		ReasonMDSSlow:            "check the metadata servers (ceph health detail)",
		ReasonCopyFailed:         "delete the volume and create it again",
		ReasonTargetUnreachable:  "check the target, its proxy and the network",
		ReasonExportsIncomplete:  "check the target, whose exports are compared every 5 s",
		ReasonLvolMissing:        "wait until the target has loaded the lvol store",
		ReasonLvolLost:           "restore the lvol, or forget it (docs/spdk.md)",
		ReasonStoreFull:          "delete volumes or snapshots",
		ReasonStoreNearlyFull:    "delete volumes or snapshots",
		ReasonUnknownExports:     "remove these exports if no program needs them",
		ReasonOldDataVisible:     "use a bdev that can unmap, or thick volumes",
	}
}

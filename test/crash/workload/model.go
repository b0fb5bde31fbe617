package workload

import "fmt"

// disk is the expected state of a volume, from acknowledged calls.
type disk struct {
	id, name  string
	block     bool
	fsType    string
	group     string // volume_mount_group of a mounted volume
	size      int64  // from the controller's response
	reach     int64  // size of the device on the node, which follows growth later
	thick     bool
	readAhead int // requested KiB; 0: not requested
	context   map[string]string
	grant     map[string]string // publish_context
	granted   bool
	staged    bool
	published bool
	readOnly  bool // of the publish
	data      contents

	// After a reboot the node still has records of lost stages and publishes;
	// they are to be repeated or undone.
	lostStage, lostPublish bool
}

func (d *disk) String() string {
	kind := d.fsType
	if d.block {
		kind = "block"
	}
	return fmt.Sprintf("%s %s (%s, %d MiB)", d.name, d.id, kind, d.size>>20)
}

// snapshotState is the expected state of a snapshot.
type snapshotState struct {
	id, name string
	source   string
	block    bool
	fsType   string
	size     int64
	data     contents
	group    string
}

func (d *disk) newSnapshotState(name string) *snapshotState {
	return &snapshotState{name: name, source: d.id, block: d.block, fsType: d.fsType, size: d.size, data: d.data.copied()}
}

// groupState is the expected state of a group snapshot.
type groupState struct {
	id, name  string
	snapshots []*snapshotState
}

// pendingCall is a call without an answer. Until its repeat is answered its
// effect is unknown.
type pendingCall struct {
	what string
	// Objects that the call can have created or deleted; empty if it cannot.
	newVolumes, newSnapshots int
	goneVolume               string
	goneSnapshots            []string
	granting, modifying      string // volume id whose grant, or whose settings, are unknown
	staging, publishing      string // volume id whose node state is unknown
	ephemeral                bool
	again                    func() error
	// undo, if not nil, is what an orchestrator is allowed to call instead of a
	// repeat when the result is not needed any more.
	undo func() error
	// recopy, of a call that copies, has the model copy the source again: the
	// copy can be made only by the repeated call, from the source's data then.
	recopy func()
	// mounted calls need a mount and cannot be repeated after a reboot.
	mounted bool
}

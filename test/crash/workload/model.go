package workload

import "fmt"

// disk is one volume as the workload knows it from acknowledged calls.
type disk struct {
	id, name  string
	block     bool
	fsType    string
	group     string // volume_mount_group of a mounted volume
	size      int64  // as the controller answered
	reach     int64  // size of the device on the node, which learns of growth later
	thick     bool
	readAhead int // KiB that were asked for; 0: none were
	context   map[string]string
	grant     map[string]string // publish_context
	granted   bool
	staged    bool
	published bool
	readOnly  bool // of the publish
	data      contents

	// After a reboot the node still has on record what it lost then; it is to
	// be made again, or to be taken back.
	lostStage, lostPublish bool
}

func (d *disk) String() string {
	kind := d.fsType
	if d.block {
		kind = "block"
	}
	return fmt.Sprintf("%s %s (%s, %d MiB)", d.name, d.id, kind, d.size>>20)
}

// picture is one snapshot as the workload knows it.
type picture struct {
	id, name string
	source   string
	block    bool
	fsType   string
	size     int64
	data     contents
	group    string
}

func (d *disk) picture(name string) *picture {
	return &picture{name: name, source: d.id, block: d.block, fsType: d.fsType, size: d.size, data: d.data.copied()}
}

// album is one group snapshot.
type album struct {
	id, name string
	pictures []*picture
}

// doubt is a call whose answer never came. Until its repeat is answered the
// effect may be there or not.
type doubt struct {
	what string
	// What the call may have made or taken away; empty where it cannot.
	newVolumes, newSnapshots int
	goneVolume               string
	goneSnapshots            []string
	granting, modifying      string // volume id whose grant, or whose settings, are open
	staging, publishing      string // volume id whose node state is open
	ephemeral                bool
	again                    func() error
	// undo, where there is one, is what an orchestrator may call instead of a
	// repeat when nobody wants the result any more.
	undo func() error
	// recopy, of what makes a copy, has the model copy the source again: it may
	// be made only when the call is repeated, of what the source has then.
	recopy func()
	// mounted calls need what a reboot takes away: they cannot be repeated
	// behind it.
	mounted bool
}

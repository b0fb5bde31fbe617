// Package crash kills cleat csi at named points and at random instants under a
// concurrent workload of every mutating call, and checks after each restart
// that every acknowledged operation is there, that every byte is right, and
// that nothing is left that nobody owns.
package crash

import (
	"fmt"
	"maps"
)

// contents is what a volume must hold: by file name (mount) or block number
// (block) the seed that its bytes are made from.
type contents map[string]uint64

// disk is one volume as the workload knows it from acknowledged calls.
type disk struct {
	id, name  string
	block     bool
	fsType    string
	group     string // volume_mount_group of a mounted volume
	size      int64  // as the controller answered
	reach     int64  // size of the device on the node, which learns of growth later
	context   map[string]string
	grant     map[string]string // publish_context
	granted   bool
	staged    bool
	published bool
	readOnly  bool // of the publish
	data      contents
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
	return &picture{name: name, source: d.id, block: d.block, fsType: d.fsType, size: d.size, data: maps.Clone(d.data)}
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
	staging, publishing      string // volume id whose node state is open
	ephemeral                bool
	again                    func() error
	// undo, where there is one, is what an orchestrator may call instead of a
	// repeat when nobody wants the result any more.
	undo func() error
}

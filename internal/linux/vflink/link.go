package vflink

import "net"

// Setting is what a driver tells of a switch that it may not have.
type Setting uint8

// The settings.
const (
	Unknown Setting = iota // the driver does not tell
	Off
	On
)

// Link is a network device with its table of virtual functions.
type Link struct {
	Index int
	Name  string
	MTU   int
	Up    bool // administratively
	VFs   []VF // by index; empty where it has none, or its driver has no table
}

// VF is an entry of a physical function's table.
type VF struct {
	Index int
	MAC   net.HardwareAddr // nil: none, or the link's addresses are no Ethernet ones
	VLAN  int              // 0 is none
	Trust Setting
	Spoof Setting // spoof checking

	// Of an InfiniBand function. GUIDs tells that the kernel says them.
	GUIDs              bool
	NodeGUID, PortGUID uint64 // most significant byte first when written; 0 is none
}

// VF is the entry with an index.
func (l Link) VF(index int) (VF, bool) {
	for _, v := range l.VFs {
		if v.Index == index {
			return v, true
		}
	}
	return VF{}, false
}

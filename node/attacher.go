package node

import (
	"context"
	"os"
	"time"

	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Attacher turns the locators of one protocol into block devices of this
// machine. An implementation keeps no record of attached devices: the kernel
// knows them, and Target identifies the device to look for. node/nodetest tests
// every sentence of this interface.
//
// In this process no two calls for one volume are in flight at the same time,
// except for Inspect and Held. Other processes can make any call at any time.
// The Manager holds Lock while it attaches and mounts, or unmounts and
// detaches. Every call is idempotent and can be killed at any point: the next
// one, in this process or another, continues.
//
// A volume can be deleted or replaced by another of its name while it is
// attached. Its device then works until it is detached, and is not the device of
// the new volume.
//
// Errors have a kind of package errs; the kinds named here have the given
// meaning, others are the attacher's choice.
type Attacher interface {
	// Lock keeps other processes from snapshotting, copying or deleting the
	// volume until unlock is called, so that they never find it partly
	// attached. It waits some seconds for such a process to finish, and then
	// returns Busy. Locks are shared between attachers. An attached device
	// holds no lock. Lock succeeds for a volume that does not exist or cannot
	// be attached; the call that follows returns the error.
	Lock(ctx context.Context, t Target) (unlock func(), err error)
	// Inspect reports the state of a volume and changes nothing. A missing or
	// damaged volume is described by Info, not by an error. While the device of
	// a deleted or replaced volume exists (Target.Device), Inspect reports that
	// device, even if the new volume is attached too.
	Inspect(ctx context.Context, t Target) (Info, error)
	// Attach creates the device of a volume, or finds the existing device and
	// adjusts it to the use, also after SetReadOnly. A volume never has two
	// devices, even if other processes attach it at the same time: Lock does
	// not prevent that. Attach returns when the device is ready with all its
	// settings. The caller holds Lock. NotFound: the volume does not exist.
	// Precondition: the storage is not on this machine, the volume is damaged,
	// or its device is in use and cannot be adjusted, and is then unchanged.
	// Busy: the volume is being deleted or copied.
	Attach(ctx context.Context, t Target, use Use) (*Attachment, error)
	// Detach flushes and removes every device of the volume, including those of
	// deleted and replaced volumes (Target.Device), and returns when the
	// devices are gone. A missing device is no error; neither is storage that
	// is not on this machine. Precondition: a device is in use and unchanged;
	// the message says by what, where that can be found out. An error of the
	// flush is returned once; the next Detach removes the device anyway.
	Detach(ctx context.Context, t Target) error
	// Resize sets the device to the current size of its volume, and returns it
	// in bytes. Precondition: the volume does not have exactly one device.
	Resize(ctx context.Context, t Target) (size int64, err error)
	// SetReadOnly makes the device read-only or writable, also while it is in
	// use. Precondition: the volume does not have exactly one device.
	SetReadOnly(ctx context.Context, t Target, readOnly bool) error
	// Held lists every device that the kernel has for this storage, including
	// those of deleted volumes, and no others. At start-up the Manager detaches
	// the devices without a record: Detach must remove a device given only the
	// values of Held. Unavailable: the storage is not on this machine.
	Held(ctx context.Context) ([]Held, error)
}

// Target identifies a volume for an Attacher.
type Target struct {
	// Locator is the location of the volume. It is nil only in Detach, for a
	// device that Held listed without a locator.
	Locator access.Access
	// Device is the known part of the device that the volume was attached as:
	// all of it, Backing alone (from Inspect, if the caller was killed during
	// Attach), or nothing. It identifies a device whose volume was deleted or
	// replaced. It can be stale: a device with another Backing, or of another
	// volume, does not match.
	Device Device
}

// Use is how a device is used.
type Use struct {
	// Block: the device itself is used, and stays until Detach. Otherwise a
	// file system on it is mounted, and the kernel removes the device when it
	// is neither open nor mounted, if the kernel supports that.
	Block bool
	// ReadOnly: the device refuses writes.
	ReadOnly bool
}

// Device is a block device of this machine.
type Device struct {
	Path  string `json:"path"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	// Backing identifies the volume of the device, in a format of the
	// attacher's choice: the Manager only compares it. It is known before the
	// volume is attached, and differs from that of every other volume,
	// including a later volume of the same name, for as long as the device
	// exists. Path, Major and Minor are reused.
	Backing string `json:"backing"`
}

// IsZero reports whether all fields are zero.
func (d Device) IsZero() bool { return d == Device{} }

// Attachment is a device that is open for reading, so that it exists until it
// is mounted. The caller closes File.
type Attachment struct {
	Device Device
	Size   int64 // bytes
	File   *os.File
}

// Presence is the state of a volume in its storage.
type Presence string

// Presences that Inspect reports.
const (
	Present Presence = "present"
	// Missing: the storage is on this machine, the volume does not exist.
	Missing Presence = "missing"
	// Foreign: the volume's name belongs to an object that is not a volume.
	Foreign Presence = "foreign"
	// Truncated: the volume has fewer bytes than its size.
	Truncated Presence = "truncated"
	// Replaced: the volume of the device was deleted or replaced.
	Replaced Presence = "replaced"
	// Unreachable: the storage is not on this machine.
	Unreachable Presence = "unreachable"
)

// Info is the result of Inspect.
type Info struct {
	Device   Device // zero: not attached
	ReadOnly bool   // the device refuses writes
	// Backing is the value of Device.Backing while this volume is attached;
	// empty if the volume does not exist. It can be empty if the volume is
	// unreachable.
	Backing  string
	Presence Presence
	// Problem is what is wrong unless Presence is Present. It is the error that
	// Attach would return, unless Presence is Replaced: Attach then attaches
	// the volume that has the name now.
	Problem   error
	Size      int64 // of the volume in bytes; 0 if it does not exist
	Allocated int64 // allocated bytes of storage
	// TrimInterval is how often free blocks are discarded; 0 means never.
	TrimInterval time.Duration
}

// Held is a device of the storage that the kernel has.
type Held struct {
	Volume  volume.ID     // empty if unknown
	Locator access.Access // nil if the volume was deleted or replaced
	Device  Device
}

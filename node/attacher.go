package node

import (
	"context"
	"os"
	"time"

	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Attacher turns the locators of one protocol into block devices of this
// machine. An implementation keeps no record of what is attached: the kernel
// knows that, and Target says what to look for. node/nodetest tests every
// sentence here.
//
// In this process no two calls for one volume run at the same time, but for
// Inspect and Held, which run at any time. Other processes can make any call at
// any time. The Manager holds Lock while it attaches and mounts, or unmounts and
// detaches. Every call can be repeated, and can be killed at any point: the next
// one, in this process or another, continues.
//
// A volume can be deleted or replaced by another of its name while it is
// attached. Its device then works until it is detached, and is not the device of
// the new volume.
//
// Errors have a kind of package errs; the kinds named here have the meaning
// given, others are the attacher's choice.
type Attacher interface {
	// Lock keeps other processes from snapshotting, copying or deleting the
	// volume until unlock is called, so that they find it in use or not in use
	// and never between the two. It waits some seconds for such a process;
	// Busy: it took longer. Locks are shared: two do not wait for each other. An
	// attached device holds none. Lock succeeds for a volume that does not exist
	// or cannot be attached; the call that follows says why.
	Lock(ctx context.Context, t Target) (unlock func(), err error)
	// Inspect reports what exists and changes nothing. A volume that is missing
	// or damaged is described by Info, not by an error. While the device of a
	// deleted or replaced volume exists (Target.Device), Inspect reports that
	// device, also when the new volume is attached too.
	Inspect(ctx context.Context, t Target) (Info, error)
	// Attach creates the device of a volume, or finds the one that exists and
	// adjusts it to the use, also after SetReadOnly. There are never two, even if
	// other processes attach the volume at the same time: Lock does not prevent
	// that. It returns when the device is ready and has all its settings. The
	// caller has locked the volume. NotFound: the volume does not exist.
	// Precondition: the storage is not on this machine, the volume is damaged, or
	// its device is in use and cannot be adjusted; it stays as it is. Busy: the
	// volume is being deleted or copied.
	Attach(ctx context.Context, t Target, use Use) (*Attachment, error)
	// Detach flushes and removes every device of the volume, also those of
	// deleted and replaced ones (Target.Device), and returns when they are gone.
	// No device is no error; neither is storage that is not on this machine.
	// Precondition: something uses a device, which stays as it is; the message
	// says what, where that can be seen. An error of the flush is returned once;
	// the next Detach removes the device all the same.
	Detach(ctx context.Context, t Target) error
	// Resize gives the device the size that its volume has now, and returns it
	// in bytes. Precondition: the volume does not have exactly one device.
	Resize(ctx context.Context, t Target) (size int64, err error)
	// SetReadOnly makes the device refuse writes, or accept them again, also
	// while it is in use. Precondition: the volume does not have exactly one
	// device.
	SetReadOnly(ctx context.Context, t Target, readOnly bool) error
	// Held lists every device that the kernel has for this storage, also those
	// of volumes that were deleted, and no others. Start-up detaches what no
	// record owns: Detach must remove a device by what Held says of it.
	// Unavailable: the storage is not on this machine.
	Held(ctx context.Context) ([]Held, error)
}

// Target names a volume for an Attacher.
type Target struct {
	// Locator says where the volume is. Only Detach gets a nil one, for a device
	// that Held listed without it.
	Locator access.Access
	// Device is what is known of the device that the volume was attached as: all
	// of it, Backing alone (from Inspect, if the caller was killed during
	// Attach), or nothing. It finds a device whose volume was deleted or
	// replaced. It can be outdated: a device with another Backing, or of another
	// volume, is not meant.
	Device Device
}

// Use is how a device is used.
type Use struct {
	// Block: the device itself is used, and stays until Detach. Otherwise a file
	// system on it is mounted, and the device is removed by the kernel when it is
	// neither open nor mounted, if the kernel can do that.
	Block bool
	// ReadOnly: the device refuses writes.
	ReadOnly bool
}

// Device is a block device of this machine.
type Device struct {
	Path  string `json:"path"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	// Backing identifies what the device shows, in a form of the attacher's
	// choice: the Manager only compares it. It is known before the volume is
	// attached, and differs from that of every other volume, also a later one of
	// the same name, for as long as the device exists. Path, Major and Minor are
	// used again.
	Backing string `json:"backing"`
}

// IsZero reports whether nothing is known of a device.
func (d Device) IsZero() bool { return d == Device{} }

// Attachment is a device that is open for reading, so that it stays until it is
// mounted. The caller closes File.
type Attachment struct {
	Device Device
	Size   int64 // bytes
	File   *os.File
}

// Presence says whether a volume exists in its storage.
type Presence string

// What Inspect finds.
const (
	Present Presence = "present"
	// Missing: the storage is on this machine, the volume does not exist.
	Missing Presence = "missing"
	// Foreign: something that is not a volume has the volume's name.
	Foreign Presence = "foreign"
	// Truncated: the volume has fewer bytes than its size.
	Truncated Presence = "truncated"
	// Replaced: the device shows something that was deleted or replaced since.
	Replaced Presence = "replaced"
	// Unreachable: the storage is not on this machine.
	Unreachable Presence = "unreachable"
)

// Info is what Inspect finds.
type Info struct {
	Device   Device // zero: not attached
	ReadOnly bool   // the device refuses writes
	// Backing is what Device.Backing is, or would be, when this volume is
	// attached; empty when the volume does not exist. It can be empty when the
	// volume is unreachable.
	Backing  string
	Presence Presence
	// Problem says what is wrong unless Presence is Present. It is the error
	// that Attach would return, unless Presence is Replaced: Attach then attaches
	// the volume that has the name now.
	Problem   error
	Size      int64 // of the volume in bytes; 0 when it does not exist
	Allocated int64 // bytes of storage that it takes
	// TrimInterval is how often free blocks are returned to the storage; 0:
	// never.
	TrimInterval time.Duration
}

// Held is a device that the kernel has.
type Held struct {
	Volume  volume.ID     // empty when it cannot be known
	Locator access.Access // nil when the volume was deleted or replaced
	Device  Device
}

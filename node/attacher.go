package node

import (
	"context"
	"os"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Attacher turns locators of one protocol into block devices of this machine, or
// into directories of shared file systems, which the Manager mounts as they are.
// The kernel knows attached devices, which Target identifies. An attacher keeps
// a record only of what the kernel does not know. node/nodetest tests every
// sentence here.
//
// In this process, calls for a volume are serial, except for Inspect and Held.
// Other processes can make any call at any time. The Manager holds Lock while
// it attaches and mounts, or unmounts and detaches. Calls are idempotent, and
// can be killed at any point: the next one, in any process, continues.
//
// An attached volume can be deleted, or replaced by another of its name. Its
// device works until it is detached, and is not the new volume's.
//
// An attacher can be unable to see its storage without attaching, as that of
// Ceph's images. It reports a volume that is not attached as Present, without
// Backing and sizes. Only Attach then finds that a volume was deleted, or
// replaced, if its locator identifies it; and Held has locators of deleted
// volumes too.
//
// Errors have errs kinds: those named here have that meaning, others are the
// attacher's choice.
type Attacher interface {
	// Lock keeps other processes from snapshotting, copying or deleting the
	// volume until unlock, so that they never find it partly attached. It waits
	// some seconds for them, and then returns Busy. Attachers share locks. An
	// attached device holds no lock. Lock succeeds for a volume that does not
	// exist or cannot be attached; the following call returns the error. It does
	// nothing if the engine is on other machines.
	Lock(ctx context.Context, t Target) (unlock func(), err error)
	// Inspect changes nothing. Info, not the error, describes a missing or
	// damaged volume. The device of a deleted or replaced volume
	// (Target.Device) is reported while it exists, even if the new volume is
	// attached too.
	Inspect(ctx context.Context, t Target) (Info, error)
	// Attach creates the volume's device, or adjusts the existing one to the
	// use, also after SetReadOnly. A volume never has two devices, even with
	// concurrent processes, which Lock does not prevent. The device has all its
	// settings when Attach returns. The caller holds Lock. NotFound: the volume
	// does not exist. Precondition: the storage is not on this machine, the
	// volume is damaged, or its device is in use, cannot be adjusted, and is
	// unchanged. Busy: the volume is being deleted or copied. Unavailable: the
	// storage does not answer; a repeat continues.
	Attach(ctx context.Context, t Target, use Use) (*Attachment, error)
	// Detach flushes and removes all of the volume's devices, including those
	// of deleted and replaced ones (Target.Device), before it returns. Missing
	// devices or storage are no error. Precondition: a device is in use and
	// unchanged; the message says by what, if known. A flush error is returned
	// once; the next Detach removes the device anyway.
	Detach(ctx context.Context, t Target) error
	// Resize sets the device to its volume's size, and returns it in bytes.
	// Precondition: the volume does not have exactly one device.
	Resize(ctx context.Context, t Target) (size int64, err error)
	// SetReadOnly also changes a device in use. Precondition: the volume does
	// not have exactly one device.
	SetReadOnly(ctx context.Context, t Target, readOnly bool) error
	// Held lists exactly the kernel's devices for this storage, including those
	// of deleted volumes. The Manager detaches those without a record at
	// start-up: Held's values must be sufficient for Detach. Unavailable: the
	// storage is not on this machine.
	Held(ctx context.Context) ([]Held, error)
}

// Explainer is an Attacher that knows why a write to its devices can fail, such
// as a full pool of thin volumes.
type Explainer interface {
	// Explain returns err, or an error with the cause that wraps it. nil stays
	// nil.
	Explain(err error) error
}

func explain(a Attacher, err error) error {
	if e, ok := a.(Explainer); ok {
		return e.Explain(err)
	}
	return err
}

// Target identifies a volume for an Attacher.
type Target struct {
	// Nil only in Detach, for a device that Held listed without a locator.
	Locator access.Access
	// The volume's id, for Attach and Detach alone; empty: not known. Held returns
	// it, if the storage does not know it. A device that was attached as another
	// volume is not this one's.
	Volume volume.ID
	// What is known of the attached device: all of it, Backing alone (from
	// Inspect, if the caller was killed during Attach), or nothing. It
	// identifies the device of a deleted or replaced volume. It can be stale:
	// another Backing or volume does not match.
	Device Device
	// Secrets of the request, for Attach alone: never stored or logged.
	Secrets map[string]string
}

// Use is how a device is used. Attachers of directories refuse Block as Invalid,
// and leave ReadOnly to the Manager's mounts.
type Use struct {
	// The device itself is used, and stays until Detach. Otherwise its file
	// system is mounted, and the kernel, if it can, removes the device when it
	// is neither open nor mounted.
	Block bool
	// The device refuses writes.
	ReadOnly bool
}

// Device is a block device of this machine, or a directory of a mounted shared
// file system.
type Device struct {
	Path  string `json:"path"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	// Backing identifies the device's volume, in the attacher's own format. It
	// is known before attaching, if the attacher can see its storage. It is
	// unique among all volumes, including a later one of the same name, while
	// the device exists. Path, Major and Minor are reused.
	Backing string `json:"backing"`
}

// IsZero reports whether d is empty.
func (d Device) IsZero() bool { return d == Device{} }

// IsDirectory reports whether d is a directory: Major and Minor are those of its
// file system, which are never a block device's. The file system is mounted for this
// volume alone: the Manager recognizes the volume's mounts by these numbers.
func (d Device) IsDirectory() bool { return d.Path != "" && d.Major == 0 }

// Attachment is a device open for reading, or a directory open with O_PATH, so
// that it exists until mounted. The caller closes File.
type Attachment struct {
	Device Device
	Size   int64
	File   *os.File
	// FlushUncertain: the kernel can answer a flush without data with success
	// although the storage did not execute it. btrfs relies on such flushes, so
	// it is not mounted.
	FlushUncertain bool
}

// Presence is a volume's state in its storage.
type Presence string

// Inspect's presences.
const (
	Present Presence = "present"
	// Missing: the storage is on this machine, without the volume.
	Missing Presence = "missing"
	// Foreign: an object that is not a volume has the name.
	Foreign Presence = "foreign"
	// Truncated: fewer bytes than the volume's size.
	Truncated Presence = "truncated"
	// Replaced: the device's volume was deleted or replaced.
	Replaced Presence = "replaced"
	// Lost: the kernel has removed the device, which is reported as it was, since
	// it can still be mounted. Only a new stage makes another.
	Lost Presence = "lost"
	// Unreachable: the storage is not on this machine.
	Unreachable Presence = "unreachable"
)

// Info is Inspect's result.
type Info struct {
	Device   Device // zero: not attached
	ReadOnly bool
	// Device.Backing of the attached volume; empty if the volume does not
	// exist. It can be empty if unreachable.
	Backing  string
	Presence Presence
	// What is wrong unless Present. Attach would return it, unless Replaced:
	// then Attach attaches the current volume.
	Problem   error
	Size      int64 // bytes; 0 if missing; of a directory, its quota
	Allocated int64 // bytes of storage
	// Interval for discarding free blocks; 0 means never.
	TrimInterval time.Duration
	// Further adverse conditions of an attached volume.
	Conditions []volume.Condition
}

// refusal is the kind of errors of calls that need a volume which is not Present.
func (i Info) refusal() errs.Kind {
	if i.Presence == Unreachable {
		return errs.Unavailable // the storage can return
	}
	return errs.Precondition
}

// Held is a storage's device in the kernel.
type Held struct {
	Volume  volume.ID     // empty: not known
	Locator access.Access // nil: deleted or replaced, or not known
	Device  Device
}

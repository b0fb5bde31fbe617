// Package node is the stage machine of a node: it turns the locator of a
// volume into a mounted directory or a block device at the paths that an
// orchestrator names, and takes it all back. What it is about to do is durable
// before it does it, and before it does anything it looks at what the kernel
// has: the kernel is the truth, the store only knows what was wanted.
package node

import (
	"context"
	"os"
	"time"

	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Attacher makes block devices out of locators of one protocol. Every method
// may be repeated and may be cut half-way; no two calls for one volume run at
// the same time.
type Attacher interface {
	// Attach makes the device of a volume, or finds and adjusts the one that
	// there is; there are never two. NotFound: there is no such volume.
	// Precondition: the storage is not on this machine, or the device is held
	// in a way that the use does not admit. Busy: the volume is being deleted
	// or copied just now.
	Attach(ctx context.Context, t Target, use Use) (*Attachment, error)
	// Hold keeps those away who cut, copy or delete the volume, so that they
	// find it in use or not in use, and never half-way; it waits for one that is
	// at work. Who holds it already may hold it again, and Attach does so. Busy:
	// the other takes too long. A volume that is not there needs no holding.
	Hold(ctx context.Context, t Target) (release func(), err error)
	// Look tells what there is, and changes nothing.
	Look(ctx context.Context, t Target) (View, error)
	// Detach takes the device away, and is sure of it on return. A device that
	// is not there is no error. Precondition: something holds it; the message
	// says what, where that can be told.
	Detach(ctx context.Context, t Target) error
	// Resize gives the device the size that its volume has now.
	Resize(ctx context.Context, t Target) (size int64, err error)
	// Protect makes the device refuse writes, or accept them again.
	Protect(ctx context.Context, t Target, on bool) error
	// Held lists every device that the kernel has for this storage, so that
	// those can be found that nobody owns. Unavailable: the storage is not on
	// this machine.
	Held(ctx context.Context) ([]Held, error)
}

// Target is a volume as an Attacher is asked for it: where it is, and the
// device that it was last reached through (zero: none), which is how a device
// is found again when what was behind it has gone. Detach takes one without a
// Locator: a device that Held lists so.
type Target struct {
	Locator access.Access
	Device  Device
}

// Use is how a device is wanted.
type Use struct {
	// Block: the device itself is used. It stays until Detach; otherwise it
	// goes by itself when it is neither open nor mounted.
	Block bool
	// ReadOnly: the device lets no write through.
	ReadOnly bool
}

// Device is a block device of this machine.
type Device struct {
	Path  string `json:"path"`
	Major uint32 `json:"major"`
	Minor uint32 `json:"minor"`
	// Backing names what is behind the device in the attacher's own words. It
	// is compared and never read: numbers are used again, this is not.
	Backing string `json:"backing"`
}

// IsZero reports whether there is no device.
func (d Device) IsZero() bool { return d == Device{} }

// Attachment is a device held open, so that it stays until it is mounted. The
// caller closes File.
type Attachment struct {
	Device Device
	Size   int64 // bytes
	File   *os.File
}

// Backing says what became of the thing behind a device.
type Backing string

// What Look finds behind a volume.
const (
	Present Backing = "present"
	// Missing: the storage is here, the volume is not in it.
	Missing Backing = "missing"
	// Foreign: under the volume's name is something that cannot be one.
	Foreign Backing = "foreign"
	// Truncated: it is in it, and shorter than it should be.
	Truncated Backing = "truncated"
	// Replaced: the device is bound to something that has lost its name, to
	// nothing or to another volume.
	Replaced Backing = "replaced"
	// Unreachable: the storage itself is not here.
	Unreachable Backing = "unreachable"
)

// View is what Look finds.
type View struct {
	Device   Device // zero: not attached
	ReadOnly bool   // the device lets no write through
	Backing  Backing
	// Problem says in words what is wrong unless Backing is Present.
	Problem   error
	Size      int64 // of what is behind the device in bytes; 0: nothing is
	Allocated int64 // bytes of storage that it takes now
	// TrimInterval is how often its free blocks are to be given back; 0: never.
	TrimInterval time.Duration
}

// Held is a device that the kernel has.
type Held struct {
	Volume  volume.ID     // empty when it cannot be told
	Locator access.Access // nil when what is behind the device has no name any more
	Device  Device
}

// Ephemerals makes the volumes that live as long as one publish.
type Ephemerals interface {
	Create(ctx context.Context, r volume.CreateRequest) (volume.Volume, error)
	Delete(ctx context.Context, id volume.ID) error
}

// Grower makes a volume larger at its source, where that is in reach.
type Grower interface {
	Expand(ctx context.Context, id volume.ID, size volume.SizeRange) (volume.Volume, error)
}

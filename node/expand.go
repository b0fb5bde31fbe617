package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/crashpoint"
	"github.com/cleatproject/cleat/internal/linux/growfs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/volume"
)

// ExpandRequest asks to make a volume in use as large as wanted.
type ExpandRequest struct {
	Volume volume.ID
	Path   string           // where it is staged or published
	Size   volume.SizeRange // empty: as large as the volume is
	// Capability is how the caller takes the volume to be used; nil: however.
	Capability *volume.Capability
}

// Expand makes a volume, its device and its file system as large as wanted, and
// returns the size of the device in bytes. A volume that is large enough stays
// as it is. NotFound: the volume is not at that path. OutOfRange: it is larger
// than the limit. Precondition: it cannot grow as it is used now; the message
// says what has grown already and when the rest will.
func (m *Manager) Expand(ctx context.Context, r ExpandRequest) (int64, error) {
	p, err := m.at(ctx, r.Volume, r.Path)
	if err != nil {
		return 0, err
	}
	if r.Capability != nil && r.Capability.Block != p.block {
		return 0, errs.Errorf(errs.Invalid, "volume %s is used as %s, the volume_capability of the request says %s", r.Volume, kind(p.block), kind(r.Capability.Block))
	}
	if err := m.growVolume(ctx, r, p); err != nil {
		return 0, err
	}
	size, err := p.attacher.Resize(ctx, p.target)
	if err != nil {
		return 0, err
	}
	crashpoint.Hit("expand.resized")
	if p.block {
		return size, nil
	}
	return size, growFilesystem(ctx, p, size)
}

// growVolume makes the volume itself large enough.
func (m *Manager) growVolume(ctx context.Context, r ExpandRequest, p inUse) error {
	switch {
	case p.info.Presence != Present:
		return errs.Errorf(errs.Precondition, "volume %s cannot grow: %w", r.Volume, p.info.Problem)
	case p.info.Size >= r.Size.Required && !r.Size.Admits(p.info.Size):
		return errs.Errorf(errs.OutOfRange, "volume %s has %d bytes, the request asks for %s; a volume never shrinks", r.Volume, p.info.Size, r.Size)
	case p.info.Size >= r.Size.Required:
		return nil
	case m.config.Grower == nil:
		return errs.Errorf(errs.Precondition, "volume %s has %d bytes, the request asks for %s; call ControllerExpandVolume first", r.Volume, p.info.Size, r.Size)
	}
	if _, err := m.config.Grower.Expand(ctx, p.engine, r.Size); err != nil {
		return err
	}
	crashpoint.Hit("expand.volume-grown")
	return nil
}

// growFilesystem grows a mounted file system to the size of its device.
func growFilesystem(ctx context.Context, p inUse, size int64) error {
	full, err := isFull(p.info.Device, size)
	if err != nil || full {
		return err
	}
	if p.readOnly {
		return errs.Errorf(errs.Precondition, "the block device has %d bytes now; the file system is mounted read-only and grows when it is next staged for writing", size)
	}
	e, there, err := mountAt(ctx, p.mount, p.info.Device)
	if err != nil {
		return err
	}
	if !there {
		return errs.Errorf(errs.Precondition, "the block device has %d bytes now; the file system grows when it is next staged, as it is not mounted at %s", size, p.mount)
	}
	_, err = growfs.Grow(ctx, p.mount, mkfs.Type(e.FSType))
	if errors.Is(err, growfs.ErrNeedsSysResource) {
		return errs.Errorf(errs.Precondition, "the block device has %d bytes now; the %s file system grows at the next stage, when the pods that use it are started again, as this process is not allowed to grow it while it is mounted: %w", size, e.FSType, err)
	}
	if err != nil {
		return fmt.Errorf("grow the file system: %w", err)
	}
	crashpoint.Hit("expand.filesystem-grown")
	return nil
}

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

// ExpandRequest requests to expand a volume in use.
type ExpandRequest struct {
	Volume volume.ID
	Path   string           // staged or published there
	Size   volume.SizeRange // empty: the current size
	// How the caller uses the volume, if known.
	Capability *volume.Capability
}

// Expand expands a volume, its device and its file system, and returns the
// device's bytes. A large enough volume is not changed. NotFound: the volume is
// not at that path. OutOfRange: it is larger than the limit. Precondition: it
// cannot grow in its current use; the message says what has grown, and when the
// rest will.
func (m *Manager) Expand(ctx context.Context, r ExpandRequest) (int64, error) {
	ctx, done, err := m.change(ctx, r.Volume)
	if err != nil {
		return 0, err
	}
	defer done()
	p, err := m.find(ctx, r.Volume, r.Path)
	if err != nil {
		return 0, err
	}
	if r.Capability != nil && r.Capability.Block != p.block {
		return 0, errs.Errorf(errs.Invalid, "volume %s is used as %s, but the volume_capability of the request is for %s", r.Volume, kind(p.block), kind(r.Capability.Block))
	}
	if err := m.growVolume(ctx, r, p); err != nil {
		return 0, err
	}
	size, err := p.attacher.Resize(ctx, p.target)
	if err != nil {
		return 0, err
	}
	crashpoint.Hit("expand.resized")
	if p.block || p.info.Device.IsDirectory() {
		return size, nil
	}
	err = growFilesystem(ctx, p, size)
	if err == nil {
		m.warnGroups(ctx, r.Volume, p.info.Device, size)
	}
	return size, explain(p.attacher, err)
}

func (m *Manager) growVolume(ctx context.Context, r ExpandRequest, p inUse) error {
	switch {
	case p.info.Presence != Present:
		return errs.Errorf(p.info.refusal(), "volume %s cannot be expanded: %w", r.Volume, p.info.Problem)
	case p.info.Size >= r.Size.Required && !r.Size.Admits(p.info.Size):
		return errs.Errorf(errs.OutOfRange, "volume %s has %d bytes, which is not within the requested range %s; volumes cannot shrink", r.Volume, p.info.Size, r.Size)
	case p.info.Size >= r.Size.Required:
		return nil
	case m.config.Grower == nil:
		// The kernel can learn of a larger volume late.
		size, err := p.attacher.Resize(ctx, p.target)
		if err == nil && size < r.Size.Required {
			err = errs.Errorf(errs.Precondition, "volume %s has %d bytes, which is not within the requested range %s; call ControllerExpandVolume first", r.Volume, size, r.Size)
		}
		return err
	}
	if _, err := m.config.Grower.Expand(ctx, p.engine, r.Size); err != nil {
		return err
	}
	crashpoint.Hit("expand.volume-grown")
	return nil
}

func growFilesystem(ctx context.Context, p inUse, size int64) error {
	full, err := isFull(ctx, p.info.Device, size)
	if err != nil || full {
		return err
	}
	if p.readOnly {
		return errs.Errorf(errs.Precondition, "the block device has been expanded to %d bytes; the file system is mounted read-only and will be expanded when it is next staged for writing", size)
	}
	e, there, err := mountAt(ctx, p.mount, p.info.Device)
	if err != nil {
		return err
	}
	if !there {
		return errs.Errorf(errs.Precondition, "the block device has been expanded to %d bytes; the file system is not mounted at %s and will be expanded when it is next staged", size, p.mount)
	}
	_, err = growfs.Grow(ctx, p.mount, mkfs.Type(e.FSType))
	if errors.Is(err, growfs.ErrNeedsSysResource) && p.notGrown != "" {
		return errs.Errorf(errs.Precondition, "the block device has been expanded to %d bytes; the %s file system keeps its old size: %s; while it is mounted: %w", size, e.FSType, p.notGrown, err)
	}
	if errors.Is(err, growfs.ErrNeedsSysResource) {
		return errs.Errorf(errs.Precondition, "the block device has been expanded to %d bytes; this process has no permission to expand the mounted %s file system, restart the pods that use it to expand it at the next stage: %w", size, e.FSType, err)
	}
	if err != nil {
		return fmt.Errorf("grow the file system: %w", err)
	}
	crashpoint.Hit("expand.filesystem-grown")
	return nil
}

package node

import (
	"context"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/fsinfo"
	"github.com/cleatproject/cleat/volume"
)

// StatsRequest requests the usage of a volume.
type StatsRequest struct {
	Volume volume.ID
	Path   string // where it is staged or published
}

// Amount is a capacity: bytes or inodes.
type Amount struct{ Total, Used, Available int64 }

// Stats is the usage of a volume. Inodes are zero for a block volume and for a
// file system without a fixed number of inodes. Of a block volume Used is the
// space allocated in the storage, and Available the rest of its size.
type Stats struct {
	Block  bool
	Bytes  Amount
	Inodes Amount
}

// Stats returns the usage of a volume. NotFound: the volume is not at that
// path. Precondition: the volume of the device was deleted or damaged.
func (m *Manager) Stats(ctx context.Context, r StatsRequest) (Stats, error) {
	p, err := m.find(ctx, r.Volume, r.Path)
	if err != nil {
		return Stats{}, err
	}
	if p.block && p.info.Presence != Present {
		return Stats{}, errs.Errorf(errs.Precondition, "read the usage of volume %s: %w", r.Volume, p.info.Problem)
	}
	if p.block {
		total := p.info.Size
		storedCapability := min(p.info.Allocated, total)
		return Stats{Block: true, Bytes: Amount{Total: total, Used: storedCapability, Available: total - storedCapability}}, nil
	}
	u, err := fsinfo.UsageOf(ctx, r.Path)
	if err != nil {
		return Stats{}, err
	}
	return Stats{Bytes: Amount(u.Bytes), Inodes: Amount(u.Inodes)}, nil
}

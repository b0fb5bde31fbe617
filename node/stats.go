package node

import (
	"context"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/fsinfo"
	"github.com/cleatproject/cleat/volume"
)

// StatsRequest requests a volume's usage.
type StatsRequest struct {
	Volume volume.ID
	Path   string // staged or published there
}

// Amount is in bytes or inodes.
type Amount struct{ Total, Used, Available int64 }

// Stats is a volume's usage. Inodes are zero for a block volume or without a
// fixed number of inodes. Used of a block volume, or of a directory of a shared
// file system, is its space allocated in the storage, Available the rest.
type Stats struct {
	Block  bool
	Bytes  Amount
	Inodes Amount
}

// Stats returns a volume's usage. NotFound: the volume is not at that path.
// Precondition: the device's volume was deleted or damaged. Unavailable: its
// storage cannot be reached.
func (m *Manager) Stats(ctx context.Context, r StatsRequest) (Stats, error) {
	p, err := m.find(ctx, r.Volume, r.Path)
	if err != nil {
		return Stats{}, err
	}
	inspected := p.block || p.info.Device.IsDirectory() // statfs of a directory can hang
	if inspected && p.info.Presence != Present {
		return Stats{}, errs.Errorf(p.info.refusal(), "read the usage of volume %s: %w", r.Volume, p.info.Problem)
	}
	if inspected {
		total := p.info.Size
		used := min(p.info.Allocated, total)
		return Stats{Block: p.block, Bytes: Amount{Total: total, Used: used, Available: total - used}}, nil
	}
	u, err := fsinfo.UsageOf(ctx, r.Path)
	if err != nil {
		return Stats{}, err
	}
	return Stats{Bytes: Amount(u.Bytes), Inodes: Amount(u.Inodes)}, nil
}

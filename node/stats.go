package node

import (
	"context"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/fsinfo"
	"github.com/cleatproject/cleat/volume"
)

// StatsRequest asks how full a volume is.
type StatsRequest struct {
	Volume volume.ID
	Path   string // where it is staged or published
}

// Amount is how much there is of something.
type Amount struct{ Total, Used, Available int64 }

// Stats is how full a volume is. Inodes are zero where the file system has no
// fixed number of them, and for a block volume. Of a block volume Used is what
// it takes of the storage, and Available the rest of its size.
type Stats struct {
	Block  bool
	Bytes  Amount
	Inodes Amount
}

// Stats returns how full a volume is. NotFound: it is not at that path.
// Precondition: the volume behind the device was deleted or damaged.
func (m *Manager) Stats(ctx context.Context, r StatsRequest) (Stats, error) {
	p, err := m.at(ctx, r.Volume, r.Path)
	if err != nil {
		return Stats{}, err
	}
	if p.block && p.info.Presence != Present {
		return Stats{}, errs.Errorf(errs.Precondition, "the usage of volume %s cannot be read: %w", r.Volume, p.info.Problem)
	}
	if p.block {
		total := p.info.Size
		used := min(p.info.Allocated, total)
		return Stats{Block: true, Bytes: Amount{Total: total, Used: used, Available: total - used}}, nil
	}
	u, err := fsinfo.UsageOf(ctx, r.Path)
	if err != nil {
		return Stats{}, err
	}
	return Stats{Bytes: Amount(u.Bytes), Inodes: Amount(u.Inodes)}, nil
}

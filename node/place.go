package node

import (
	"context"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/volume"
)

// place is a volume in use at a path.
type place struct {
	source
	view   View
	engine volume.ID // the id by which the engine knows the volume
	block  bool
	// mount is where the file system is mounted for writing, if anywhere: the
	// path itself may be a read-only bind of it.
	mount    string
	readOnly bool // the file system was mounted for reading only
	fsType   mkfs.Type
}

// at finds a volume at a path where it is staged or published now. NotFound:
// it is not there.
func (m *Manager) at(ctx context.Context, id volume.ID, path string) (place, error) {
	stage, staged, err := m.records.stage(ctx, id)
	if err != nil {
		return place{}, err
	}
	publishes, err := m.records.publishesOf(ctx, id)
	if err != nil {
		return place{}, err
	}
	if staged && stage.State == settled {
		s, err := m.source(stage.Locator, stage.mounted)
		if err != nil {
			return place{}, err
		}
		p := place{source: s, engine: id, block: stage.Capability.Block, mount: stage.Staging, readOnly: stage.ReadOnly, fsType: mkfs.Type(stage.FSType)}
		if ok, err := p.shown(ctx, path, stage.Staging); err != nil || ok {
			return p, err
		}
	}
	for _, o := range publishes {
		if o.Ephemeral == nil || o.State != settled {
			continue
		}
		s, err := m.sourceOf(ctx, o.publishRecord)
		if err != nil {
			return place{}, err
		}
		p := place{source: s, engine: o.Ephemeral.Volume, mount: o.Target, readOnly: o.ReadOnly, fsType: mkfs.Type(o.FSType)}
		if ok, err := p.shown(ctx, path, ""); err != nil || ok {
			return p, err
		}
	}
	return place{}, errs.Errorf(errs.NotFound, "volume %s is neither staged nor published at %s", id, path)
}

// shown looks whether the volume is at a path: mounted there, or its device
// node there. A block volume that is staged has nothing at its staging path,
// and is there all the same. The kernel is asked and not the records, as an
// orchestrator may well give the volume's path by another name.
func (p *place) shown(ctx context.Context, path, staging string) (bool, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return false, nil
	}
	var err error
	if p.view, err = p.look(ctx); err != nil || p.view.Device.IsZero() {
		return false, err
	}
	if p.block {
		return path == staging || leadsTo(path, p.view.Device), nil
	}
	_, there, err := mountAt(ctx, path, p.view.Device)
	return there, ignoreForeign(err)
}

// leadsTo is isNode for a path that may be a symbolic link.
func leadsTo(path string, d Device) bool {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && unix.Major(st.Rdev) == d.Major && unix.Minor(st.Rdev) == d.Minor
}

package node

import (
	"context"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// inUse is a staged or published volume.
type inUse struct {
	source
	info   Info
	engine volume.ID // its id
	block  bool
	// Where the file system is mounted for writing: the path itself can be a
	// read-only bind mount.
	mount    string
	readOnly bool // of the file system
	notGrown string
}

// find returns the volume staged or published at a path, or NotFound.
func (m *Manager) find(ctx context.Context, id volume.ID, path string) (inUse, error) {
	stage, staged, err := m.records.stage(ctx, id)
	if err != nil {
		return inUse{}, err
	}
	publishes, err := m.records.publishesOf(ctx, id)
	if err != nil {
		return inUse{}, err
	}
	if staged && stage.State == ready {
		s, err := m.source(stage.Locator, stage.mounted)
		if err != nil {
			return inUse{}, err
		}
		p := inUse{source: s, engine: id, block: stage.Capability.Block, mount: stage.Staging, readOnly: stage.ReadOnly, notGrown: stage.NotGrown}
		if ok, err := p.isShownAt(ctx, path, stage.Staging); err != nil || ok {
			return p, err
		}
	}
	for _, o := range publishes {
		if o.Inline == nil || o.State != ready {
			continue
		}
		s, _, err := m.sourceOf(ctx, o.publishRecord)
		if err != nil {
			return inUse{}, err
		}
		p := inUse{source: s, engine: o.Inline.Volume, mount: o.Target, readOnly: o.ReadOnly}
		if ok, err := p.isShownAt(ctx, path, ""); err != nil || ok {
			return p, err
		}
	}
	return inUse{}, errs.Errorf(errs.NotFound, "volume %s is neither staged nor published at %s", id, path)
}

// isShownAt: the volume is mounted at a path, or its device node is there. A
// staged block volume counts as being at its staging path. The kernel is the
// source of truth: an orchestrator can use other names for paths.
func (p *inUse) isShownAt(ctx context.Context, path, staging string) (bool, error) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return false, nil
	}
	var err error
	if p.info, err = p.inspect(ctx); err != nil || p.info.Device.IsZero() {
		return false, err
	}
	if p.block {
		return path == staging || leadsTo(path, p.info.Device), nil
	}
	_, there, err := mountAt(ctx, path, p.info.Device)
	return there, ignoreForeign(err)
}

// leadsTo also follows a symbolic link.
func leadsTo(path string, d Device) bool {
	info, err := os.Stat(path)
	if err != nil || info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && unix.Major(st.Rdev) == d.Major && unix.Minor(st.Rdev) == d.Minor
}

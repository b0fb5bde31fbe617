package object

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
)

// makeAIO checks all bdevs: SPDK accepts a file that another bdev uses.
func (m *Manager) makeAIO(ctx context.Context, o plan.Object) (found bool, err error) {
	path, size, err := m.aioFile(o)
	if err != nil {
		return false, err
	}
	all, err := m.config.RPC.Bdevs(ctx)
	if err != nil {
		return false, err
	}
	for _, b := range all {
		switch {
		case b.Name == o.Name:
			return true, checkAIO(b, path)
		case b.Driver.AIO != nil && b.Driver.AIO.Filename == path:
			return false, errs.Errorf(errs.Precondition, "file %s is already used by bdev %s, which this plugin did not create: two bdevs on one file would corrupt it", path, b.Name)
		}
	}
	err = m.config.RPC.CreateAIO(ctx, spdk.AIO{Name: o.Name, Filename: path, BlockSize: size, ReadOnly: o.AIO.ReadOnly})
	if errors.Is(err, spdk.NoFile) {
		err = errs.Errorf(errs.Precondition, "file %s does not exist for the SNAP process: mount the pool into its container at the same path: %w", path, err)
	}
	return false, err
}

// aioFile returns the path and the block size; 0 for a block device, which has
// its own.
func (m *Manager) aioFile(o plan.Object) (path string, size int, err error) {
	if m.config.Pools == nil {
		return "", 0, errs.Errorf(errs.Precondition, "pool %s is not configured: start the plugin with --pool", o.AIO.File.Pool)
	}
	if path, err = m.config.Pools.File(o.AIO.File); err != nil {
		return "", 0, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", 0, errs.Errorf(errs.Precondition, "%w", err)
	}
	if info.Mode().IsRegular() {
		size = m.config.AIOBlockSize
	}
	return path, size, nil
}

func checkAIO(b spdk.Bdev, path string) error {
	if b.Driver.AIO == nil || b.Driver.AIO.Filename != path {
		return errs.Errorf(errs.Precondition, "bdev %s exists, but not on file %s: %w; delete it", b.Name, path, ErrNameConflict)
	}
	return nil
}

func (m *Manager) makeRBD(ctx context.Context, o plan.Object) (found bool, err error) {
	want := spdk.RBD{
		Name: o.Name, Pool: o.RBD.Pool, Namespace: o.RBD.Namespace, Image: o.RBD.Image,
		BlockSize: rbdBlockSize, ReadOnly: o.RBD.ReadOnly, Cluster: o.RBD.Cluster,
	}
	b, err := m.config.RPC.Bdev(ctx, o.Name)
	switch {
	case err == nil:
		return true, checkRBD(b, o)
	case !errors.Is(err, spdk.NotFound):
		return false, err
	}
	err = m.config.RPC.CreateRBD(ctx, want)
	if errors.Is(err, spdk.UnknownMethod) {
		err = errs.Errorf(errs.Precondition, "this SNAP process is built without Ceph RBD: %w", err)
	}
	return false, err
}

// rbdBlockSize is that of the kernel's RBD devices, in bytes.
const rbdBlockSize = 512

func checkRBD(b spdk.Bdev, o plan.Object) error {
	if r := b.Driver.RBD; r == nil || r.Pool != o.RBD.Pool || r.Namespace != o.RBD.Namespace || r.Image != o.RBD.Image {
		return errs.Errorf(errs.Precondition, "bdev %s exists, but not on image %s/%s: %w; delete it", b.Name, o.RBD.Pool, o.RBD.Image, ErrNameConflict)
	}
	return nil
}

func (m *Manager) makeRBDCluster(ctx context.Context, o plan.Object) (found bool, err error) {
	spec := o.RBDCluster
	want := spdk.RBDCluster{Name: o.Name, User: spec.User}
	if len(spec.Monitors) > 0 {
		var monitors []string
		for _, a := range spec.Monitors {
			if a.Port() == 0 {
				monitors = append(monitors, a.Addr().String())
			} else {
				monitors = append(monitors, a.String())
			}
		}
		want.Config = map[string]string{"mon_host": strings.Join(monitors, ",")}
	} else if m.config.CephDir == "" {
		return false, errs.Errorf(errs.Precondition, "no configuration directory for Ceph cluster %q: start the plugin with --ceph-dir, or give monitors in the context", spec.ClusterID)
	} else {
		want.ConfigFile = filepath.Join(m.config.CephDir, spec.ClusterID+".conf")
	}
	if spec.Key != "" {
		if want.KeyFile, err = m.keyPath(spec.Key); err != nil {
			return false, err
		}
	}
	if found, err = m.config.RPC.HasRBDCluster(ctx, o.Name); err != nil || found { // the name is a digest of the cluster's parameters
		return found, withoutRBD(err)
	}
	return false, withoutRBD(m.config.RPC.RegisterRBDCluster(ctx, want))
}

// removeRBDCluster checks for the cluster first: SPDK returns the same error
// for a missing cluster and for one in use.
func (m *Manager) removeRBDCluster(ctx context.Context, name string) error {
	if there, err := m.config.RPC.HasRBDCluster(ctx, name); err != nil || !there {
		return err
	}
	return m.config.RPC.UnregisterRBDCluster(ctx, name)
}

func withoutRBD(err error) error {
	if errors.Is(err, spdk.UnknownMethod) {
		return errs.Errorf(errs.Precondition, "this SNAP process is built without Ceph RBD: %w", err)
	}
	return err
}

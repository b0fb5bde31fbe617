package object

import (
	"context"
	"errors"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
)

func (m *Manager) makeMount(ctx context.Context, o plan.Object) (found bool, err error) {
	if m.config.Mounts == nil {
		return false, errs.Errorf(errs.Precondition, "mounting file systems is not configured: start the plugin with --volume-dir")
	}
	if found, err = m.config.Mounts.Mounted(ctx, o.Name, *o.Mount); found || err != nil {
		return found, err
	}
	return false, m.config.Mounts.Mount(ctx, o.Name, *o.Mount)
}

// makeFsdev accepts an existing device if the process cannot list devices: the
// name is a digest of the volume ID.
func (m *Manager) makeFsdev(ctx context.Context, o plan.Object) (found bool, err error) {
	if m.config.Mounts == nil {
		return false, errs.Errorf(errs.Precondition, "mounting file systems is not configured: start the plugin with --volume-dir")
	}
	root := m.config.Mounts.Path(o.Fsdev.Mount)
	err = m.config.RPC.CreateFsdev(ctx, o.Name, root)
	switch {
	case errors.Is(err, spdk.Exists):
		return true, m.checkFsdev(ctx, o.Name, root)
	case errors.Is(err, spdk.NoFile):
		err = errs.Errorf(errs.Precondition, "directory %s does not exist for the SNAP process: mount the volume directory into its container at the same path, with mountPropagation HostToContainer: %w", root, err)
	}
	return false, err
}

func (m *Manager) checkFsdev(ctx context.Context, name, root string) error {
	f, err := m.config.RPC.Fsdev(ctx, name)
	switch {
	case errors.Is(err, spdk.UnknownMethod):
		return nil
	case err == nil && f.Driver.RootPath != "" && f.Driver.RootPath != root:
		return errs.Errorf(errs.Precondition, "file system device %s exists with directory %s instead of %s: %w; delete it", name, f.Driver.RootPath, root, ErrNameConflict)
	}
	return err
}

// makeKey adds a key to the keyring. Processes without one get the file with
// the call that needs it.
func (m *Manager) makeKey(ctx context.Context, o plan.Object) (found bool, err error) {
	path, err := m.keyPath(o.Key.File)
	if err != nil {
		return false, err
	}
	keyring, err := m.hasKeyring(ctx)
	if err != nil || !keyring {
		return false, err
	}
	err = m.config.RPC.AddKeyFile(ctx, o.Name, path)
	switch {
	case errors.Is(err, spdk.Exists): // the name is a digest of the file name
		return true, nil
	case err != nil:
		err = errs.Errorf(errs.Precondition, "SNAP rejects key %q: file %s must exist for the SNAP process, and be owned by and readable for its user only (mode 0600): %w", o.Key.File, path, err)
	}
	return false, err
}

func (m *Manager) removeKey(ctx context.Context, o plan.Object) error {
	keyring, err := m.hasKeyring(ctx)
	if err != nil || !keyring {
		return err
	}
	return m.config.RPC.RemoveKey(ctx, o.Name)
}

func (m *Manager) hasKeyring(ctx context.Context) (bool, error) {
	methods, err := m.methods(ctx)
	return methods.Has("keyring_file_add_key"), err
}

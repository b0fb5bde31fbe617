package object

import (
	"context"
	"errors"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/spdk"
)

// Find completes the objects of a device known by name: it reads the last one,
// the device itself, from the process. It returns nothing if there is no such
// device, and no mount for it.
func (m *Manager) Find(ctx context.Context, named []plan.Object) ([]plan.Object, error) {
	if len(named) == 0 {
		return nil, nil
	}
	o := &named[len(named)-1]
	var err error
	switch o.Kind {
	case plan.Controller:
		err = m.findController(ctx, o)
	case plan.AIOFsdev:
		err = m.findFsdev(ctx, o)
	default:
		err = m.findBdev(ctx, o)
	}
	if errors.Is(err, spdk.NotFound) {
		return nil, nil
	}
	return named, err
}

// findFsdev also finds a device whose mount is left, as after a restart of the
// process.
func (m *Manager) findFsdev(ctx context.Context, o *plan.Object) error {
	_, err := m.config.RPC.Fsdev(ctx, o.Name)
	if errors.Is(err, spdk.UnknownMethod) {
		methods, err := m.methods(ctx)
		if err != nil || methods.Has("fsdev_aio_delete") {
			return err // its removal can be tried anyway
		}
	} else if !errors.Is(err, spdk.NotFound) {
		return err
	}
	if m.config.Mounts != nil {
		if isMounted, err := m.config.Mounts.IsMountPoint(ctx, o.Fsdev.Mount); isMounted || err != nil {
			return err
		}
	}
	return spdk.NotFound
}

// Controllers returns the names of all NVMe controllers of the process.
func (m *Manager) Controllers(ctx context.Context) (names []string, err error) {
	all, err := m.config.RPC.NVMeControllers(ctx)
	for _, c := range all {
		names = append(names, c.Name)
	}
	if errors.Is(err, spdk.UnknownMethod) {
		_, err = m.methods(ctx)
	}
	return names, err
}

func (m *Manager) findController(ctx context.Context, o *plan.Object) error {
	c, err := m.config.RPC.NVMeController(ctx, o.Name)
	if err != nil {
		return err
	}
	if len(c.Paths) == 0 {
		return spdk.NotFound
	}
	first := c.Paths[0]
	o.Controller = &plan.ControllerSpec{Transport: "tcp", Paths: addresses(c), SubNQN: first.Address.SubNQN, HostNQN: first.Host.NQN}
	return nil
}

func (m *Manager) findBdev(ctx context.Context, o *plan.Object) error {
	b, err := m.config.RPC.Bdev(ctx, o.Name)
	if err != nil {
		return err
	}
	switch {
	case b.Name != o.Name:
		return spdk.NotFound
	case o.AIO != nil && b.Driver.AIO != nil:
		o.AIO.File.Name = b.Driver.AIO.Filename
	case o.RBD != nil && b.Driver.RBD != nil:
		o.RBD.Pool, o.RBD.Namespace, o.RBD.Image = b.Driver.RBD.Pool, b.Driver.RBD.Namespace, b.Driver.RBD.Image
	default:
		return spdk.NotFound // another kind, not created by this plugin
	}
	return nil
}

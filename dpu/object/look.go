package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/spdk/snap"
)

// State is the state of a device in a process.
type State struct {
	// Held: the device exists unchanged.
	Held bool
	// Failed: the device exists, but its controller has failed.
	Failed bool
	// Why is the reason if the device is not Held or is Failed.
	Why string
	// UUID of the namespace that has replaced the device's.
	UUID string
}

// Shown identifies a device: its name, namespace, object, and the name of a
// foreign controller.
type Shown struct {
	Name      string
	Namespace plan.Choice
	Object    plan.Object
	As        string
}

// Look returns the state of one device, without listing all bdevs.
func (m *Manager) Look(ctx context.Context, d Shown) (State, error) {
	if d.Object.Kind == plan.AIOFsdev {
		return m.lookFsdev(ctx, d)
	}
	b, err := m.config.RPC.Bdev(ctx, d.Name)
	switch {
	case errors.Is(err, spdk.NotFound):
		return State{Why: "SNAP has no bdev " + d.Name}, nil
	case err != nil:
		return State{}, err
	case b.Name != d.Name: // it is an alias of another bdev
		return State{Why: fmt.Sprintf("SNAP has bdev %s with the alias %s", b.Name, d.Name)}, nil
	}
	switch d.Object.Kind {
	case plan.AIO:
		path, err := m.config.Pools.File(d.Object.AIO.File)
		switch {
		case isUnreadable(err):
			return State{}, err
		case err != nil:
			return State{Why: err.Error()}, nil
		}
		return heldUnless(checkAIO(b, path)), nil
	case plan.RBD:
		return heldUnless(checkRBD(b, d.Object)), nil
	}
	return m.lookNamespace(ctx, d, b)
}

// isUnreadable: the error of a system call does not show what the path leads to.
func isUnreadable(err error) bool {
	_, fromKernel := errors.AsType[unix.Errno](err)
	return fromKernel && !slices.ContainsFunc([]unix.Errno{unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV}, func(e unix.Errno) bool { return errors.Is(err, e) })
}

func heldUnless(err error) State {
	if err != nil {
		return State{Why: err.Error()}
	}
	return State{Held: true}
}

func (m *Manager) lookNamespace(ctx context.Context, d Shown, b spdk.Bdev) (State, error) {
	for _, p := range b.Driver.NVMe {
		if p.Address.SubNQN != "" && p.Address.SubNQN != d.Object.Controller.SubNQN {
			return State{Why: fmt.Sprintf("bdev %s belongs to subsystem %s now, not to %s", b.Name, p.Address.SubNQN, d.Object.Controller.SubNQN)}, nil
		}
	}
	if why := differs(b, d.Namespace); why != "" {
		return State{Why: "bdev " + b.Name + " " + why, UUID: strings.ToLower(b.UUID)}, nil
	}
	controller := d.Object.Name
	if d.As != "" {
		controller = d.As
	}
	c, err := m.config.RPC.NVMeController(ctx, controller)
	switch {
	case errors.Is(err, spdk.NotFound):
		return State{Why: "SNAP has no controller " + controller}, nil
	case err != nil:
		return State{}, err
	case allFailed(c):
		return State{Held: true, Failed: true, Why: "controller " + controller + " has failed: its target does not respond"}, nil
	}
	return State{Held: true}, nil
}

func (m *Manager) lookFsdev(ctx context.Context, d Shown) (State, error) {
	f, err := m.config.RPC.Fsdev(ctx, d.Name)
	switch {
	case errors.Is(err, spdk.UnknownMethod): // same process, and only this plugin removes the device
		return State{Held: true}, nil
	case errors.Is(err, spdk.NotFound):
		return State{Why: "SNAP has no file system device " + d.Name}, nil
	case err != nil:
		return State{}, err
	}
	root := m.config.Mounts.Path(d.Object.Fsdev.Mount)
	if f.Driver.RootPath != "" && f.Driver.RootPath != root {
		return State{Why: fmt.Sprintf("file system device %s has directory %s now, not %s", d.Name, f.Driver.RootPath, root)}, nil
	}
	return State{Held: true}, nil
}

// Exposed returns where a host can still see a device, or "".
func (m *Manager) Exposed(ctx context.Context, kind plan.Kind, device string) (string, error) {
	return m.exposed(ctx, kind, func(name string) bool { return name == device })
}

func (m *Manager) checkHidden(ctx context.Context, o plan.Object) error {
	is := func(name string) bool { return name == o.Name }
	switch o.Kind {
	case plan.Controller:
		is = func(bdev string) bool { _, of := nsidOf(o.Name, bdev); return of }
	case plan.AIO, plan.RBD, plan.AIOFsdev:
	default: // not visible to hosts
		return nil
	}
	where, err := m.exposed(ctx, o.Kind, is)
	if err == nil && where != "" {
		err = errs.Errorf(errs.Precondition, "%s is still exposed to the host as %s", o.ID, where)
	}
	return err
}

// exposed looks up a device exposed to hosts; a process that is not SNAP
// exposes nothing.
func (m *Manager) exposed(ctx context.Context, kind plan.Kind, is func(device string) bool) (string, error) {
	methods, err := m.methods(ctx)
	if err != nil {
		return "", err
	}
	s := snap.SNAP{RPC: m.config.RPC}
	if kind == plan.AIOFsdev {
		if !snap.ExposesFilesystems(methods) {
			return "", nil
		}
		all, err := s.FSDevices(ctx)
		if i := slices.IndexFunc(all, func(d snap.FSDevice) bool { return is(d.Fsdev) }); i >= 0 {
			return "virtio-fs device " + all[i].Name, err
		}
		return "", err
	}
	if !snap.ExposesBlock(methods) {
		return "", nil
	}
	all, err := s.Subsystems(ctx)
	for _, sub := range all {
		if i := slices.IndexFunc(sub.Namespaces, func(n snap.Namespace) bool { return is(n.Bdev) }); i >= 0 {
			return fmt.Sprintf("namespace %d of the emulated subsystem %s", sub.Namespaces[i].NSID, sub.NQN), err
		}
	}
	return "", err
}

// Abilities are the kinds of objects that a process supports.
type Abilities struct{ NVMe, AIO, RBD, Filesystem bool }

// methods returns those of an initialised process. Unavailable: it is starting, and
// what it supports and exposes is not known yet.
func (m *Manager) methods(ctx context.Context) (spdk.MethodSet, error) {
	methods, err := m.config.RPC.Methods(ctx)
	if err == nil && methods.IsStarting() {
		err = errs.Errorf(errs.Unavailable, "SNAP at %s is not initialised yet; retry", m.config.RPC.Socket())
	}
	return methods, err
}

// Abilities derives the supported kinds from the process's methods.
func (m *Manager) Abilities(ctx context.Context) (Abilities, error) {
	methods, err := m.methods(ctx)
	if err != nil {
		return Abilities{}, err
	}
	return Abilities{
		NVMe:       methods.Has("bdev_nvme_attach_controller", "bdev_nvme_get_controllers", "bdev_get_bdevs"),
		AIO:        m.config.Pools != nil && methods.Has("bdev_aio_create", "bdev_get_bdevs"),
		RBD:        methods.Has("bdev_rbd_create", "bdev_get_bdevs"),
		Filesystem: m.config.Mounts != nil && methods.Has("fsdev_aio_create"),
	}, nil
}

// Package host reads a machine's SR-IOV functions as a plan.State, and executes
// the steps of a plan.
//
// Kernel calls cannot be interrupted: they return when the driver does. Do and
// Read run them on a goroutine that they abandon when their context ends. Until
// the abandoned call returns, further steps on the same PF and its VFs are
// refused. Close waits for abandoned calls.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/linux/kmod"
	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/internal/linux/vflink"
	"github.com/cleatproject/cleat/internal/ovsdb"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/plan"
)

// Config selects the machine; the zero value is the local one.
type Config struct {
	Sysfs   string          // "": /sys
	Links   inventory.Links // nil: netlinks.Kernel
	Network Network         // nil: vflink.Kernel
	BootID  string          // file; "": that of the kernel
	OVS     string          // socket of Open vSwitch's database; "": ovsdb.DefaultSocket
	// Write writes a sysfs attribute, by full path, with one write(2).
	Write func(name, value string) error
	// LoadModule loads a module and its dependencies; nil: modprobe(8).
	LoadModule func(ctx context.Context, name string) error
}

// Network is the kernel's netlink interface; vflink.Kernel implements it. Links
// have names, functions PCI addresses.
type Network interface {
	// With the VF table.
	Link(ctx context.Context, name string) (netlinks.Link, error)
	SetMTU(ctx context.Context, name string, mtu int) error
	SetUp(ctx context.Context, name string) error

	// Entries of the VF table.
	SetMAC(ctx context.Context, name string, vf int, mac net.HardwareAddr) error
	SetTrust(ctx context.Context, name string, vf int, on bool) error
	SetSpoofCheck(ctx context.Context, name string, vf int, on bool) error
	SetGUIDs(ctx context.Context, name string, vf int, node, port uint64) error
	SetVLAN(ctx context.Context, name string, vf, vlan, qos int, qinq bool) error
	SetRates(ctx context.Context, name string, vf, lowest, highest int) error
	SetLinkState(ctx context.Context, name string, vf, state int) error

	// legacy, switchdev, or "" if not reported.
	ESwitch(ctx context.Context, address string) (string, error)
	SetESwitch(ctx context.Context, address, mode string) error
	// on, off, fixed, or "" if not reported.
	TCOffload(ctx context.Context, name string) (string, error)
	SetTCOffload(ctx context.Context, name string) error
	// dmfs, smfs, or "" if not reported.
	FlowSteering(ctx context.Context, address string) (string, error)
	SetFlowSteering(ctx context.Context, address, mode string) error

	AddVDPA(ctx context.Context, name, address string) error
	DeleteVDPA(ctx context.Context, name string) error

	// shared, exclusive, or "" if not reported.
	RDMAMode(ctx context.Context) (string, error)
}

// Host is a machine, safe for concurrent use: steps on one PF and its VFs are
// serialized.
type Host struct {
	config Config
	bounds bounds

	mu      sync.Mutex
	running map[string]*call // by key
}

// New does no I/O.
func New(c Config) *Host {
	c.Sysfs = cmp.Or(c.Sysfs, "/sys")
	c.BootID = cmp.Or(c.BootID, "/proc/sys/kernel/random/boot_id")
	c.OVS = cmp.Or(c.OVS, ovsdb.DefaultSocket)
	if c.Links == nil {
		c.Links = netlinks.Kernel{}
	}
	if c.Network == nil {
		c.Network = vflink.Kernel{}
	}
	if c.Write == nil {
		c.Write = write
	}
	if c.LoadModule == nil {
		c.LoadModule = kmod.Load
	}
	return &Host{config: c, bounds: defaultBounds, running: map[string]*call{}}
}

// Do executes a step and waits for its effect. Steps are idempotent. If the
// kernel does not return the error is a *Hung.
func (h *Host) Do(ctx context.Context, s plan.Step) error {
	if s == nil {
		return errors.New("execute a step: it is nil")
	}
	if err := vflink.CheckAddress(s.Function()); err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	key, err := h.physical(s.Function())
	if err != nil {
		return fmt.Errorf("%s: %w", s, err)
	}
	return h.run(ctx, key, s.String(), h.bound(s), func(ctx context.Context, c *call) error {
		if err := h.execute(ctx, c, s); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
		return nil
	})
}

func (h *Host) bound(s plan.Step) time.Duration {
	switch s.(type) {
	case plan.SetNumVFs, plan.SetESwitch:
		return h.bounds.numVFs
	}
	return h.bounds.step
}

func (h *Host) execute(ctx context.Context, c *call, s plan.Step) error {
	switch s := s.(type) {
	case plan.SetNumVFs:
		return h.setNumVFs(ctx, c, s)
	case plan.SetESwitch:
		return h.setESwitch(ctx, c, s)
	case plan.SetFlowSteering:
		return acceptable(h.setFlowSteering(ctx, c, s), plan.UnmetSteering)
	case plan.SetTCOffload:
		return acceptable(h.setTCOffload(ctx, c, s), plan.UnmetOffload)
	case plan.CreateBridge:
		return acceptable(h.createBridge(ctx, c, s), plan.UnmetBridge)
	case plan.DeleteBridge:
		c.setCurrent("delete the Open vSwitch bridge %s", s.Name)
		return acceptable(ovsdb.Delete(ctx, h.config.OVS, s.Name, map[string]string{idPF: s.PF}), plan.UnmetBridge)
	case plan.SetMTU:
		return h.setMTU(ctx, c, s)
	case plan.SetUp:
		return h.setUp(ctx, c, s)
	case plan.SetMAC:
		return h.setMAC(ctx, c, s)
	case plan.SetGUID:
		return h.setGUID(ctx, c, s)
	case plan.SetTrust:
		return h.setTrust(ctx, c, s)
	case plan.SetSpoofCheck:
		return h.setSpoofCheck(ctx, c, s)
	case plan.SetVLAN:
		return h.setVLAN(ctx, c, s)
	case plan.SetRates:
		return h.setRates(ctx, c, s)
	case plan.SetLinkState:
		return h.setLinkState(ctx, c, s)
	case plan.Bind:
		return h.bind(ctx, c, s)
	case plan.Unbind:
		return h.unbindStep(ctx, c, s)
	case plan.SetVDPA:
		return h.setVDPA(ctx, c, s)
	}
	return fmt.Errorf("unknown step type %T", s)
}

// ensure changes a property unless it is as desired. wrong returns how it
// differs; changed is set after the change.
func ensure(wrong func(changed bool) (string, error), change func() error) error {
	if w, err := wrong(false); err != nil || w == "" {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	return errIfNotApplied(wrong(true))
}

// await polls: a write can take effect later.
func await(ctx context.Context, bound time.Duration, wrong func() (string, error)) error {
	return retry.For(ctx, bound, func() (bool, error) {
		w, err := wrong()
		return w != "", errIfNotApplied(w, err)
	})
}

func errIfNotApplied(wrong string, err error) error {
	if err == nil && wrong != "" {
		return fmt.Errorf("the kernel accepted the change, but %s", wrong)
	}
	return err
}

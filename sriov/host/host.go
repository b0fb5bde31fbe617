// Package host reads the SR-IOV functions of a machine as a plan.State, and
// executes the steps of a plan.
//
// A kernel call returns when the driver does; no signal or deadline interrupts
// it. So Do and Read run kernel calls on a goroutine that they abandon when
// their context ends. Until an abandoned call returns, further steps on the
// same physical function and its virtual functions are refused. Close waits for
// abandoned calls.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/internal/linux/retry"
	"github.com/cleatproject/cleat/internal/linux/vflink"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/plan"
)

// Config selects the machine. The zero value is the local machine.
type Config struct {
	Sysfs   string          // "": /sys
	Links   inventory.Links // nil: netlinks.Kernel
	Network Network         // nil: vflink.Kernel
	// Write writes a value to a sysfs attribute by one write(2); nil: the
	// default implementation. name is the full path.
	Write func(name, value string) error
	// LoadModule loads a kernel module and its dependencies; nil: modprobe(8).
	LoadModule func(ctx context.Context, name string) error
}

// Network is the netlink interface of the kernel; vflink.Kernel is the
// production implementation. Links are identified by name, functions by PCI
// address.
type Network interface {
	// Link returns the network device with its VF table.
	Link(ctx context.Context, name string) (netlinks.Link, error)
	SetMTU(ctx context.Context, name string, mtu int) error
	SetUp(ctx context.Context, name string) error

	// The following change an entry of the VF table.
	SetMAC(ctx context.Context, name string, vf int, mac net.HardwareAddr) error
	SetTrust(ctx context.Context, name string, vf int, on bool) error
	SetSpoofCheck(ctx context.Context, name string, vf int, on bool) error
	SetGUIDs(ctx context.Context, name string, vf int, node, port uint64) error

	// ESwitch is legacy, switchdev, or "" if the driver reports none.
	ESwitch(ctx context.Context, address string) (string, error)
	SetESwitch(ctx context.Context, address, mode string) error

	AddVDPA(ctx context.Context, name, address string) error
	DeleteVDPA(ctx context.Context, name string) error

	// RDMAMode is shared, exclusive, or "" if the kernel reports none.
	RDMAMode(ctx context.Context) (string, error)
}

// Host is a machine. Its methods are safe for concurrent use: steps on one
// physical function and its virtual functions are serialized.
type Host struct {
	config Config
	bounds bounds

	mu      sync.Mutex
	running map[string]*call // at most one for each key
}

// New returns the Host of a configuration, without any I/O.
func New(c Config) *Host {
	c.Sysfs = cmp.Or(c.Sysfs, "/sys")
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
		c.LoadModule = modprobe
	}
	return &Host{config: c, bounds: defaultBounds, running: map[string]*call{}}
}

// Do executes a step and returns nil once the machine shows its effect. Steps
// are idempotent and can be repeated after an interruption. The error is a
// *Hung if the kernel does not return.
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
	case plan.Bind:
		return h.bind(ctx, c, s)
	case plan.Unbind:
		return h.unbindStep(ctx, c, s)
	case plan.SetVDPA:
		return h.setVDPA(ctx, c, s)
	}
	return fmt.Errorf("unknown step type %T", s)
}

// ensure changes a property unless it has the desired value. wrong reads the
// property and returns how it differs, or ""; changed is set in the read after
// the change.
func ensure(wrong func(changed bool) (string, error), change func() error) error {
	if w, err := wrong(false); err != nil || w == "" {
		return err
	}
	if err := change(); err != nil {
		return err
	}
	return errIfNotApplied(wrong(true))
}

// await polls until wrong returns "": a write can take effect later.
func await(ctx context.Context, bound time.Duration, wrong func() (string, error)) error {
	return retry.For(ctx, bound, func() (bool, error) {
		w, err := wrong()
		return w != "", errIfNotApplied(w, err)
	})
}

// errIfNotApplied returns an error if a change has had no effect.
func errIfNotApplied(wrong string, err error) error {
	if err == nil && wrong != "" {
		return fmt.Errorf("the kernel accepted the change, but %s", wrong)
	}
	return err
}

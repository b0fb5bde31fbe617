// Package host is the effects of configuring SR-IOV functions: it reads what a
// machine has as a plan.State, and does the steps of a plan.
//
// A call to the kernel ends when the driver behind it does, and nothing ends it
// before: no signal, no deadline. So each is made by a goroutine that Do and
// Read leave behind when their context ends; until it has come back nothing
// more is done to the same physical function and its virtual ones. Close waits
// for those that were left.
package host

import (
	"cmp"
	"context"
	"net"

	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/internal/linux/vflink"
	"github.com/cleatproject/cleat/sriov/inventory"
)

// Config says what machine it is. Its zero value is this one.
type Config struct {
	Sysfs   string          // "": /sys
	Links   inventory.Links // nil: netlinks.Kernel
	Network Network         // nil: vflink.Kernel
	// Write writes a value to an attribute of sysfs, of which it gets the full
	// path, in one call of write(2); nil: it does so.
	Write func(name, value string) error
	// LoadModule loads a kernel module with what it needs; nil: by modprobe(8).
	LoadModule func(ctx context.Context, name string) error
}

// Network is what is asked and told by netlink; vflink.Kernel is the real one.
// Links are named as the kernel names them, functions by PCI address.
type Network interface {
	// Link is the network device with its table of virtual functions.
	Link(ctx context.Context, name string) (vflink.Link, error)
	SetMTU(ctx context.Context, name string, mtu int) error
	SetUp(ctx context.Context, name string) error

	// These are for an entry of that table, by the index of the function.
	SetMAC(ctx context.Context, name string, vf int, mac net.HardwareAddr) error
	SetTrust(ctx context.Context, name string, vf int, on bool) error
	SetSpoofCheck(ctx context.Context, name string, vf int, on bool) error
	SetGUIDs(ctx context.Context, name string, vf int, node, port uint64) error

	// ESwitch is legacy, switchdev, or "" where the driver does not tell.
	ESwitch(ctx context.Context, address string) (string, error)
	SetESwitch(ctx context.Context, address, mode string) error

	AddVDPA(ctx context.Context, name, address string) error
	DeleteVDPA(ctx context.Context, name string) error

	// RDMAMode is shared, exclusive, or "" where the kernel does not tell.
	RDMAMode(ctx context.Context) (string, error)
}

// Host is a machine. Its methods may be called by many at once: what concerns
// one physical function and its virtual ones goes one after the other.
type Host struct {
	config Config
	bounds bounds
	calls  calls
}

// New makes one. Nothing is read or changed.
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
	return &Host{config: c, bounds: usual, calls: calls{running: map[string]*call{}}}
}

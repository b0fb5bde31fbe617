package inventory

import (
	"cmp"
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// Links is what the kernel tells of network devices; netlinks.Kernel is the
// real one.
type Links interface {
	Links(context.Context) ([]netlinks.Link, error)
	// DefaultRoutes is the indices of the links that default routes use; also
	// with an error those that it found.
	DefaultRoutes(context.Context) ([]int, error)
}

// DiscoverConfig says where to look.
type DiscoverConfig struct {
	Sysfs string // "": /sys
	Dev   string // "": /dev; paths in the snapshot begin with /dev all the same
	Links Links  // nil: netlinks.Kernel
	// Devlink tells profiles and what can do RDMA. Nil: a devlink.Recent that
	// knows nothing yet. Who discovers again and again gives one: it remembers,
	// and a driver that hangs keeps no more than one goroutine of it.
	Devlink Devlink
	// Profiles is asked for DDP profiles that no driver reports. Nil: none is.
	Profiles Profiles
}

// What a Problem is about that concerns no single function.
const (
	WhatLinks    = "links"          // no network device is known by more than its name
	WhatRoutes   = "default routes" // a function may carry one and not say so
	WhatDevlink  = "devlink"        // profiles, and what can do RDMA, are as far known as they stand
	WhatProfiles = "ddptool"        // the profile of an adapter is as far known as it stands
)

// mostReaders bounds how many functions are read at once.
const mostReaders = 4

// Discover reads what functions and auxiliary devices there are. What cannot be
// read is a Problem of the snapshot; the error is for a context that ended and
// for a sysfs that is not there at all.
//
// The kernel makes and removes functions meanwhile. One that vanished is left
// out without a word; one that is half made or half removed is left out with a
// Problem, so that a virtual function is never taken for a physical one.
//
// Nothing that it reads waits for a lock of the kernel: sriov_numvfs, which
// waits until a driver has made its functions, is not read. Only devlink does
// wait, and gets a second meanwhile.
func Discover(ctx context.Context, c DiscoverConfig) (*Snapshot, error) {
	c.Sysfs, c.Dev = cmp.Or(c.Sysfs, "/sys"), cmp.Or(c.Dev, "/dev")
	if c.Links == nil {
		c.Links = netlinks.Kernel{}
	}
	if c.Devlink == nil {
		c.Devlink = new(devlink.Recent)
	}
	root, err := sysfs.Open(c.Sysfs)
	if err != nil {
		return nil, fmt.Errorf("discover functions: %w: give the directory where sysfs is mounted", err)
	}
	defer root.Close()
	s := scan{root: root, config: c}
	functions, classes, err := s.read(ctx)
	if err != nil {
		return nil, fmt.Errorf("discover functions: %w", err)
	}
	classes.userspace.tell(functions)
	classes.network.tell(functions)
	classes.rdma.tell(functions)
	classes.drivers.tell(functions)
	s.profiles(ctx, functions)
	auxiliary := s.auxiliary(functions, classes.network, classes.rdma)
	classes.drivers.tellAuxiliary(auxiliary)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("discover functions: %w", err)
	}
	return &Snapshot{Functions: functions.values(), Auxiliary: auxiliary, Problems: s.problems}, nil
}

// classes is what drivers made on functions, and what they tell.
type classes struct {
	network   *network
	rdma      *rdma
	userspace *userspace
	drivers   driverReports
}

// read reads the functions, and meanwhile what there is beside them.
func (s *scan) read(ctx context.Context) (f devices, c classes, err error) {
	scans := [...]scan{{root: s.root, config: s.config}, {root: s.root, config: s.config}, {root: s.root, config: s.config}}
	var done sync.WaitGroup
	done.Go(func() { c.network = scans[0].network(ctx) })
	done.Go(func() { c.rdma, c.userspace = scans[1].rdma(), scans[1].userspace() })
	done.Go(func() { c.drivers = scans[2].devlink(ctx) })
	f, err = s.functions(ctx)
	done.Wait()
	for _, other := range scans {
		s.problems = append(s.problems, other.problems...)
	}
	return f, c, err
}

// scan is one discovery under way.
type scan struct {
	root     sysfs.Dir
	config   DiscoverConfig
	problems []Problem
}

func (s *scan) problem(what string, err error) {
	s.problems = append(s.problems, Problem{What: what, Err: err})
}

// each lists a directory of links to devices and calls with the place that each
// link leads to. A directory that is not there has no devices. Entries that are
// no links are files of the class, not devices.
func (s *scan) each(dir string, below int, call func(class sysfs.Dir, name string, at devicePath)) {
	class, err := s.root.Open(dir)
	if err != nil {
		if !sysfs.IsAbsent(err) {
			s.problem(dir, err)
		}
		return
	}
	defer class.Close()
	names, err := class.Names()
	if err != nil {
		s.problem(dir, err)
		return
	}
	for _, name := range names {
		target, err := class.Link(name)
		if err != nil {
			continue
		}
		call(class, name, parseDevicePath(target, below))
	}
}

// devices are functions in the order of their addresses.
type devices struct {
	ordered []*Function
	at      map[string]*Function // by address
}

func (d devices) values() []Function {
	all := make([]Function, len(d.ordered))
	for i, f := range d.ordered {
		all[i] = *f
	}
	return all
}

// functions reads every function of the kinds that there are, and who is whose.
func (s *scan) functions(ctx context.Context) (devices, error) {
	const dir = "bus/pci/devices"
	bus, err := s.root.Open(dir)
	if err != nil {
		s.problem(dir, err)
		return devices{}, nil
	}
	defer bus.Close()
	names, err := bus.Names()
	if err != nil {
		s.problem(dir, err)
		return devices{}, nil
	}
	addresses := slices.DeleteFunc(names, func(name string) bool { return !isAddress(name) })
	slices.SortFunc(addresses, compareAddresses)
	read, err := readAll(ctx, bus, addresses)
	if err != nil {
		return devices{}, err
	}
	return s.relate(read), nil
}

// readAll reads the functions, some at a time, in the order of their addresses.
func readAll(ctx context.Context, bus sysfs.Dir, addresses []string) ([]functionReading, error) {
	read := make([]functionReading, len(addresses))
	var next atomic.Int64
	var done sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), mostReaders) {
		done.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(addresses) {
					return
				}
				read[i] = readFunction(bus, addresses[i])
			}
		})
	}
	done.Wait()
	return read, ctx.Err()
}

package inventory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// Links reads network devices; netlinks.Kernel is the real one.
type Links interface {
	Links(context.Context) ([]netlinks.Link, error)
	// DefaultRoutes returns the indexes of the links that default routes use;
	// with an error those that it found.
	DefaultRoutes(context.Context) ([]int, error)
}

// DiscoverConfig has the sources of a discovery.
type DiscoverConfig struct {
	Sysfs string // "": /sys
	Dev   string // "": /dev; paths in the snapshot begin with /dev all the same
	Links Links  // nil: netlinks.Kernel
	// Devlink reports profiles and RDMA capability. Nil: a new devlink.Recent.
	// Repeated discoveries share one: it remembers answers, and a driver that
	// hangs blocks one goroutine of it at most.
	Devlink Devlink
	// Profiles is the source of DDP profiles that no driver reports; nil: none.
	Profiles Profiles
}

// Values of Problem.What that concern no single function.
const (
	WhatLinks    = "links"          // only the names of network devices are known
	WhatRoutes   = "default routes" // a function with a default route may not be marked
	WhatDevlink  = "devlink"        // profiles and RDMA capabilities may be missing
	WhatProfiles = "ddptool"        // the profile of an adapter may be missing
)

// maxReaders bounds how many functions are read at once.
const maxReaders = 4

// Discover reads the functions and auxiliary devices of the machine. What
// cannot be read is a Problem of the snapshot; the error is for a context that
// ended and for a missing sysfs.
//
// The kernel creates and removes functions meanwhile. A function that vanished
// is left out; one that is being created or removed is left out with a Problem,
// so that a virtual function is never taken for a physical one.
//
// Nothing here waits for a lock of the kernel: sriov_numvfs, which waits until
// a driver has created its functions, is not read. Devlink does wait, for a
// second at most.
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
	s := scan{root: root, config: c, functions: map[string]*Function{}, auxiliary: map[string]*Auxiliary{}}
	snapshot := s.run(ctx)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("discover functions: %w", err)
	}
	return snapshot, nil
}

// scan is one discovery.
type scan struct {
	root   sysfs.Dir
	config DiscoverConfig

	functions map[string]*Function // by address
	auxiliary map[string]*Auxiliary

	mu       sync.Mutex
	problems []Problem
}

// problem records an error, unless it is nil.
func (s *scan) problem(what string, err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = append(s.problems, Problem{What: what, Err: err})
}

func (s *scan) run(ctx context.Context) *Snapshot {
	s.readFunctions(ctx)
	s.readAuxiliaries()
	var done sync.WaitGroup
	// Each sets other fields of the functions.
	for _, read := range []func(context.Context){s.network, s.rdma, s.userspace, s.devlink} {
		done.Go(func() { read(ctx) })
	}
	done.Wait()
	s.profiles(ctx)
	snapshot := &Snapshot{Problems: s.problems}
	for _, address := range slices.SortedFunc(maps.Keys(s.functions), compareAddresses) {
		f := s.functions[address]
		f.RDMACapable = f.RDMACapable || len(f.RDMA) > 0
		snapshot.Functions = append(snapshot.Functions, *f)
	}
	for _, name := range slices.Sorted(maps.Keys(s.auxiliary)) {
		a := s.auxiliary[name]
		a.RDMACapable = a.RDMACapable || len(a.RDMA) > 0
		a.Parent = *s.functions[a.Parent.Address]
		snapshot.Auxiliary = append(snapshot.Auxiliary, *a)
	}
	slices.SortStableFunc(snapshot.Problems, func(a, b Problem) int { return cmp.Compare(a.What, b.What) })
	return snapshot
}

// eachDevice calls for each link of a directory, with the path of the device.
// A directory that does not exist has no devices. Entries that are not links
// are files of the class.
func (s *scan) eachDevice(dir string, below int, call func(class sysfs.Dir, name string, at devicePath)) {
	class, err := s.root.Open(dir)
	if err != nil {
		s.problem(dir, absentIsNone(err))
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

// absentIsNone removes the error for a file that does not exist.
func absentIsNone(err error) error {
	if sysfs.IsAbsent(err) {
		return nil
	}
	return err
}

// readFunctions reads every function of the classes here, and which is whose
// virtual function.
func (s *scan) readFunctions(ctx context.Context) {
	const dir = "bus/pci/devices"
	bus, err := s.root.Open(dir)
	if err != nil {
		s.problem(dir, err)
		return
	}
	defer bus.Close()
	names, err := bus.Names()
	if err != nil {
		s.problem(dir, err)
		return
	}
	addresses := slices.DeleteFunc(names, func(name string) bool { return !isAddress(name) })
	slices.SortFunc(addresses, compareAddresses)
	read := make([]functionReading, len(addresses))
	var next atomic.Int64
	var done sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), maxReaders) {
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
	s.relate(read)
}

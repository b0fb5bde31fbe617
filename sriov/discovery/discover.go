package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"

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

// Config says where to look.
type Config struct {
	Sysfs string // "": /sys
	Dev   string // "": /dev; paths in the snapshot begin with /dev all the same
	Links Links  // nil: netlinks.Kernel
}

// What a Problem is about that concerns no single function.
const (
	WhatLinks  = "links"          // no network device is known by more than its name
	WhatRoutes = "default routes" // a function may carry one and not say so
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
// waits until a driver has made its functions, is not read.
func Discover(ctx context.Context, c Config) (*Snapshot, error) {
	c.Sysfs, c.Dev = cmp.Or(c.Sysfs, "/sys"), cmp.Or(c.Dev, "/dev")
	if c.Links == nil {
		c.Links = netlinks.Kernel{}
	}
	root, err := sysfs.Open(c.Sysfs)
	if err != nil {
		return nil, fmt.Errorf("discover functions: %w: give the directory where sysfs is mounted", err)
	}
	defer root.Close()
	s := &scan{root: root, config: c}

	functions, err := s.functions(ctx)
	if err != nil {
		return nil, fmt.Errorf("discover functions: %w", err)
	}
	network := s.network(ctx)
	rdma := s.rdma()
	s.tellUIO(functions)
	s.tellVDPA(functions)
	network.tell(functions)
	rdma.tell(functions)
	auxiliary := s.auxiliary(functions, network, rdma)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("discover functions: %w", err)
	}
	return &Snapshot{Functions: functions.sorted(), Auxiliary: auxiliary, Problems: s.problems}, nil
}

// scan is one discovery under way.
type scan struct {
	root     sysfs.Dir
	config   Config
	problems []Problem
}

func (s *scan) problem(what string, err error) {
	s.problems = append(s.problems, Problem{What: what, Err: err})
}

// each lists a directory of links to devices and calls with the place that each
// link leads to. A directory that is not there has no devices. Entries that are
// no links are files of the class, not devices.
func (s *scan) each(dir string, below int, call func(class sysfs.Dir, name string, at place)) {
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
		call(class, name, parsePlace(target, below))
	}
}

// devices are functions by address.
type devices map[string]*Function

func (d devices) sorted() []Function {
	all := make([]Function, 0, len(d))
	for _, f := range d {
		all = append(all, *f)
	}
	slices.SortFunc(all, func(a, b Function) int { return compareAddresses(a.Address, b.Address) })
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
	read, err := readAll(ctx, bus, addresses)
	if err != nil {
		return nil, err
	}
	return s.relate(read), nil
}

// readAll reads the functions, some at a time, in the order of their addresses.
func readAll(ctx context.Context, bus sysfs.Dir, addresses []string) ([]reading, error) {
	read := make([]reading, len(addresses))
	readers := min(runtime.GOMAXPROCS(0), mostReaders)
	var done sync.WaitGroup
	for r := range readers {
		done.Go(func() {
			for i := r; i < len(addresses) && ctx.Err() == nil; i += readers {
				read[i] = readFunction(bus, addresses[i])
			}
		})
	}
	done.Wait()
	return read, errors.Join(ctx.Err())
}

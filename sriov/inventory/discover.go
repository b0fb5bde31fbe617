package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/internal/linux/netlinks"
	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// Links lists network devices and default routes; netlinks.Kernel implements
// it.
type Links interface {
	Links(context.Context) ([]netlinks.Link, error)
	// DefaultRoutes returns link indexes; with an error the result is partial.
	DefaultRoutes(context.Context) ([]int, error)
}

// DiscoverConfig has the data sources of Discover.
type DiscoverConfig struct {
	Sysfs string // "": /sys
	Dev   string // paths in the snapshot always begin with /dev
	Links Links  // nil: netlinks.Kernel
	// Devlink must be shared by repeated discoveries: it caches, and a hanging
	// driver blocks at most one goroutine. Nil: a new devlink.Recent.
	Devlink Devlink
	// Profiles has the DDP profiles that no driver reports; nil: none.
	Profiles Profiles
}

const (
	WhatLinks    = "links"          // only names are known
	WhatRoutes   = "default routes" // functions can be unmarked
	WhatDevlink  = "devlink"        // profiles and RDMA capabilities can be missing
	WhatProfiles = "ddptool"
)

const maxReaders = 4

// Discover reads the functions and auxiliary devices of the machine. Read
// errors become Problems; Discover fails only if the context ends or sysfs is
// missing.
//
// The kernel creates and removes functions concurrently: a removed function is
// left out; one in transition is left out with a Problem, so that a VF is never
// mistaken for a PF.
//
// It does not block on driver locks (sriov_numvfs is not read), and on devlink
// for at most a second.
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

type scan struct {
	root   sysfs.Dir
	config DiscoverConfig

	functions map[string]*Function
	auxiliary map[string]*Auxiliary

	mu       sync.Mutex
	problems []Problem
}

func (s *scan) problem(what string, err error) { s.problemOf("", what, err) }

func (s *scan) problemOf(device, what string, err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problems = append(s.problems, Problem{What: what, Device: device, Err: err})
}

func (s *scan) run(ctx context.Context) *Snapshot {
	s.readFunctions(ctx)
	s.readAuxiliaries()
	var done sync.WaitGroup
	// The readers run concurrently: each sets different fields of the
	// functions.
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

// eachDevice visits the links of a directory. Entries that are not links are
// attributes of the class.
func (s *scan) eachDevice(dir string, below int, call func(class sysfs.Dir, name string, at devicePath)) {
	class, err := s.root.Open(dir)
	if err != nil {
		s.problem(dir, ignoreAbsent(err))
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
		switch {
		case errors.Is(err, unix.EINVAL): // not a link
			continue
		case err != nil: // of any function
			s.problem(dir, ignoreAbsent(err))
			continue
		}
		call(class, name, parseDevicePath(target, below))
	}
}

func ignoreAbsent(err error) error {
	if sysfs.IsAbsent(err) {
		return nil
	}
	return err
}

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

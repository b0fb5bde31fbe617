package inventory

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/cleatproject/cleat/internal/linux/ddptool"
	"github.com/cleatproject/cleat/internal/linux/devlink"
	"github.com/cleatproject/cleat/internal/linux/sysfs"
)

// Devlink reports driver properties; *devlink.Recent implements it.
type Devlink interface {
	// Devices returns soon after ctx ends. With an error the result is partial.
	Devices(ctx context.Context) (map[devlink.Handle]devlink.Device, error)
}

// NoDevlink is a Devlink without devices.
type NoDevlink struct{}

// Devices implements Devlink.
func (NoDevlink) Devices(context.Context) (map[devlink.Handle]devlink.Device, error) { return nil, nil }

// devlinkTimeout: a driver answers only after its current operation, such as
// the creation of VFs.
const devlinkTimeout = time.Second

// As upstream, a function is RDMA capable if it has an RDMA device or its
// driver reports RDMA, which it does even while the RDMA device is in a pod's
// namespace (exclusive mode). ice reports DDP profiles for physical functions
// only, so VFs get their PF's.
func (s *scan) devlink(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, devlinkTimeout)
	defer cancel()
	devices, err := s.config.Devlink.Devices(ctx)
	s.problem(WhatDevlink, err)
	pci := func(address string) devlink.Device { return devices[devlink.Handle{Bus: "pci", Name: address}] }
	for _, f := range s.functions {
		f.RDMACapable, f.DDPProfile = pci(f.Address).RDMA, cmp.Or(pci(f.Address).Profile, pci(f.PF).Profile)
	}
	for _, a := range s.auxiliary {
		a.RDMACapable = devices[devlink.Handle{Bus: "auxiliary", Name: a.Name}].RDMA
	}
}

// Profiles has the DDP profiles of adapters whose drivers report none;
// *ddptool.Tool implements it.
type Profiles interface {
	Profile(ctx context.Context, address string) (string, error)
}

const intel = "8086"

// profiles asks for Intel functions, the only ones with DDP profiles, whose
// driver reports none.
func (s *scan) profiles(ctx context.Context) {
	if s.config.Profiles == nil {
		return
	}
	asked := map[string][]*Function{} // by PF
	for _, f := range s.functions {
		if f.DDPProfile == "" && f.Vendor == intel {
			asked[f.PF] = append(asked[f.PF], f)
		}
	}
	var all sync.WaitGroup
	readers := make(chan struct{}, maxReaders)
	for pf, functions := range asked {
		all.Go(func() {
			readers <- struct{}{}
			defer func() { <-readers }()
			profile, err := s.config.Profiles.Profile(ctx, pf)
			if err != nil && !errors.Is(err, ddptool.ErrNotInstalled) {
				s.problem(WhatProfiles, err)
			}
			for _, f := range functions {
				f.DDPProfile = profile
			}
		})
	}
	all.Wait()
}

// The vDPA device of a scalable function does not belong to the parent
// function.
func (s *scan) userspace(context.Context) {
	s.eachDevice("class/uio", 2, func(_ sysfs.Dir, name string, at devicePath) {
		if f := s.functions[at.address]; f != nil && at.isFunction() && f.UIO == "" {
			f.UIO = name
		}
	})
	const bus = "bus/vdpa/devices"
	s.eachDevice(bus, 1, func(devices sysfs.Dir, name string, at devicePath) {
		f := s.functions[at.address]
		if f == nil || !at.isFunction() || f.VDPA != nil {
			return
		}
		v, err := readVDPA(devices, name)
		if err == nil {
			f.VDPA = v
		}
		s.problemOf(f.Address, bus+"/"+name, ignoreAbsent(err))
	})
}

func readVDPA(devices sysfs.Dir, name string) (*VDPA, error) {
	dir, err := devices.Open(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	v := &VDPA{Name: name}
	if v.Driver, err = linkBase(dir, "driver"); err != nil || v.Driver != "vhost_vdpa" {
		return v, err
	}
	entries, err := dir.Names()
	if err != nil {
		return nil, err
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry, "vhost-vdpa-") {
			v.Path = "/dev/" + entry
		}
	}
	return v, nil
}

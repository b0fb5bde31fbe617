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

// Devlink reports driver properties of devices; *devlink.Recent is the
// production implementation.
type Devlink interface {
	// Devices returns soon after ctx ends. With an error the result is partial.
	Devices(ctx context.Context) (map[devlink.Handle]devlink.Device, error)
}

// NoDevlink is a Devlink without devices, for callers that need neither DDP
// profiles nor RDMA capability.
type NoDevlink struct{}

// Devices returns no device.
func (NoDevlink) Devices(context.Context) (map[devlink.Handle]devlink.Device, error) { return nil, nil }

// devlinkTimeout bounds the wait for drivers: a driver answers only after its
// current operation, such as the creation of virtual functions.
const devlinkTimeout = time.Second

// devlink sets RDMACapable and DDPProfile with upstream's meaning. A function
// is RDMA capable if it has an RDMA device or its driver reports RDMA, which
// the driver does even while the RDMA device is in a pod's namespace (exclusive
// mode). The DDP profile is that of the function or of its PF: ice reports
// profiles for physical functions only.
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

// Profiles is a source of DDP profiles for adapters whose drivers report none;
// *ddptool.Tool is the production implementation.
type Profiles interface {
	Profile(ctx context.Context, address string) (string, error)
}

// intel is the only vendor with DDP profiles.
const intel = "8086"

// profiles sets the DDP profile of Intel functions whose driver reports none.
// Virtual functions get the profile of their PF.
func (s *scan) profiles(ctx context.Context) {
	if s.config.Profiles == nil {
		return
	}
	asked := map[string][]*Function{} // by address of the PF
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

// userspace reads the UIO and vDPA devices of functions. The vDPA device of a
// scalable function does not belong to the parent function.
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
		s.problem(bus+"/"+name, ignoreAbsent(err))
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

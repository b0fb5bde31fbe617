package inventory

import (
	"context"
	"time"

	"github.com/cleatproject/cleat/internal/linux/devlink"
)

// Devlink is what drivers tell of their devices; *devlink.Recent is the real one.
type Devlink interface {
	// Devices returns soon after ctx ends. Also with an error it is what is known.
	Devices(ctx context.Context) (map[devlink.Handle]devlink.Device, error)
}

// NoDevlink asks no driver: for those who need neither DDP profiles nor to know
// what can do RDMA.
type NoDevlink struct{}

// Devices is none.
func (NoDevlink) Devices(context.Context) (map[devlink.Handle]devlink.Device, error) { return nil, nil }

// devlinkWait bounds how long drivers are waited for: they answer when they have
// done what they are at, such as making virtual functions.
const devlinkWait = time.Second

// driverReports is what drivers tell.
type driverReports map[devlink.Handle]devlink.Device

func (s *scan) devlink(ctx context.Context) driverReports {
	ctx, cancel := context.WithTimeout(ctx, devlinkWait)
	defer cancel()
	devices, err := s.config.Devlink.Devices(ctx)
	if err != nil {
		s.problem(WhatDevlink, err)
	}
	return devices
}

// tell follows upstream in what it means by both. Where no driver reports a
// profile, profiles asks ddptool.
//
// A function can do RDMA if it has an RDMA device, or else if its driver says
// so, as it does while a pod has the device in exclusive mode. The profile is
// its own, or else its PF's: ice tells it of physical functions alone.
func (t driverReports) tell(functions devices) {
	if len(t) == 0 {
		return
	}
	for _, f := range functions.ordered {
		own := t[pciDevice(f.Address)]
		f.RDMACapable = f.RDMACapable || own.RDMA
		if f.DDPProfile = own.Profile; f.DDPProfile == "" {
			f.DDPProfile = t[pciDevice(f.PF)].Profile
		}
	}
}

func (t driverReports) tellAuxiliary(all []Auxiliary) {
	for i := range all {
		a := &all[i]
		a.RDMACapable = len(a.RDMA) > 0 || t[devlink.Handle{Bus: "auxiliary", Name: a.Name}].RDMA
	}
}

func pciDevice(address string) devlink.Handle { return devlink.Handle{Bus: "pci", Name: address} }

package inventory

import (
	"context"
	"errors"
	"sync"

	"github.com/cleatproject/cleat/internal/linux/ddptool"
)

// Profiles is a source of DDP profiles for adapters whose drivers report none;
// *ddptool.Tool is the real one.
type Profiles interface {
	Profile(ctx context.Context, address string) (string, error)
}

// intel is the only vendor with DDP profiles.
const intel = "8086"

// profiles asks for the profile of each PF of Intel's that no driver has
// reported; its virtual functions have the same.
func (s *scan) profiles(ctx context.Context, functions devices) {
	if s.config.Profiles == nil {
		return
	}
	asked := map[string][]*Function{} // by address of the PF, or of a function without one
	for _, f := range functions.ordered {
		if f.DDPProfile != "" || f.Vendor != intel {
			continue
		}
		address := f.PF
		if address == "" {
			address = f.Address
		}
		asked[address] = append(asked[address], f)
	}
	var all sync.WaitGroup
	var mu sync.Mutex
	readers := make(chan struct{}, mostReaders)
	for address, of := range asked {
		all.Go(func() {
			readers <- struct{}{}
			defer func() { <-readers }()
			profile, err := s.config.Profiles.Profile(ctx, address)
			if err != nil && !errors.Is(err, ddptool.ErrNotInstalled) {
				mu.Lock()
				s.problem(WhatProfiles, err)
				mu.Unlock()
			}
			for _, f := range of {
				f.DDPProfile = profile
			}
		})
	}
	all.Wait()
}

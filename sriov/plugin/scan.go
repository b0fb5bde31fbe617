package plugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/inventory"
)

// finding is what one scan came to. It is not changed after it was made.
type finding struct {
	loaded     *loaded
	at         time.Time
	took       time.Duration
	snapshot   *inventory.Snapshot
	assignment inventory.Assignment
	offers     map[string]*offer // by full name of the resource
	files      error             // why others cannot read about all of it
}

// scanned answers the gate's scan of a number, or none that it asked for.
type scanned struct {
	seq     uint64
	finding *finding
	err     error
}

// scanPause is the least time between two scans that changes asked for; a scan
// that took long is followed by a longer one, so that a storm of changes costs a
// fraction of a core.
const (
	scanPause = 100 * time.Millisecond
	scanShare = 3
	// scanAgain is how soon a scan that had trouble is followed by another.
	scanAgain = 5 * time.Second
)

// scanLoop scans when the gate asks, which it does at once, soon after something
// changed, and now and then.
func (p *Plugin) scanLoop(ctx context.Context) {
	regular := time.NewTicker(p.cfg.Interval)
	defer regular.Stop()
	var rested <-chan time.Time // while it is not time for another that a change asks for
	var again <-chan time.Time  // after trouble
	var kicks <-chan struct{} = p.deps.kicks
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.asked:
		case <-kicks:
		case <-regular.C:
		case <-again:
		case <-rested:
			kicks, rested = p.deps.kicks, nil
			continue
		}
		took, whole := p.scan(ctx)
		kicks, rested, again = nil, time.After(max(scanPause, scanShare*took)), nil
		if !whole {
			again = time.After(max(scanAgain, scanShare*took))
		}
	}
}

// scan reports how long it took, and whether all was well.
func (p *Plugin) scan(ctx context.Context) (took time.Duration, whole bool) {
	seq, began := p.wanted.Load(), time.Now()
	f, err := p.find(ctx)
	took = time.Since(began)
	if ctx.Err() != nil {
		return took, true
	}
	p.deps.metrics.scanned(took, err)
	news := p.wrong.set("scan", err)
	switch {
	case err == nil:
		f.took = took
	case news:
		p.cfg.Logger.Error("what this machine has cannot be told; what was found before stays", "error", err)
	}
	p.put(order{scanned: &scanned{seq: seq, finding: f, err: err}})
	return took, err == nil && f.files == nil
}

// find reads what there is and assigns it. What leaves it open whether a function
// carries the host's own traffic, or which functions there are, is an error:
// nothing is decided then.
func (p *Plugin) find(ctx context.Context) (*finding, error) {
	f := &finding{loaded: p.loaded.Load(), at: time.Now(), offers: map[string]*offer{}}
	var err error
	if f.snapshot, err = inventory.Discover(ctx, p.where(f.loaded.config)); err != nil {
		return nil, err
	}
	for _, problem := range f.snapshot.Problems {
		if problem.What == inventory.WhatLinks || problem.What == inventory.WhatRoutes || isDirectory(problem.What) {
			return nil, fmt.Errorf("%s: %w", problem.What, problem.Err)
		}
	}
	held := p.held(ctx, f.snapshot)
	f.assignment = inventory.Assign(f.loaded.config, f.snapshot, inventory.AssignOptions{Held: held, LinkHealth: p.cfg.LinkHealth})
	for _, x := range f.assignment.Pools {
		f.offers[x.Resource.FullName()] = newOffer(x)
	}
	p.report(f)
	p.writeFiles(f)
	return f, nil
}

// isDirectory tells a problem of all devices of a kind from one of a device.
func isDirectory(what string) bool {
	bus, _ := path.Match("bus/*/devices", what)
	class, _ := path.Match("class/*", what)
	return bus || class
}

// where is what a scan reads. Drivers are asked only where a selector wants to
// know: each answers from its firmware, which takes time with every function.
func (p *Plugin) where(c inventory.Config) inventory.DiscoverConfig {
	asked := func(asks func(inventory.Selector) bool) bool {
		return slices.ContainsFunc(c.Resources, func(r inventory.Resource) bool { return slices.ContainsFunc(r.Selectors, asks) })
	}
	d := p.cfg.Discovery
	profiles := asked(func(s inventory.Selector) bool { return len(s.DDPProfiles) > 0 })
	if !profiles {
		d.Profiles = nil
	}
	if !profiles && !asked(func(s inventory.Selector) bool { return s.RDMA }) {
		d.Devlink = inventory.NoDevlink{}
	}
	return d
}

// writeFiles describes the devices to container runtimes before the kubelet
// hears of them, and drops what describes no device any more. Files of devices
// that are in use stay, over restarts of the plugin too. Devices that cannot be
// described are unhealthy; all else goes on.
func (p *Plugin) writeFiles(f *finding) {
	var errs []error
	undescribed := func(name string, why error) {
		why = fmt.Errorf("describe %s for CDI: %w", name, why)
		f.offers[name] = f.offers[name].spoilt(why)
		errs = append(errs, why)
	}
	specs, keep := map[string]spec{}, map[string]bool{} // by resource, by file
	for _, x := range f.assignment.Pools {
		for _, m := range x.Members {
			if file, _, ok := inventory.DeviceInfo(x.Resource, m); ok {
				keep[file] = true
			}
		}
		if !p.cfg.CDI {
			continue
		}
		file, content, err := inventory.CDISpec(x.Resource, x.Members, p.deps.settings)
		if err != nil {
			undescribed(x.Resource.FullName(), err)
		} else if content != nil {
			specs[x.Resource.FullName()], keep[file] = spec{file, content}, true
		}
	}
	// First what goes: no two specifications may name one device.
	if _, err := p.cfg.Files.Sweep(f.loaded.config.Resources, func(file string) bool { return keep[file] }); err != nil {
		errs = append(errs, err)
	}
	for _, name := range slices.Sorted(maps.Keys(specs)) {
		if err := p.cfg.Files.Write(specs[name].file, specs[name].content); err != nil {
			undescribed(name, err)
		}
	}
	f.files = errors.Join(errs...)
	if p.wrong.set("files", f.files) && f.files != nil {
		p.cfg.Logger.Error("what others read about the devices cannot be written; it is tried again", "error", f.files)
	}
}

// spec is a CDI specification.
type spec struct {
	file    string
	content []byte
}

// report tells people what is odd about what was found, once.
func (p *Plugin) report(f *finding) {
	var said []string
	for _, w := range f.assignment.Warnings {
		said = append(said, w.String())
	}
	for _, problem := range f.snapshot.Problems {
		said = append(said, fmt.Sprintf("%s: %v", problem.What, problem.Err))
	}
	last := p.said
	p.said = said
	for _, text := range said {
		if !slices.Contains(last, text) {
			p.cfg.Logger.Warn("something about this machine's functions may surprise", "warning", text)
		}
	}
}

package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/inventory"
)

// scanResult is immutable.
type scanResult struct {
	seq        uint64 // of the gate's Scan
	loaded     *loaded
	at         time.Time
	took       time.Duration
	err        error // the fields below are empty
	snapshot   *inventory.Snapshot
	assignment inventory.Assignment
	offers     map[string]*offer // by full name
	files      error             // writing files for other programs failed
}

// offer is immutable.
type offer struct {
	pool    inventory.Pool
	members map[string]inventory.Member
}

func newOffer(p inventory.Pool) *offer {
	o := &offer{pool: p, members: make(map[string]inventory.Member, len(p.Members))}
	for _, m := range p.Members {
		o.members[m.ID] = m
	}
	return o
}

// offer returns what the last scan found for a resource.
func (p *Plugin) offer(resource string) *offer {
	if f := p.found.Load(); f != nil && f.offers[resource] != nil {
		return f.offers[resource]
	}
	return newOffer(inventory.Pool{})
}

func (o *offer) unhealthy(why error) *offer {
	p := o.pool
	p.Members = slices.Clone(p.Members)
	for i := range p.Members {
		p.Members[i].Wrong = cmp.Or(p.Members[i].Wrong, why.Error())
	}
	return newOffer(p)
}

func (o *offer) devices() []gate.Device {
	all := make([]gate.Device, 0, len(o.members))
	for _, m := range o.pool.Members {
		all = append(all, gateDevice(m))
	}
	return all
}

func gateDevice(m inventory.Member) gate.Device {
	return gate.Device{ID: m.ID, Healthy: m.Wrong == "", Function: m.Function.Address, PF: m.Function.PF}
}

// The pause before a scan for changes is minScanPause, or scanPauseFactor times
// the duration of the last scan, to limit the CPU usage of a change storm.
const (
	minScanPause    = 100 * time.Millisecond
	scanPauseFactor = 3
	// scanRetryDelay follows a scan with a problem.
	scanRetryDelay = 5 * time.Second
)

// scans is the state of the scans; one runs at a time.
type scans struct {
	seq      uint64    // of the gate's last Scan
	running  bool      // or Run was not called
	again    bool      // by the gate, during a scan
	changed  bool      // during a scan
	earliest time.Time // for a change
	due      time.Time
}

// startScan scans now, or after the running scan.
func (p *Plugin) startScan() {
	if p.scans.running {
		p.scans.again = true
		return
	}
	p.scans.running, p.scans.again, p.scans.changed = true, false, false
	p.scans.due = time.Time{}
	seq := p.scans.seq
	p.running.Go(func() {
		f := p.scan(p.ctx, seq)
		p.step(func(now time.Time) { p.scanned(now, f) })
	})
}

func (p *Plugin) rescan(now time.Time) {
	switch {
	case p.scans.running:
		p.scans.changed = true
	case now.Before(p.scans.earliest):
		p.scans.due = p.scans.earliest
	default:
		p.startScan()
	}
}

// scanned drops a result for an older configuration: another scan follows.
func (p *Plugin) scanned(now time.Time, f *scanResult) {
	if f.loaded == p.loaded.Load() {
		devices := map[string][]gate.Device{}
		for name, o := range f.offers {
			devices[name] = o.devices()
		}
		if f.err == nil {
			p.found.Store(f)
		}
		p.gate.Scanned(now, f.seq, devices, f.err)
	}
	rest, wait := max(minScanPause, scanPauseFactor*f.took), p.cfg.Interval
	p.scans.running, p.scans.earliest = false, now.Add(rest)
	switch {
	case p.scans.again:
		p.startScan()
		return
	case p.scans.changed:
		wait = rest
	case f.err != nil || f.files != nil:
		wait = min(wait, max(scanRetryDelay, scanPauseFactor*f.took))
	}
	p.scans.due = now.Add(wait)
}

func (p *Plugin) scan(ctx context.Context, seq uint64) *scanResult {
	f := &scanResult{seq: seq, loaded: p.loaded.Load(), at: time.Now()}
	f.err = p.find(ctx, f)
	f.took = time.Since(f.at)
	if ctx.Err() != nil {
		return f
	}
	p.metrics.scans.WithLabelValues(okOrFailed(f.err)).Observe(f.took.Seconds())
	if p.problems.set("scan", f.err) && f.err != nil {
		p.logger.Error("scan failed, keeping the devices of the last scan", "err", f.err)
	}
	return f
}

// find fails if it cannot determine which functions exist, or which carry the
// host's own traffic.
func (p *Plugin) find(ctx context.Context, f *scanResult) error {
	s, err := inventory.Discover(ctx, p.discoverConfig(f.loaded.config))
	if err != nil {
		return err
	}
	for _, problem := range s.Problems {
		if problem.What == inventory.WhatLinks || problem.What == inventory.WhatRoutes || isDirectory(problem.What) {
			return fmt.Errorf("%s: %w", problem.What, problem.Err)
		}
	}
	f.snapshot, f.offers = s, map[string]*offer{}
	f.assignment = inventory.Assign(f.loaded.config, s, inventory.AssignOptions{Held: p.held(ctx, s), LinkHealth: p.cfg.LinkHealth})
	for _, x := range f.assignment.Pools {
		f.offers[x.Resource.FullName()] = newOffer(x)
	}
	p.warn(f)
	p.writeFiles(f)
	return nil
}

func isDirectory(what string) bool {
	bus, _ := path.Match("bus/*/devices", what)
	class, _ := path.Match("class/*", what)
	return bus || class
}

// Devlink and DDP profiles are read only if a selector needs them: each is a
// firmware query per function.
func (p *Plugin) discoverConfig(c inventory.Config) inventory.DiscoverConfig {
	needed := func(by func(inventory.Selector) bool) bool {
		return slices.ContainsFunc(c.Resources, func(r inventory.Resource) bool { return slices.ContainsFunc(r.Selectors, by) })
	}
	d := p.cfg.Discovery
	profiles := needed(func(s inventory.Selector) bool { return len(s.DDPProfiles) > 0 })
	if !profiles {
		d.Profiles = nil
	}
	if !profiles && !needed(func(s inventory.Selector) bool { return s.RDMA }) {
		d.Devlink = inventory.NoDevlink{}
	}
	return d
}

// writeFiles writes CDI specifications before the kubelet gets the devices.
// Files of devices in use stay, also across restarts. Devices without a
// specification become unhealthy.
func (p *Plugin) writeFiles(f *scanResult) {
	var errs []error
	undescribed := func(name string, why error) {
		why = fmt.Errorf("write CDI specification of %s: %w", name, why)
		f.offers[name] = f.offers[name].unhealthy(why)
		errs = append(errs, why)
	}
	var writes []func()
	keep := map[string]bool{}
	for _, x := range f.assignment.Pools {
		for _, m := range x.Members {
			if file, _, ok := inventory.DeviceInfo(x.Resource, m); ok {
				keep[file] = true
			}
		}
		if !p.cfg.CDI {
			continue
		}
		name := x.Resource.FullName()
		file, content, err := inventory.CDISpec(x.Resource, x.Members, p.settings)
		if err != nil {
			undescribed(name, err)
		} else if content != nil {
			keep[file] = true
			writes = append(writes, func() {
				if err := p.cfg.Files.Write(file, content); err != nil {
					undescribed(name, err)
				}
			})
		}
	}
	// Stale files first: two specifications must not name the same device.
	if _, err := p.cfg.Files.Sweep(f.loaded.config.Resources, func(file string) bool { return keep[file] }); err != nil {
		errs = append(errs, err)
	}
	for _, write := range writes {
		write()
	}
	f.files = errors.Join(errs...)
	if p.problems.set("files", f.files) && f.files != nil {
		p.logger.Error("cannot write device files, will retry", "err", f.files)
	}
}

func (p *Plugin) warn(f *scanResult) {
	var all []string
	for _, w := range f.assignment.Warnings {
		all = append(all, w.String())
	}
	for _, problem := range f.snapshot.Problems {
		all = append(all, fmt.Sprintf("%s: %v", problem.What, problem.Err))
	}
	last := p.warned
	p.warned = all
	for _, text := range all {
		if !slices.Contains(last, text) {
			p.logger.Warn("scan warning", "warning", text)
		}
	}
}

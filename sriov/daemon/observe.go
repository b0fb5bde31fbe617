package daemon

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"time"

	"github.com/cleatproject/cleat/sriov/host"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
)

const (
	maxPluginConfig = 4 << 20
	maxGUIDFile     = 1 << 20
)

type observation struct {
	state  plan.State
	unread []inventory.Problem
	hash   string // of the plugin's configuration
	guids  []plan.GUIDPool
	pods   pods
	err    error // if set, only pods is valid

	guidsErr error // of InfiniBand PFs

	baselines map[string]plan.VF // of functions that pods might have changed
	accepted  []plan.Unmet
}

type pods struct {
	holders       []podresources.Holder
	offered       map[string][]string // by resource
	offersUnknown bool                // no kubelet, or one without allocatable devices
	err           error
}

func (d *Daemon) observe(ctx context.Context) (o observation) {
	// Query before and after: a function that a pod gets or releases might be
	// read while it changes.
	before := d.readPods(ctx)
	o.state, o.err = d.config.Host.Read(ctx)
	if o.pods = d.readPods(ctx); o.pods.err == nil {
		o.pods.err = before.err
	}
	for _, h := range before.holders {
		if !slices.Contains(o.pods.holders, h) {
			o.pods.holders = append(o.pods.holders, h)
		}
	}
	if incomplete, ok := errors.AsType[*host.Incomplete](o.err); ok {
		o.unread, o.err = incomplete.Problems, nil
	}
	if o.err == nil {
		o.hash, o.err = hashOf(d.config.PluginConfig)
	}
	o.guids, o.guidsErr = readGUIDs(d.config.GUIDFile)
	return o
}

// track compares the functions with their baselines, and records new ones
// before the daemon acts on the observation.
func (d *Daemon) track(ctx context.Context, spec nodestate.Spec, before polls, o *observation) {
	d.tracker.polled(before)
	if _, err := o.notRead(spec, nil); err != nil {
		return
	}
	var changed bool
	o.baselines, changed = d.tracker.observe(spec, *o)
	o.accepted = d.tracker.saved.Accepted
	if changed || d.unsaved {
		err := saveFunctions(ctx, d.config.Store, d.tracker.saved)
		if d.unsaved = err != nil; err != nil {
			o.err = err
		}
	}
}

// polls are those since the last observation.
type polls struct {
	held   map[string]bool // functions
	failed bool            // some: pods can have held others
}

func (d *Daemon) takePolled() polls {
	d.mu.Lock()
	defer d.mu.Unlock()
	polled := d.polled
	d.polled = polls{held: map[string]bool{}}
	return polled
}

// pollPods polls which pods hold functions, for which the kubelet has no events:
// a pod that leaves something on a function might do so without any.
func (d *Daemon) pollPods(ctx context.Context, changed func()) {
	ticker := time.NewTicker(pollDelay)
	defer ticker.Stop()
	var last []string
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		held, err := d.config.Pods.Held(ctx)
		var ids []string
		d.mu.Lock()
		d.polled.failed = d.polled.failed || err != nil
		for _, h := range held {
			ids = append(ids, h.ID)
			d.polled.held[h.ID] = true
		}
		d.mu.Unlock()
		if err != nil {
			continue // found by the next observation
		}
		slices.Sort(ids)
		if !slices.Equal(ids, last) {
			changed()
		}
		last = ids
	}
}

func (d *Daemon) readPods(ctx context.Context) (p pods) {
	if d.config.Pods == nil {
		return pods{offersUnknown: true}
	}
	if p.offered, p.err = d.config.Pods.Offered(ctx); errors.Is(p.err, podresources.ErrUnsupported) {
		p.offersUnknown, p.err = true, nil
	}
	if p.err == nil { // after offered, for devices allocated in between
		p.holders, p.err = d.config.Pods.Held(ctx)
	}
	return p
}

func readGUIDs(path string) ([]plan.GUIDPool, error) {
	if path == "" {
		return nil, nil
	}
	text, err := source.ReadFile(path, maxGUIDFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the static GUID file: %w", err)
	}
	pools, err := plan.ParseGUIDs(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return pools, nil
}

func hashOf(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := source.ReadFile(path, maxPluginConfig)
	if err != nil {
		return "", fmt.Errorf("read the plugin's configuration: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

var addresses = regexp.MustCompile(`^[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// notRead returns what a plan must leave alone because it could not be read: PFs
// of the desired state or of managed, and their VFs, by address. The error is of
// the whole node.
func (o observation) notRead(spec nodestate.Spec, managed []string) (map[string]string, error) {
	if o.err != nil {
		return nil, o.err
	}
	partial := map[string]bool{} // PFs that a plan needs: some functions are missing
	for _, i := range spec.Interfaces {
		partial[i.PCIAddress] = true
	}
	for _, pf := range managed {
		partial[pf] = true
	}
	needed := map[string]bool{} // by function: the plan needs it
	unread := map[string]string{}
	for _, pf := range o.state.PFs {
		_, named := partial[pf.Address]
		needed[pf.Address] = named
		for _, v := range pf.VFs {
			needed[v.Address] = named
		}
		if named && len(pf.VFs) == pf.NumVFs {
			partial[pf.Address] = false
		}
		if named && o.guidsErr != nil && pf.Link == plan.InfiniBand {
			unread[pf.Address] = o.guidsErr.Error()
		}
	}
	for _, p := range o.unread {
		isNeeded, known := needed[p.Device]
		_, isPF := partial[p.Device]
		reason := fmt.Sprintf("could not be read: %s: %v", p.What, p.Err)
		switch {
		case p.What == host.WhatRDMA && spec.System.RDMAMode == "":
		case p.Device == "":
			return nil, fmt.Errorf("incomplete observation: %s: %w", p.What, p.Err)
		case isNeeded || isPF:
			unread[p.Device] = reason
		case !known && addresses.MatchString(p.Device): // of a PF that has fewer functions than it should
			for pf, is := range partial {
				if is {
					unread[pf] = cmp.Or(unread[pf], reason)
				}
			}
		}
	}
	return unread, nil
}

package spdktest

import (
	"fmt"
	"slices"
	"time"
)

// controller is an NVMe bdev controller of an initiator.
type controller struct {
	name, nqn, hostNQN string
	serial, model      string
	paths              []*path
	bdevs              []*bdev
	lossTimeout        int64
	delay, fastFail    int64
	psk                string
	failed             bool // injected: the paths stay failed until a reset
}

// trid is a path's transport ID.
type trid struct {
	Type    string `json:"trtype"`
	Family  string `json:"adrfam,omitempty"`
	Address string `json:"traddr"`
	Service string `json:"trsvcid,omitempty"`
	NQN     string `json:"subnqn"`
}

func (t trid) address() Address { return Address{t.Type, t.Address, t.Service} }

type path struct {
	session
	trid trid
	lost time.Time
	back time.Time // since when the target is reachable again; zero: unreachable
}

const (
	enabled   = "enabled"
	resetting = "resetting"
	failed    = "failed"
	delayed   = "reconnect_is_delayed"
)

// connect opens a session from the address of the process, by default that of
// the target.
func (p *Process) connect(c *controller, t *path, s *subsystem, now time.Time) {
	t.session = p.network.open(s, c.hostNQN, p.hostID, orElse(p.config.Source, t.trid.Address), t.trid.address(), now)
	t.lost, t.back = time.Time{}, time.Time{}
}

func (t *path) sees(n *namespace, now time.Time, hotAdd time.Duration) bool {
	if now.Before(t.began.Add(n.after)) {
		return false
	}
	return slices.Contains(t.met, n.id) || !now.Before(n.added.Add(hotAdd))
}

// state: after the loss of its target a path resets for a while and then fails,
// or waits for the target if it has a loss timeout.
func (c *controller) state(t *path, now time.Time, reset time.Duration) string {
	switch {
	case c.failed:
		return failed
	case t.target != nil:
		return enabled
	case now.Before(t.lost.Add(reset)), !t.back.IsZero():
		return resetting
	case c.lossTimeout == 0:
		return failed
	}
	return delayed
}

// update ends sessions of lost targets, reconnects paths, deletes controllers
// after their loss timeout, and updates bdevs.
func (p *Process) update(now time.Time) {
	for _, c := range slices.Clone(p.controllers) {
		for _, t := range slices.Clone(c.paths) {
			p.step(c, t, now)
		}
		if len(c.paths) == 0 {
			p.detach(c)
			continue
		}
		p.follow(c, now)
	}
}

func (p *Process) step(c *controller, t *path, now time.Time) {
	if t.target != nil {
		if p.network.step(&t.session, now); t.target != nil && !c.failed {
			return
		}
		t.target, t.lost = nil, now
	}
	if c.failed {
		return
	}
	p.network.pending = true
	s := p.network.find(t.trid.address(), c.nqn, c.hostNQN, p.keysOf(c))
	if s == nil {
		t.back = time.Time{}
		if c.lossTimeout > 0 && !now.Before(t.lost.Add(time.Duration(c.lossTimeout)*time.Second)) {
			c.paths = slices.DeleteFunc(c.paths, func(x *path) bool { return x == t })
		}
		return
	}
	if t.back.IsZero() {
		t.back = now
	}
	if !now.Before(t.back.Add(p.config.Timing.Reset)) {
		p.connect(c, t, s, now)
	}
}

// follow updates a controller's bdevs; without a session they stay.
func (p *Process) follow(c *controller, now time.Time) {
	t := c.session()
	if t == nil {
		return
	}
	for _, b := range slices.Clone(c.bdevs) {
		if t.target.namespace(b.namespace) == nil {
			p.remove(b)
		}
	}
	for _, n := range t.target.namespaces {
		name := c.bdevName(n.id)
		size, blocks := n.size()
		if b := p.bdev(name); b != nil && b.controller == c {
			b.blocks = blocks
			continue
		}
		if !t.sees(n, now, p.config.Timing.HotAdd) {
			p.network.pending = true
			continue
		}
		b := &bdev{
			name: name, uuid: orElse(n.identity(), newUUID()), kind: nvmeDisk, blockSize: size, blocks: blocks,
			controller: c, namespace: n.id, readOnly: n.bdev != nil && n.bdev.lvol != nil && n.bdev.lvol.readOnly,
		}
		// A namespace whose uuid is in use by another bdev gets no bdev [I].
		if p.add(b) {
			c.bdevs = append(c.bdevs, b)
		}
	}
}

// queues of a path: the admin queue, and one for I/O once a bdev has a holder.
func (c *controller) queues() int {
	if slices.ContainsFunc(c.bdevs, func(b *bdev) bool { return b.claims > 0 }) {
		return 2
	}
	return 1
}

func (c *controller) session() *path {
	for _, t := range c.paths {
		if t.target != nil {
			return t
		}
	}
	return nil
}

func (c *controller) bdevName(id uint32) string { return fmt.Sprintf("%sn%d", c.name, id) }

func (c *controller) names() []string {
	mine := slices.Clone(c.bdevs)
	slices.SortFunc(mine, func(a, b *bdev) int { return int(a.namespace) - int(b.namespace) })
	names := []string{}
	for _, b := range mine {
		names = append(names, b.name)
	}
	return names
}

func (p *Process) detach(c *controller) {
	for _, b := range slices.Clone(c.bdevs) {
		p.remove(b)
	}
	p.controllers = slices.DeleteFunc(p.controllers, func(x *controller) bool { return x == c })
}

func (p *Process) controller(name string) *controller {
	for _, c := range p.controllers {
		if c.name == name {
			return c
		}
	}
	return nil
}

// Fail makes a controller fail until it is reset or detached. It returns false
// if it does not exist.
func (p *Process) Fail(name string) bool {
	var c *controller
	p.network.change(func() {
		if c = p.controller(name); c != nil {
			c.failed = true
		}
	})
	return c != nil
}

func (c *controller) show(now time.Time, reset time.Duration) map[string]any {
	paths := []map[string]any{}
	for _, t := range c.paths {
		paths = append(paths, map[string]any{
			"state": c.state(t, now, reset), "trid": t.trid, "cntlid": t.cntlid,
			"host": map[string]any{"nqn": c.hostNQN, "addr": "", "svcid": "", "no_shn_notification": false},
		})
	}
	return map[string]any{"name": c.name, "ctrlrs": paths}
}

func (c *controller) showNamespace(id uint32) []map[string]any {
	shown := []map[string]any{}
	for _, t := range c.paths {
		shown = append(shown, map[string]any{
			"trid": t.trid,
			"ctrlr_data": map[string]any{
				"cntlid": t.cntlid, "vendor_id": "0x8086", "model_number": c.model, "serial_number": c.serial,
				"firmware_revision": "26.09", "subnqn": c.nqn,
				"oacs":        map[string]any{"security": 0, "format": 0, "firmware": 0, "ns_manage": 0},
				"multi_ctrlr": true, "ana_reporting": false,
			},
			"vs":      map[string]any{"nvme_version": "2.0"},
			"ns_data": map[string]any{"id": id, "can_share": true},
		})
	}
	return shown
}

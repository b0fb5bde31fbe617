package spdktest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func initiatorMethods(f Flavour) map[string]method {
	attach := map[string]kind{
		"name": text, "trtype": text, "traddr": text, "adrfam": text, "trsvcid": text, "priority": text, "subnqn": text,
		"hostnqn": text, "hostaddr": text, "hostsvcid": text, "prchk_reftag": flag, "prchk_guard": flag,
		"hdgst": flag, "ddgst": flag, "fabrics_connect_timeout_us": number, "multipath": text, "num_io_queues": number,
		"ctrlr_loss_timeout_sec": signed, "reconnect_delay_sec": number, "fast_io_fail_timeout_sec": number,
		"psk": text, "max_bdevs": number,
	}
	options := map[string]kind{
		"action_on_timeout": text, "timeout_us": number, "timeout_admin_us": number, "keep_alive_timeout_ms": number,
		"arbitration_burst": number, "low_priority_weight": number, "medium_priority_weight": number,
		"high_priority_weight": number, "nvme_adminq_poll_period_us": number, "nvme_ioq_poll_period_us": number,
		"io_queue_requests": number, "delay_cmd_submit": flag, "transport_retry_count": number, "bdev_retry_count": signed,
		"transport_ack_timeout": number, "ctrlr_loss_timeout_sec": signed, "reconnect_delay_sec": number,
		"fast_io_fail_timeout_sec": number, "disable_auto_failback": flag, "generate_uuids": flag, "transport_tos": number,
		"nvme_error_stat": flag, "rdma_srq_size": number, "io_path_stat": flag, "allow_accel_sequence": flag,
		"rdma_max_cq_size": number, "rdma_cm_event_timeout_ms": number,
	}
	if f == Upstream {
		attach["dhchap_key"], attach["dhchap_ctrlr_key"], attach["allow_unrecognized_csi"] = text, text, flag
		options["dhchap_digests"], options["dhchap_dhgroups"], options["tcp_connect_timeout_ms"] = list, list, number
	}
	name := map[string]kind{"name": text}
	return map[string]method{
		"bdev_nvme_attach_controller": {run: attachController, takes: needs(attach, "name", "trtype", "traddr")},
		"bdev_nvme_detach_controller": {run: detachController, takes: needs(map[string]kind{
			"name": text, "trtype": text, "traddr": text, "adrfam": text, "trsvcid": text, "subnqn": text,
			"hostaddr": text, "hostsvcid": text,
		}, "name")},
		"bdev_nvme_get_controllers":  {run: controllers, takes: needs(name)},
		"bdev_nvme_reset_controller": {run: resetController, takes: needs(map[string]kind{"name": text, "cntlid": number}, "name")},
		"bdev_nvme_set_options":      {run: setOptions, when: always, takes: needs(options)},
		"bdev_nvme_get_io_paths":     {run: ioPaths, takes: needs(name)},
	}
}

func (p *Process) transportType(name string) (string, bool) {
	name = strings.ToUpper(name)
	return name, slices.Contains([]string{"TCP", "RDMA"}, name) || name == "NVDA_TCP" && p.config.Flavour == Fork
}

func attachController(p *Process, ctx context.Context, a args) (any, *Error) {
	trtype, known := p.transportType(a.text("trtype"))
	if !known {
		return nil, errno(eNODEV)
	}
	family, ok := adrfam(a.text("adrfam"))
	if !ok {
		return nil, &Error{Code: -eINVAL, Message: "Failed to parse adrfam: " + a.text("adrfam")}
	}
	c := &controller{
		name: a.text("name"), nqn: a.text("subnqn"), hostNQN: orElse(a.text("hostnqn"), p.hostNQN), psk: a.text("psk"),
		lossTimeout: a.signed("ctrlr_loss_timeout_sec"), delay: int64(a.number("reconnect_delay_sec")),
		fastFail: int64(a.number("fast_io_fail_timeout_sec")),
	}
	t := &path{trid: trid{trtype, family, a.text("traddr"), a.text("trsvcid"), c.nqn}}
	if e := p.checkAttach(c, t, a); e != nil {
		return nil, e
	}
	// Other requests are processed meanwhile, including a second attach.
	s, e := p.reachTarget(ctx, c, t)
	if e != nil {
		return nil, e
	}
	if e := p.checkAttach(c, t, a); e != nil {
		return nil, e
	}
	return p.connected(c, t, s, a)
}

// checkAttach checks in the order of the recorded process.
func (p *Process) checkAttach(c *controller, t *path, a args) *Error {
	if held := p.controller(c.name); held != nil {
		return held.checkPath(c, t, a)
	}
	for _, other := range p.controllers {
		if other.hostNQN == c.hostNQN && slices.ContainsFunc(other.paths, func(x *path) bool { return x.trid == t.trid }) {
			return errno(eEXIST)
		}
	}
	if !validTimeouts(c) {
		return errno(eINVAL)
	}
	return p.checkKeys(a)
}

func (held *controller) checkPath(c *controller, t *path, a args) *Error {
	exists := "A controller named " + c.name + " already exists"
	if a.text("multipath") == "disable" {
		return &Error{Code: -eALREADY, Message: exists + " and multipath is disabled"}
	}
	for _, x := range held.paths {
		if x.trid.address() == t.trid.address() {
			return &Error{Code: -eALREADY, Message: exists + " with the specified network path"}
		}
	}
	// [R]
	if held.nqn != c.nqn {
		return &Error{Code: -eINVAL, Message: fmt.Sprintf("%s, but uses a different subnqn (%s)", exists, held.nqn)}
	}
	if a.has("hostnqn") && held.hostNQN != c.hostNQN {
		return &Error{Code: -eINVAL, Message: fmt.Sprintf("%s, but uses a different hostnqn (%s)", exists, held.hostNQN)}
	}
	return nil
}

// validTimeouts: SPDK's rules [R].
func validTimeouts(c *controller) bool {
	switch {
	case c.lossTimeout < -1:
		return false
	case c.lossTimeout == 0:
		return c.delay == 0 && c.fastFail == 0
	case c.delay == 0:
		return false
	case c.lossTimeout > 0 && (c.delay > c.lossTimeout || c.fastFail > c.lossTimeout):
		return false
	}
	return c.fastFail == 0 || c.fastFail >= c.delay
}

// checkKeys requires keys in the keyring; the fork's psk is a file.
func (p *Process) checkKeys(a args) *Error {
	for _, name := range []string{"psk", "dhchap_key", "dhchap_ctrlr_key"} {
		if !a.has(name) {
			continue
		}
		if p.config.Flavour == Fork {
			if _, err := os.Stat(filepath.Join(p.config.Root, a.text(name))); err != nil {
				return errno(eINVAL)
			}
			continue
		}
		if p.key(a.text(name)) == nil {
			return errno(eNOKEY)
		}
	}
	return nil
}

func adrfam(name string) (string, bool) {
	for _, f := range []string{"IPv4", "IPv6", "IB", "FC"} {
		if strings.EqualFold(f, name) {
			return f, true
		}
	}
	return "", name == ""
}

// reachTarget has the delays of the network.
func (p *Process) reachTarget(ctx context.Context, c *controller, t *path) (*subsystem, *Error) {
	n, timing := p.network, p.config.Timing
	if !p.connects(ctx, t.trid.address()) {
		return nil, errno(eIO)
	}
	if n.reach[t.trid.address().key()] == Silent {
		// fabrics_connect_timeout_us does not shorten the wait.
		n.sleep(ctx, orElse(timing.Silent, 10*time.Second))
		return nil, errno(eIO)
	}
	s := n.find(t.trid.address(), c.nqn, c.hostNQN, p.keysOf(c))
	if s == nil {
		n.sleep(ctx, timing.Refuse)
		return nil, errno(eIO)
	}
	n.sleep(ctx, timing.Attach)
	if s = n.find(t.trid.address(), c.nqn, c.hostNQN, p.keysOf(c)); s == nil || ctx.Err() != nil {
		return nil, errno(eIO)
	}
	return s, nil
}

// synTimeout is when Linux aborts a connect after six SYN retransmissions
// (tcp_syn_retries) [R]. The recording ended after 90 s.
const synTimeout = 127 * time.Second

// connects waits while packets are dropped. TCP retransmits the SYN after 1, 3,
// 7, 15, 31 and 63 s, so after an outage a later attach can complete before an
// earlier one. The attempt is one registered wait, whose end moves.
func (p *Process) connects(ctx context.Context, a Address) bool {
	n, began, limit := p.network, p.network.now(), orElse(p.connectLimit, synTimeout)
	next := began
	defer n.until(&next)()
	for syn := time.Duration(0); syn < limit; syn = 2*syn + time.Second {
		next = began.Add(syn)
		if !n.sleepUntil(ctx, next) {
			return false
		}
		if n.reach[a.key()] != Dropped && !next.Before(n.reachSince[a.key()]) {
			return true
		}
	}
	next = began.Add(limit)
	n.sleepUntil(ctx, next)
	return false
}

func (p *Process) connected(c *controller, t *path, s *subsystem, a args) (any, *Error) {
	if held := p.controller(c.name); held != nil {
		c = held
	} else {
		c.serial, c.model = s.serial, s.model
		p.controllers = append(p.controllers, c)
	}
	now := p.network.now()
	p.connect(c, t, s, now)
	c.paths = append(c.paths, t)
	p.follow(c, now)
	names := c.names()
	if most := orElse(int(a.number("max_bdevs")), 128); len(names) > most {
		return nil, errno(eRANGE)
	}
	return names, nil
}

func detachController(p *Process, ctx context.Context, a args) (any, *Error) {
	c := p.controller(a.text("name"))
	if c == nil {
		return nil, errno(eNODEV)
	}
	left := slices.DeleteFunc(slices.Clone(c.paths), func(t *path) bool { return t.matches(a) })
	if len(left) == len(c.paths) {
		return nil, errno(eNXIO)
	}
	p.network.sleep(ctx, p.config.Timing.Detach)
	c.paths = left
	if len(left) == 0 {
		p.detach(c)
	}
	return true, nil
}

func (t *path) matches(a args) bool {
	for name, is := range map[string]string{"traddr": t.trid.Address, "trsvcid": t.trid.Service, "subnqn": t.trid.NQN} {
		if a.has(name) && a.text(name) != is {
			return false
		}
	}
	return (!a.has("trtype") || strings.EqualFold(a.text("trtype"), t.trid.Type)) &&
		(!a.has("adrfam") || strings.EqualFold(a.text("adrfam"), t.trid.Family))
}

func controllers(p *Process, _ context.Context, a args) (any, *Error) {
	shown := []map[string]any{}
	for _, c := range p.controllers {
		if !a.has("name") || c.name == a.text("name") {
			shown = append(shown, c.show(p.network.now(), p.config.Timing.Reset))
		}
	}
	if a.has("name") && len(shown) == 0 {
		return nil, &Error{Code: -eINVAL, Message: "Controller " + a.text("name") + " does not exist"}
	}
	return shown, nil
}

func resetController(p *Process, ctx context.Context, a args) (any, *Error) {
	c := p.controller(a.text("name"))
	if c == nil {
		return nil, errno(eNODEV)
	}
	p.network.sleep(ctx, p.config.Timing.Reset)
	c.failed = false
	now := p.network.now()
	for _, t := range c.paths {
		s := p.network.find(t.trid.address(), c.nqn, c.hostNQN, p.keysOf(c))
		if s == nil {
			t.target, t.lost = nil, now
			return nil, errno(ePERM)
		}
		p.connect(c, t, s, now)
	}
	return true, nil
}

func setOptions(p *Process, _ context.Context, a args) (any, *Error) {
	if len(p.controllers) > 0 {
		return nil, &Error{Code: -1, Message: "RPC not permitted with nvme controllers already attached"}
	}
	p.connectLimit = time.Duration(a.number("tcp_connect_timeout_ms")) * time.Millisecond
	return true, nil
}

// ioPaths has one poll group with a path per bdev and controller [R].
func ioPaths(p *Process, _ context.Context, a args) (any, *Error) {
	shown := []map[string]any{}
	for _, b := range p.bdevs {
		if b.kind != nvmeDisk || a.has("name") && b.name != a.text("name") {
			continue
		}
		for i, t := range b.controller.paths {
			up := t.target != nil
			shown = append(shown, map[string]any{
				"bdev_name": b.name, "cntlid": t.cntlid, "current": i == 0, "connected": up, "accessible": up,
				"transport": map[string]any{"trtype": t.trid.Type, "traddr": t.trid.Address, "trsvcid": t.trid.Service, "adrfam": t.trid.Family},
			})
		}
	}
	return map[string]any{"poll_groups": []map[string]any{{"thread": "app_thread", "io_paths": shown}}}, nil
}

package spdktest

import (
	"context"
	"encoding/json"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

const discoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

func targetMethods() map[string]method {
	nqn := needs(map[string]kind{"nqn": text, "tgt_name": text}, "nqn")
	host := nqn.and(map[string]kind{"host": text})
	host.need = []string{"nqn", "host"}
	listener := nqn.and(map[string]kind{"listen_address": object, "secure_channel": flag, "ana_state": text, "sock_impl": text})
	listener.need = []string{"nqn", "listen_address"}
	ns := nqn.and(map[string]kind{"namespace": object})
	ns.need = []string{"nqn", "namespace"}
	any := nqn.and(map[string]kind{"allow_any_host": flag})
	any.need = []string{"nqn", "allow_any_host"}
	remove := nqn.and(map[string]kind{"nsid": number})
	remove.need = []string{"nqn", "nsid"}
	return map[string]method{
		"nvmf_create_transport": {run: createTransport, takes: needs(map[string]kind{
			"trtype": text, "max_queue_depth": number, "max_io_qpairs_per_ctrlr": number, "in_capsule_data_size": number,
			"max_io_size": number, "io_unit_size": number, "max_aq_depth": number, "num_shared_buffers": number,
			"buf_cache_size": number, "dif_insert_or_strip": flag, "zcopy": flag, "c2h_success": flag, "sock_priority": number,
			"abort_timeout_sec": number, "ack_timeout": number,
		}, "trtype")},
		"nvmf_get_transports": {run: transports, takes: needs(map[string]kind{"trtype": text, "tgt_name": text})},
		"nvmf_create_subsystem": {run: createSubsystem, takes: nqn.and(map[string]kind{
			"serial_number": text, "model_number": text, "max_namespaces": number, "allow_any_host": flag,
			"ana_reporting": flag, "min_cntlid": number, "max_cntlid": number,
		})},
		"nvmf_delete_subsystem":          {run: deleteSubsystem, takes: nqn},
		"nvmf_get_subsystems":            {run: subsystems, takes: needs(nqn.allowed)},
		"nvmf_subsystem_add_ns":          {run: addNamespace, takes: ns},
		"nvmf_subsystem_remove_ns":       {run: removeNamespace, takes: remove},
		"nvmf_subsystem_add_host":        {run: addHost, takes: host.and(map[string]kind{"psk": text, "dhchap_key": text, "dhchap_ctrlr_key": text})},
		"nvmf_subsystem_remove_host":     {run: removeHost, takes: host.and(map[string]kind{"timeout_ms": number})},
		"nvmf_subsystem_set_keys":        {run: setKeys, takes: host.and(map[string]kind{"dhchap_key": text, "dhchap_ctrlr_key": text})}, // [R]
		"nvmf_subsystem_allow_any_host":  {run: allowAnyHost, takes: any},
		"nvmf_subsystem_add_listener":    {run: addListener, takes: listener},
		"nvmf_subsystem_remove_listener": {run: removeListener, takes: listener},
		"nvmf_subsystem_get_listeners":   {run: listeners, takes: nqn},
		"nvmf_subsystem_get_controllers": {run: controllersOf, takes: nqn},
		"nvmf_subsystem_get_qpairs":      {run: qpairs, takes: nqn},
	}
}

func badParams() *Error { return &Error{Code: invalidParams, Message: "Invalid parameters"} }
func internal() *Error  { return &Error{Code: internalError, Message: "Internal error"} }

func (p *Process) subsystem(a args) (*subsystem, *Error) {
	nqn := a.text("nqn")
	for _, s := range p.network.byNQN[nqn] {
		if s.owner == p {
			return s, nil
		}
	}
	return nil, &Error{Code: invalidParams, Message: "Subsystem with NQN '" + nqn + "' not found"}
}

func createTransport(p *Process, _ context.Context, a args) (any, *Error) {
	name := strings.ToUpper(a.text("trtype"))
	switch {
	case name != "TCP" && name != "RDMA":
		return nil, &Error{Code: invalidParams, Message: "Invalid transport type '" + a.text("trtype") + "'"}
	case slices.Contains(p.transports, name):
		return nil, &Error{Code: internalError, Message: "Transport type '" + a.text("trtype") + "' already exists"}
	}
	p.transports = append(p.transports, name)
	return true, nil
}

func transports(p *Process, _ context.Context, a args) (any, *Error) {
	all := []map[string]any{}
	for _, name := range p.transports {
		all = append(all, map[string]any{
			"trtype": name, "max_queue_depth": 128, "max_io_qpairs_per_ctrlr": 127, "in_capsule_data_size": 4096,
			"max_io_size": 131072, "max_aq_depth": 128, "iobuf_small_cache_size": uint32(1<<32 - 1),
			"iobuf_large_cache_size": uint32(1<<32 - 1), "dif_insert_or_strip": false, "zcopy": false, "c2h_success": true,
			"sock_priority": 0, "abort_timeout_sec": 1, "ack_timeout": 0, "data_wr_pool_size": 0,
			"disable_command_passthru": false, "kas": 100, "min_kato": 10000,
		})
	}
	return all, nil
}

// validNQN: SPDK's rules: a date, a domain, and anything after the colon.
func validNQN(nqn string) bool {
	return len(nqn) <= 223 && regexp.MustCompile(`^nqn\.\d{4}-\d{2}\.[A-Za-z0-9.-]+(:.+)?$`).MatchString(nqn)
}

func createSubsystem(p *Process, _ context.Context, a args) (any, *Error) {
	nqn := a.text("nqn")
	if len(a.text("serial_number")) > 20 || len(a.text("model_number")) > 40 {
		return nil, badParams()
	}
	if _, e := p.subsystem(a); e == nil || !validNQN(nqn) || nqn == discoveryNQN {
		return nil, &Error{Code: internalError, Message: "Unable to create subsystem " + nqn}
	}
	p.network.add(&subsystem{
		nqn: nqn, serial: orElse(a.text("serial_number"), "00000000000000000000"),
		model: orElse(a.text("model_number"), "SPDK bdev Controller"), anyHost: a.flag("allow_any_host"),
		maxNamespaces: uint32(orElse(a.number("max_namespaces"), 32)), owner: p, keys: map[string]hostKeys{}, tls: map[Address]bool{},
	})
	return true, nil
}

func deleteSubsystem(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.subsystem(a)
	if e != nil {
		return nil, e
	}
	for _, n := range s.namespaces {
		n.bdev.claims--
	}
	p.network.drop(s)
	return true, nil
}

func subsystems(p *Process, _ context.Context, a args) (any, *Error) {
	if a.has("nqn") && a.text("nqn") != discoveryNQN {
		s, e := p.subsystem(a)
		if e != nil {
			return nil, e
		}
		return []map[string]any{s.show()}, nil
	}
	all := []map[string]any{{
		"nqn": discoveryNQN, "subtype": "Discovery", "listen_addresses": []any{}, "allow_any_host": true, "hosts": []any{},
	}}
	for _, s := range p.network.subsystems {
		if s.owner == p && !a.has("nqn") {
			all = append(all, s.show())
		}
	}
	return all, nil
}

func (s *subsystem) show() map[string]any {
	addresses := []map[string]string{}
	for _, l := range s.listeners {
		addresses = append(addresses, showAddress(l))
	}
	hosts := []map[string]string{}
	for _, h := range s.hosts {
		hosts = append(hosts, s.keys[h].show(map[string]string{"nqn": h}))
	}
	spaces := []map[string]any{}
	for _, n := range s.namespaces {
		spaces = append(spaces, map[string]any{"nsid": n.id, "bdev_name": n.bdev.name, "name": n.bdev.name, "nguid": n.nguid, "uuid": n.uuid})
	}
	return map[string]any{
		"nqn": s.nqn, "subtype": "NVMe", "listen_addresses": addresses, "allow_any_host": s.anyHost, "hosts": hosts,
		"serial_number": s.serial, "model_number": s.model, "max_namespaces": s.maxNamespaces, "passthrough": false,
		"min_cntlid": 1, "max_cntlid": 65519, "dmrsl": 2097152, "wzsl": 12, "namespaces": spaces,
	}
}

func (k hostKeys) show(into map[string]string) map[string]string {
	if k.key != nil {
		into["dhchap_key"] = k.key.name
		if k.ctrlr != nil {
			into["dhchap_ctrlr_key"] = k.ctrlr.name
		}
	}
	return into
}

func showAddress(a Address) map[string]string {
	family := "IPv4"
	if ip, err := netip.ParseAddr(a.Host); err == nil && ip.Is6() {
		family = "IPv6"
	}
	return map[string]string{"trtype": a.Transport, "adrfam": family, "traddr": a.Host, "trsvcid": a.Port}
}

// addNamespace does not distinguish an nsid or a bdev in use from a missing
// bdev.
func addNamespace(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.subsystem(a)
	if e != nil {
		return nil, e
	}
	ns, ok := decode(a["namespace"], needs(map[string]kind{
		"nsid": number, "bdev_name": text, "ptpl_file": text, "nguid": text, "eui64": text, "uuid": text, "anagrpid": number, "no_auto_visible": flag,
	}, "bdev_name"))
	if !ok {
		return nil, badParams()
	}
	b := p.bdev(ns.text("bdev_name"))
	id := uint32(ns.number("nsid"))
	for next := uint32(1); id == 0; next++ {
		if s.namespace(next) == nil {
			id = next
		}
	}
	if b == nil || b.claims > 0 || s.namespace(id) != nil || id > s.maxNamespaces {
		return nil, badParams()
	}
	n := &namespace{id: id, bdev: b, uuid: orElse(ns.text("uuid"), b.uuid), added: p.network.now()}
	n.nguid = orElse(ns.text("nguid"), strings.ToUpper(strings.ReplaceAll(n.uuid, "-", "")))
	b.claims++
	s.namespaces = append(s.namespaces, n)
	slices.SortFunc(s.namespaces, func(a, b *namespace) int { return int(a.id) - int(b.id) })
	return id, nil
}

func removeNamespace(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.subsystem(a)
	if e != nil {
		return nil, e
	}
	n := s.namespace(uint32(a.number("nsid")))
	if n == nil {
		return nil, badParams()
	}
	n.bdev.claims--
	s.namespaces = slices.DeleteFunc(s.namespaces, func(x *namespace) bool { return x == n })
	return true, nil
}

func addHost(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.subsystem(a)
	if e != nil {
		return nil, e
	}
	host := a.text("host")
	keys, e := p.hostKeys(a)
	if e != nil {
		return nil, e
	}
	if slices.Contains(s.hosts, host) || !validNQN(host) || keys.key == nil && keys.ctrlr != nil || !keys.readPSK(p, a.text("psk")) {
		return nil, internal()
	}
	s.hosts = append(s.hosts, host)
	s.keys[host] = keys
	return true, nil
}

func allowAnyHost(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.subsystem(a)
	if e != nil {
		return nil, e
	}
	s.anyHost = a.flag("allow_any_host")
	return true, nil
}

func addressOf(raw json.RawMessage) (Address, bool) {
	a, ok := decode(raw, needs(map[string]kind{"trtype": text, "adrfam": text, "traddr": text, "trsvcid": text}, "traddr"))
	if !ok {
		return Address{}, false
	}
	return Address{orElse(a.text("trtype"), "TCP"), a.text("traddr"), a.text("trsvcid")}.key(), true
}

// addListener requires the transport, an address of the machine, and a free
// port.
func addListener(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.subsystem(a)
	if e != nil {
		return nil, e
	}
	at, ok := addressOf(a["listen_address"])
	if !ok || !slices.Contains(p.transports, at.Transport) || !p.local(at.Host) || slices.Contains(s.listeners, at) {
		return nil, badParams()
	}
	for _, other := range p.network.subsystems {
		if other.owner != p && slices.Contains(other.listeners, at) {
			return nil, badParams()
		}
	}
	if a.flag("secure_channel") && s.anyHost {
		return nil, &Error{Code: internalError, Message: "Cannot establish secure channel, when 'allow_any_host' is set"}
	}
	if !slices.ContainsFunc(p.network.subsystems, func(s *subsystem) bool { return slices.Contains(s.listeners, at) }) {
		p.network.tls[at] = a.flag("secure_channel") // the socket is that of the first listener
	}
	s.listeners = slices.Insert(s.listeners, 0, at)
	s.tls[at] = a.flag("secure_channel")
	return true, nil
}

func (p *Process) local(host string) bool {
	ip, err := netip.ParseAddr(host)
	return err == nil && (ip.IsLoopback() || slices.Contains(p.config.Addresses, host))
}

func removeListener(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.subsystem(a)
	if e != nil {
		return nil, e
	}
	at, ok := addressOf(a["listen_address"])
	i := slices.Index(s.listeners, at)
	if !ok || i < 0 {
		return nil, badParams()
	}
	s.listeners = slices.Delete(s.listeners, i, i+1)
	return true, nil
}

func listeners(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.subsystem(a)
	if e != nil {
		return nil, e
	}
	all := []map[string]any{}
	for _, l := range s.listeners {
		all = append(all, map[string]any{"address": showAddress(l)})
	}
	return all, nil
}

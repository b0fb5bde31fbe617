package spdktest

import (
	"context"
	"slices"
)

type version struct {
	Version string        `json:"version"`
	Fields  versionFields `json:"fields"`
}

type versionFields struct {
	Major  int    `json:"major"`
	Minor  int    `json:"minor"`
	Patch  int    `json:"patch"`
	Suffix string `json:"suffix"`
}

func frameworkMethods() map[string]method {
	none := func(name string) *Error {
		return &Error{Code: invalidParams, Message: name + " requires no parameters"}
	}
	return map[string]method{
		"spdk_get_version": {run: getVersion, when: always, bad: none("spdk_get_version method")},
		"rpc_get_methods": {run: getMethods, when: always, takes: needs(map[string]kind{
			"current": flag, "include_aliases": flag,
		})},
		"framework_start_init": {run: startInit, when: startup, bad: none("'framework_start_init'")},
		"framework_wait_init":  {run: waitInit, when: always, bad: none("framework_wait_init")},
		"framework_get_config": {run: getConfig, bad: &Error{Code: invalidParams, Message: "Invalid arguments"}, takes: needs(map[string]kind{
			"name": text, "with_batches": flag,
		}, "name")},
		"bdev_wait_for_examine": {run: waitExamine, bad: none("bdev_wait_for_examine")},
		"bdev_set_options": {run: done, when: startup, takes: needs(map[string]kind{
			"bdev_io_pool_size": number, "bdev_io_cache_size": number, "bdev_auto_examine": flag,
			"iobuf_small_cache_size": number, "iobuf_large_cache_size": number,
		})},
	}
}

func done(*Process, context.Context, args) (any, *Error) { return true, nil }

func getVersion(p *Process, _ context.Context, _ args) (any, *Error) {
	if p.config.Flavour == Fork {
		return version{"SPDK v24.01", versionFields{24, 1, 0, ""}}, nil
	}
	return version{"SPDK v26.09-pre", versionFields{26, 9, 0, "-pre"}}, nil
}

func getMethods(p *Process, _ context.Context, a args) (any, *Error) {
	names := []string{}
	for _, name := range p.listed {
		if !a.flag("current") || p.phase(p.methods[name]) == nil {
			names = append(names, name)
		}
	}
	return names, nil
}

// getConfig has the calls that make the hosts and listeners of a target, of those of
// SPDK's configuration.
func getConfig(p *Process, _ context.Context, a args) (any, *Error) {
	if a.text("name") != "nvmf" {
		return nil, &Error{Code: invalidParams, Message: "Subsystem '" + a.text("name") + "' not found"}
	}
	hosts, listeners := []map[string]any{}, []map[string]any{}
	for _, s := range p.network.subsystems {
		if s.owner != p {
			continue
		}
		for _, h := range s.hosts {
			params := s.keys[h].show(map[string]string{"nqn": s.nqn, "host": h})
			if k := s.keys[h].psk; k != nil {
				params["psk"] = k.name
			}
			hosts = append(hosts, map[string]any{"method": "nvmf_subsystem_add_host", "params": params})
		}
		for _, l := range s.listeners {
			listeners = append(listeners, map[string]any{"method": "nvmf_subsystem_add_listener", "params": map[string]any{
				"nqn": s.nqn, "listen_address": showAddress(l), "secure_channel": s.tls[l],
			}})
		}
	}
	return append(hosts, listeners...), nil
}

func startInit(p *Process, _ context.Context, _ args) (any, *Error) {
	p.initialised = true
	return true, nil
}

func waitExamine(p *Process, ctx context.Context, _ args) (any, *Error) {
	for slices.ContainsFunc(p.lvstores, func(s *lvstore) bool { return s.loading }) {
		if !p.network.wait(ctx, forEver) {
			break
		}
	}
	return true, nil
}

func waitInit(p *Process, ctx context.Context, _ args) (any, *Error) {
	for !p.initialised {
		if !p.network.wait(ctx, forEver) {
			break
		}
	}
	return true, nil
}

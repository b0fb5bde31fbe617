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
		"framework_start_init":  {run: startInit, when: startup, bad: none("'framework_start_init'")},
		"framework_wait_init":   {run: waitInit, when: always, bad: none("framework_wait_init")},
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

package spdktest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
)

type fsdev struct {
	name, root string
}

func fsdevMethods() map[string]method {
	create := map[string]kind{
		"name": text, "root_path": text, "enable_xattr": flag, "enable_writeback_cache": flag, "max_write": number, "skip_rw": flag,
	}
	name := map[string]kind{"name": text}
	return map[string]method{
		"fsdev_aio_create": {run: fsdevCreate, takes: needs(create, "name", "root_path")},
		"fsdev_aio_delete": {run: fsdevDelete, takes: needs(name, "name")},
		"fsdev_get_fsdevs": {run: fsdevs, takes: needs(name)},
	}
}

func (p *Process) fsdev(name string) int {
	return slices.IndexFunc(p.fsdevs, func(f fsdev) bool { return f.name == name })
}

// fsdevCreate also accepts a file as root, like the recorded process.
func fsdevCreate(p *Process, _ context.Context, a args) (any, *Error) {
	f := fsdev{a.text("name"), a.text("root_path")}
	if p.fsdev(f.name) >= 0 {
		return nil, textError(internalError, eEXIST)
	}
	if _, err := os.Stat(filepath.Join(p.config.Root, f.root)); err != nil {
		return nil, textError(internalError, eNOENT)
	}
	p.fsdevs = append(p.fsdevs, f)
	return f.name, nil
}

func fsdevDelete(p *Process, _ context.Context, a args) (any, *Error) {
	i := p.fsdev(a.text("name"))
	if i < 0 {
		return nil, errno(eNODEV)
	}
	p.fsdevs = slices.Delete(p.fsdevs, i, i+1)
	return true, nil
}

// fsdevs is a method of the fork: a list, or one object for a name [R].
func fsdevs(p *Process, _ context.Context, a args) (any, *Error) {
	all := []map[string]any{}
	for _, f := range p.fsdevs {
		all = append(all, map[string]any{"name": f.name, "module_name": "aio", "claimed": p.virtioFS.holds(f.name),
			"module_specific": map[string]any{"root_path": f.root},
		})
	}
	if !a.has("name") {
		return all, nil
	}
	i := p.fsdev(a.text("name"))
	if i < 0 {
		return nil, errno(eNODEV)
	}
	return all[i], nil
}

package spdktest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
)

// key has a path; the double never reads key files.
type key struct {
	name, path string
}

// [R]
func keyringMethods() map[string]method {
	bad := textError(invalidParams, eINVAL)
	return map[string]method{
		"keyring_file_add_key":    {run: addKey, bad: bad, takes: needs(map[string]kind{"name": text, "path": text}, "name", "path")},
		"keyring_file_remove_key": {run: removeKey, bad: bad, takes: needs(map[string]kind{"name": text}, "name")},
		"keyring_get_keys":        {run: showKeys},
	}
}

func addKey(p *Process, _ context.Context, a args) (any, *Error) {
	k := key{a.text("name"), a.text("path")}
	if !filepath.IsAbs(k.path) {
		return nil, errno(ePERM)
	}
	fi, err := os.Stat(filepath.Join(p.config.Root, k.path))
	switch {
	case err != nil:
		return nil, errno(eNOENT)
	case fi.Mode().Perm()&0o077 != 0:
		return nil, errno(ePERM)
	case slices.ContainsFunc(p.keys, func(x key) bool { return x.name == k.name }):
		return nil, errno(eEXIST)
	}
	p.keys = append(p.keys, k)
	return true, nil
}

func removeKey(p *Process, _ context.Context, a args) (any, *Error) {
	before := len(p.keys)
	p.keys = slices.DeleteFunc(p.keys, func(k key) bool { return k.name == a.text("name") })
	if len(p.keys) == before {
		return nil, errno(eNOENT)
	}
	return true, nil
}

func showKeys(p *Process, _ context.Context, _ args) (any, *Error) {
	all := []map[string]any{}
	for _, k := range p.keys {
		all = append(all, map[string]any{"name": k.name, "module": "keyring_file", "removed": false, "probed": false, "refcnt": 1, "path": k.path})
	}
	return all, nil
}

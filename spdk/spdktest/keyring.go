package spdktest

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// key is an entry of the keyring, a file that is read at each use. A removed one
// stays while hosts refer to it, and authenticates none of them.
type key struct {
	name, path string
	removed    bool
}

// hostKeys are those with which a subsystem authenticates a host; nil: none. psk has
// been read when the host was added.
type hostKeys struct {
	key, ctrlr, psk *key
	secret          string // of psk
}

// [R] SPDK 26.09: lib/keyring/keyring.c, module/keyring/file/keyring.c
func keyringMethods() map[string]method {
	bad := textError(invalidParams, eINVAL)
	return map[string]method{
		"keyring_file_add_key":    {run: addKey, bad: bad, takes: needs(map[string]kind{"name": text, "path": text}, "name", "path")},
		"keyring_file_remove_key": {run: removeKey, bad: bad, takes: needs(map[string]kind{"name": text}, "name")},
		"keyring_get_keys":        {run: showKeys},
	}
}

func addKey(p *Process, _ context.Context, a args) (any, *Error) {
	k := &key{name: a.text("name"), path: a.text("path")}
	switch {
	case strings.Index(k.name, ":") > 0: // the name of a keyring
		return nil, errno(eINVAL)
	case p.key(k.name) != nil:
		return nil, errno(eEXIST)
	case !filepath.IsAbs(k.path):
		return nil, errno(ePERM)
	}
	fi, err := os.Stat(filepath.Join(p.config.Root, k.path))
	switch {
	case err != nil:
		return nil, errno(eNOENT)
	case fi.Mode().Perm()&0o077 != 0:
		return nil, errno(ePERM)
	}
	p.keys = append(p.keys, k)
	return true, nil
}

// key returns an entry that is not removed, or nil.
func (p *Process) key(name string) *key {
	i := slices.IndexFunc(p.keys, func(k *key) bool { return !k.removed && k.name == strings.TrimPrefix(name, ":") })
	if i < 0 {
		return nil
	}
	return p.keys[i]
}

func removeKey(p *Process, _ context.Context, a args) (any, *Error) {
	k := p.key(a.text("name"))
	if k == nil {
		return nil, errno(eNOKEY)
	}
	k.removed = true
	return true, nil
}

func showKeys(p *Process, _ context.Context, _ args) (any, *Error) {
	all := []map[string]any{}
	for _, removed := range []bool{false, true} {
		for _, k := range p.keys {
			refs := p.references(k)
			if k.removed != removed || removed && refs == 0 {
				continue
			}
			shown := map[string]any{"name": k.name, "module": "keyring_file", "removed": removed, "probed": false, "refcnt": refs}
			if !removed {
				shown["refcnt"], shown["path"] = refs+1, k.path
			}
			all = append(all, shown)
		}
	}
	return all, nil
}

func (p *Process) references(k *key) (count int) {
	for _, s := range p.network.subsystems {
		for _, h := range s.keys {
			if s.owner == p && h.key == k {
				count++
			}
			if s.owner == p && h.ctrlr == k {
				count++
			}
			if s.owner == p && h.psk == k {
				count++
			}
		}
	}
	return count
}

// hostKeys returns the entries that a request names. SPDK has one text for a
// missing entry and for bad parameters.
func (p *Process) hostKeys(a args) (h hostKeys, e *Error) {
	for name, into := range map[string]**key{"dhchap_key": &h.key, "dhchap_ctrlr_key": &h.ctrlr} {
		if a.has(name) {
			if *into = p.key(a.text(name)); *into == nil {
				return h, badParams()
			}
		}
	}
	return h, nil
}

// setKeys of no key lets the host connect without authentication. Sessions stay.
func setKeys(p *Process, _ context.Context, a args) (any, *Error) {
	s, e := p.subsystem(a)
	if e != nil {
		return nil, e
	}
	keys, e := p.hostKeys(a)
	if e != nil {
		return nil, e
	}
	if !slices.Contains(s.hosts, a.text("host")) || keys.key == nil && keys.ctrlr != nil {
		return nil, errno(eINVAL)
	}
	had := s.keys[a.text("host")]
	keys.psk, keys.secret = had.psk, had.secret
	s.keys[a.text("host")] = keys
	return true, nil
}

// authenticates reports whether a host that has a key can connect.
func (s *subsystem) authenticates(host, secret string) bool {
	k := s.keys[host].key
	if k == nil {
		return true
	}
	content, err := k.read(s.owner)
	return err == nil && !k.removed && strings.TrimSpace(content) == secret
}

func (k *key) read(p *Process) (string, error) {
	content, err := os.ReadFile(filepath.Join(p.config.Root, k.path))
	return string(content), err
}

// readPSK sets the TLS key of a host, which SPDK gives to the transports that exist.
func (h *hostKeys) readPSK(p *Process, name string) (ok bool) {
	if name == "" || !slices.Contains(p.transports, "TCP") {
		return true
	}
	k := p.key(name)
	if k == nil {
		return false
	}
	secret, err := k.read(p)
	if err != nil || !strings.HasPrefix(secret, "NVMeTLSkey-1:") || !strings.HasSuffix(secret, ":") {
		return false
	}
	h.psk, h.secret = k, secret
	return true
}

// keysOf returns the keys of a controller; that of TLS is read at each connect. The
// fork's is not in the keyring.
func (p *Process) keysOf(c *controller) (keys Keys) {
	if k := p.key(c.psk); k != nil {
		keys.TLS, _ = k.read(p)
	}
	return keys
}

// encrypts reports whether a host gets through the handshake of a socket. SPDK does
// not compare the host of the key with the one that connects.
func (n *Network) encrypts(a Address, s *subsystem, host, secret string) bool {
	if s.owner == nil { // has no keys
		return true
	}
	if !n.tls[a.key()] {
		return secret == ""
	}
	return secret != "" && s.keys[host].secret == secret
}

package hostfs

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxConf limits a ceph.conf or a keyring, in bytes.
const maxConf = 1 << 20

// Default ports of Ceph monitors for the protocols msgr1 and msgr2.
const (
	portV1, portV2 = 6789, 3300
)

type monitor struct {
	addr netip.AddrPort
	v2   bool
}

// monitorOf determines the protocol by the port, as Ceph does. Port 0 means the
// default port.
func monitorOf(a netip.AddrPort) monitor {
	if a.Port() == 0 {
		a = netip.AddrPortFrom(a.Addr(), portV1)
	}
	return monitor{a, a.Port() == portV2}
}

func readMonitors(dir, cluster string) ([]monitor, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	text, err := readBounded(root, cluster+".conf")
	if err != nil {
		return nil, err
	}
	all, err := parseConf(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, cluster+".conf"), err)
	}
	return all, nil
}

// parseConf reads mon_host in section [global]; the last one applies.
func parseConf(text string) ([]monitor, error) {
	section, value, found := "", "", false
	for _, line := range confLines(text) {
		if name, ok := strings.CutPrefix(line, "["); ok {
			section, _, _ = strings.Cut(name, "]")
			section = strings.TrimSpace(section)
			continue
		}
		key, v, ok := strings.Cut(line, "=")
		if ok && section == "global" && canonicalKey(key) == "mon_host" {
			value, found = unquote(strings.TrimSpace(v)), true
		}
	}
	if !found {
		return nil, fmt.Errorf("no mon_host in section [global]")
	}
	all, err := parseMonHost(value)
	if err != nil {
		return nil, fmt.Errorf("mon_host: %w", err)
	}
	return all, nil
}

// confLines removes comments and empty lines, and joins lines that end in a
// backslash.
func confLines(text string) (lines []string) {
	text = strings.ReplaceAll(text, "\r\n", "\n")
	text = strings.ReplaceAll(text, "\\\n", " ")
	for line := range strings.Lines(text) {
		if i := strings.IndexAny(line, "#;"); i >= 0 {
			line = line[:i]
		}
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}

// canonicalKey replaces blanks and dashes with underscores, which are
// equivalent.
func canonicalKey(key string) string {
	words := strings.FieldsFunc(strings.ToLower(key), func(r rune) bool { return strings.ContainsRune(" \t_-", r) })
	return strings.Join(words, "_")
}

func unquote(s string) string {
	if len(s) > 1 && (s[0] == '"' || s[0] == '\'') && s[len(s)-1] == s[0] {
		return s[1 : len(s)-1]
	}
	return s
}

// parseMonHost parses monitors separated by blanks, commas or semicolons:
// 192.0.2.1, 192.0.2.1:6789, [2001:db8::1]:3300, v2:192.0.2.1:3300/0, and
// vectors, such as [v2:192.0.2.1:3300/0,v1:192.0.2.1:6789/0]. Host names are
// refused: the kernel accepts addresses only.
func parseMonHost(s string) ([]monitor, error) {
	var all []monitor
	for _, word := range strings.FieldsFunc(strings.NewReplacer("[v", " v", ",", " ", ";", " ").Replace(s), isBlank) {
		// The bracket after the last address closes a vector; a bracket of an
		// IPv6 address precedes the port.
		if strings.HasPrefix(word, "v") && strings.HasSuffix(word, "]") && strings.Count(word, "]") > strings.Count(word, "[") {
			word = strings.TrimSuffix(word, "]")
		}
		found, err := parseMonitor(word)
		if err != nil {
			return nil, err
		}
		for _, m := range found {
			if !slices.Contains(all, m) {
				all = append(all, m)
			}
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("no monitors")
	}
	return all, nil
}

func isBlank(r rune) bool { return r == ' ' || r == '\t' }

// parseMonitor returns two monitors for an address without port and protocol.
func parseMonitor(word string) ([]monitor, error) {
	bad := fmt.Errorf("invalid monitor address %.128q: use an address such as 192.0.2.1:6789 or v2:192.0.2.1:3300", word)
	kind, rest := "", word
	for _, k := range []string{"v1:", "v2:", "any:"} {
		if after, ok := strings.CutPrefix(word, k); ok {
			kind, rest = k, after
		}
	}
	if i := strings.LastIndexByte(rest, '/'); i >= 0 { // the nonce, 0 for a monitor
		if _, err := strconv.ParseUint(rest[i+1:], 10, 32); err != nil {
			return nil, bad
		}
		rest = rest[:i]
	}
	at, err := netip.ParseAddrPort(rest)
	if err != nil {
		addr, err := netip.ParseAddr(unbracket(rest))
		if err != nil {
			return nil, bad
		}
		at = netip.AddrPortFrom(addr, 0)
	}
	at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
	if a := at.Addr(); a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
		return nil, bad
	}
	withPort := func(usual uint16) netip.AddrPort {
		if at.Port() == 0 {
			return netip.AddrPortFrom(at.Addr(), usual)
		}
		return at
	}
	switch {
	case kind == "v1:":
		return []monitor{{withPort(portV1), false}}, nil
	case kind == "v2:":
		return []monitor{{withPort(portV2), true}}, nil
	case at.Port() == 0:
		return []monitor{{withPort(portV2), true}, {withPort(portV1), false}}, nil
	}
	return []monitor{monitorOf(at)}, nil
}

func unbracket(s string) string {
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		return s[1 : len(s)-1]
	}
	return s
}

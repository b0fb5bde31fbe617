package access

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// defaultPort is the IANA port of NVMe over Fabrics.
const defaultPort = 4420

type connection struct {
	IP   string `json:"ip"`
	Port port   `json:"port"`
}

// port accepts a JSON number or string.
type port uint16

func (p *port) UnmarshalJSON(b []byte) error {
	n, err := parsePort(strings.Trim(string(b), `"`))
	*p = port(n)
	return err
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("port %s is not a number from 1 to 65535", Quote(s))
	}
	return uint16(n), nil
}

// parseAddr parses an address with or without brackets. Host names are
// rejected: neither initiator resolves them.
func parseAddr(s string) (netip.Addr, error) {
	bare := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		bare = s[1 : len(s)-1]
	}
	a, err := netip.ParseAddr(bare)
	a = a.Unmap()
	if err != nil || a.Zone() != "" || a.IsUnspecified() || a.IsMulticast() {
		return netip.Addr{}, fmt.Errorf("%s is not a unicast IP address without zone", Quote(s))
	}
	return a, nil
}

// parseEndpoint parses an address with an optional port; 0 means no port.
func parseEndpoint(s string) (netip.AddrPort, error) {
	s = strings.TrimSpace(s)
	if a, err := parseAddr(s); err == nil {
		return netip.AddrPortFrom(a, 0), nil
	}
	i := strings.LastIndexByte(s, ':')
	if i < 0 || strings.Contains(s[:i], ":") && !strings.HasPrefix(s, "[") {
		_, err := parseAddr(s)
		return netip.AddrPort{}, err
	}
	a, err := parseAddr(s[:i])
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := parsePort(s[i+1:])
	return netip.AddrPortFrom(a, n), err
}

// parseEndpoints removes duplicates.
func parseEndpoints(key, list string) ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for s := range strings.SplitSeq(list, ",") {
		e, err := parseEndpoint(s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		if !slices.Contains(all, e) {
			all = append(all, e)
		}
	}
	return all, nil
}

// paths returns the paths to a subsystem: targetAddr with targetPort, and
// connections. If both are set, connections must contain the first.
func (f fields) paths() ([]netip.AddrPort, error) {
	single, err := f.targets()
	if err != nil {
		return nil, err
	}
	if f[keyConnections] == "" {
		if len(single) == 0 {
			return nil, fmt.Errorf("%s is missing: give the IP address of the target, or a list of addresses in %s", keyAddr, keyConnections)
		}
		return single, nil
	}
	listed, err := parseConnections(f[keyConnections])
	if err != nil {
		return nil, err
	}
	for _, p := range single {
		if !slices.Contains(listed, p) {
			return nil, fmt.Errorf("%s %s and %s %v contradict each other: the address is not in the list", keyAddr, p, keyConnections, listed)
		}
	}
	return listed, nil
}

func (f fields) targets() ([]netip.AddrPort, error) {
	common := uint16(0)
	if f[keyPort] != "" {
		var err error
		if common, err = parsePort(f[keyPort]); err != nil {
			return nil, fmt.Errorf("%s: %w", keyPort, err)
		}
	}
	if f[keyAddr] == "" {
		return nil, nil
	}
	found, err := parseEndpoints(keyAddr, f[keyAddr])
	if err != nil {
		return nil, err
	}
	var all []netip.AddrPort
	for _, p := range found {
		switch {
		case p.Port() == 0 && common == 0:
			p = netip.AddrPortFrom(p.Addr(), defaultPort)
		case p.Port() == 0:
			p = netip.AddrPortFrom(p.Addr(), common)
		case len(found) == 1 && common != 0 && common != p.Port():
			return nil, fmt.Errorf("%s %s and %s %d contradict each other; give one port", keyAddr, p, keyPort, common)
		}
		if !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all, nil
}

func parseConnections(list string) ([]netip.AddrPort, error) {
	var entries []connection
	if err := json.Unmarshal([]byte(list), &entries); err != nil || len(entries) == 0 {
		return nil, fmt.Errorf(`%s is not a JSON list of paths; an example is [{"ip":"192.0.2.1","port":4420}]`, keyConnections)
	}
	var all []netip.AddrPort
	for _, e := range entries {
		a, err := parseAddr(e.IP)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", keyConnections, err)
		}
		if e.Port == 0 {
			e.Port = defaultPort
		}
		if p := netip.AddrPortFrom(a, uint16(e.Port)); !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all, nil
}

// encodePaths writes the first path in the keys that every reader knows, and
// the whole list if there are more.
func encodePaths(out map[string]string, paths []netip.AddrPort) {
	if len(paths) == 0 {
		return
	}
	out[keyAddr], out[keyPort] = paths[0].Addr().String(), strconv.Itoa(int(paths[0].Port()))
	if len(paths) == 1 {
		return
	}
	var b strings.Builder
	for i, p := range paths {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `{"ip":%q,"port":%d}`, p.Addr(), p.Port())
	}
	out[keyConnections] = "[" + b.String() + "]"
}

package plan

import (
	"crypto/sha256"
	"fmt"
	"net"
	"strings"
)

// none reports whether an address or a GUID is one that nobody set.
func none(address string) bool { return strings.Trim(address, "0:") == "" }

// macFor is the administrative address that a function shall have: the one
// that it has, or one made from the PF's. False: neither is known.
func macFor(pf PF, v VF) (string, bool) {
	if mac, err := net.ParseMAC(v.MAC); err == nil && len(mac) == 6 && !none(v.MAC) && mac[0]&1 == 0 {
		return mac.String(), true
	}
	mac, err := net.ParseMAC(pf.MAC)
	if err != nil || len(mac) != 6 {
		return "", false
	}
	return derived(mac, v.Index, 6), true
}

// guidFor is the GUID that a function shall have: the one that its node or its
// port has, or one made from the PF's. False: none is known. The operator takes
// random ones; these are the same after each restart.
func guidFor(pf PF, v VF) (string, bool) {
	for _, guid := range []string{v.NodeGUID, v.PortGUID} {
		if g, err := net.ParseMAC(guid); err == nil && len(g) == 8 && !none(guid) {
			return g.String(), true
		}
	}
	// The address of an InfiniBand link ends in the GUID of its port; what is
	// before that changes with each restart.
	link, err := net.ParseMAC(pf.MAC)
	if err != nil || len(link) != 20 {
		return "", false
	}
	return derived(link[12:], v.Index, 8), true
}

// derived makes a unicast address of local administration, always the same
// from the same.
func derived(pf net.HardwareAddr, index, size int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", pf, index))
	address := net.HardwareAddr(sum[:size])
	address[0] = address[0]&^1 | 2
	return address.String()
}

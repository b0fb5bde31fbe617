package plan

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"strings"
)

func isUnset(address string) bool { return strings.Trim(address, "0:") == "" }

// macFor returns the function's administrative address: that of its network
// device, or one derived from the PF's.
func macFor(pf PF, v VF) (string, bool) {
	if mac, err := net.ParseMAC(v.MAC); err == nil && len(mac) == 6 && !isUnset(v.MAC) && mac[0]&1 == 0 {
		return mac.String(), true
	}
	mac, err := net.ParseMAC(pf.MAC)
	if err != nil || len(mac) != 6 {
		return "", false
	}
	return derived(mac, v.Index, 6), true
}

// guidFor returns the function's node or port GUID, or one derived from the
// PF's. Unlike the operator's random GUIDs, derived ones survive restarts.
func guidFor(pf PF, v VF) (string, bool) {
	for _, guid := range []string{v.NodeGUID, v.PortGUID} {
		if g, err := net.ParseMAC(guid); err == nil && len(g) == 8 && !isUnset(guid) {
			return g.String(), true
		}
	}
	// The last 8 bytes of an InfiniBand address are the port GUID; the rest
	// changes with each restart.
	link, err := net.ParseMAC(pf.MAC)
	if err != nil || len(link) != 20 {
		return "", false
	}
	return derived(link[12:], v.Index, 8), true
}

// derived returns a stable, locally administered unicast address.
func derived(pf net.HardwareAddr, index, size int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d", pf, index))
	address := net.HardwareAddr(sum[:size])
	address[0] = address[0]&^1 | 2
	return address.String()
}

// GUIDPool has the GUIDs of an InfiniBand PF's functions.
type GUIDPool struct {
	PF          string   // PCI or hardware address
	List        []string // empty: First to Last
	First, Last uint64
}

// ParseGUIDs reads the operator's file of static GUIDs: objects with pciAddress
// or pfGuid, and guids or rangeStart and rangeEnd.
func ParseGUIDs(text []byte) ([]GUIDPool, error) {
	var all []struct {
		PCIAddress string   `json:"pciAddress"`
		PFGUID     string   `json:"pfGuid"`
		GUIDs      []string `json:"guids"`
		RangeStart string   `json:"rangeStart"`
		RangeEnd   string   `json:"rangeEnd"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("the GUID file is not a JSON list of pools: %w", err)
	}
	var pools []GUIDPool
	for n, e := range all {
		p := GUIDPool{PF: e.PCIAddress + e.PFGUID}
		switch ranged := e.RangeStart != "" && e.RangeEnd != ""; {
		case (e.PCIAddress == "") == (e.PFGUID == ""):
			return nil, fmt.Errorf("entry %d of the GUID file: set exactly one of pciAddress and pfGuid", n)
		case ranged == (len(e.GUIDs) > 0) || !ranged && e.RangeStart+e.RangeEnd != "":
			return nil, fmt.Errorf("entry %d of the GUID file, for %s: set either guids, or rangeStart and rangeEnd", n, p.PF)
		case ranged:
			e.GUIDs = []string{e.RangeStart, e.RangeEnd}
		}
		var numbers []uint64
		for _, text := range e.GUIDs {
			guid, err := net.ParseMAC(text)
			if err != nil || len(guid) != 8 {
				return nil, fmt.Errorf("entry %d of the GUID file, for %s: %q is not a GUID, want eight bytes such as 00:11:22:33:44:55:66:77", n, p.PF, text)
			}
			p.List, numbers = append(p.List, guid.String()), append(numbers, binary.BigEndian.Uint64(guid))
		}
		if e.RangeStart != "" {
			p.List, p.First, p.Last = nil, numbers[0], numbers[1]
			if p.Last < p.First {
				return nil, fmt.Errorf("entry %d of the GUID file, for %s: rangeEnd %s is lower than rangeStart %s", n, p.PF, e.RangeEnd, e.RangeStart)
			}
		}
		pools = append(pools, p)
	}
	return pools, nil
}

func (g GUIDPool) count() int {
	if len(g.List) > 0 {
		return len(g.List)
	}
	return int(min(g.Last-g.First, math.MaxInt32-1)) + 1
}

// index must be below count.
func (g GUIDPool) at(index int) string {
	if len(g.List) > 0 {
		return g.List[index]
	}
	return net.HardwareAddr(binary.BigEndian.AppendUint64(nil, g.First+uint64(index))).String()
}

func (p *planner) guidPool(pf PF) *GUIDPool {
	for _, pool := range p.options.GUIDs {
		if pool.PF == pf.Address || pf.MAC != "" && strings.EqualFold(pool.PF, pf.MAC) {
			return &pool
		}
	}
	return nil
}

// staticGUID is "" if none is specified.
func (f *functions) staticGUID(v VF) string {
	if pool := f.guidPool(f.pf); pool != nil && v.Index < pool.count() {
		return pool.at(v.Index)
	}
	return ""
}

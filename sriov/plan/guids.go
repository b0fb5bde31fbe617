package plan

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"net"
	"strings"
)

// GUIDPool is the GUIDs that the functions of one InfiniBand PF get, by index.
type GUIDPool struct {
	PF          string   // its PCI address, or the hardware address of its link
	List        []string // empty: those from First to Last
	First, Last uint64
}

// ParseGUIDs reads the operator's file of static GUIDs: a list of objects with
// pciAddress or pfGuid, and guids or rangeStart and rangeEnd.
func ParseGUIDs(text []byte) ([]GUIDPool, error) {
	var all []struct {
		PCIAddress string   `json:"pciAddress"`
		PFGUID     string   `json:"pfGuid"`
		GUIDs      []string `json:"guids"`
		RangeStart string   `json:"rangeStart"`
		RangeEnd   string   `json:"rangeEnd"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, fmt.Errorf("the GUID file is no JSON list of pools: %w", err)
	}
	var pools []GUIDPool
	for n, e := range all {
		p := GUIDPool{PF: e.PCIAddress + e.PFGUID}
		switch ranged := e.RangeStart != "" && e.RangeEnd != ""; {
		case (e.PCIAddress == "") == (e.PFGUID == ""):
			return nil, fmt.Errorf("entry %d of the GUID file: want one of pciAddress and pfGuid", n)
		case ranged == (len(e.GUIDs) > 0) || !ranged && e.RangeStart+e.RangeEnd != "":
			return nil, fmt.Errorf("entry %d of the GUID file, for %s: want guids, or rangeStart and rangeEnd", n, p.PF)
		case ranged:
			e.GUIDs = []string{e.RangeStart, e.RangeEnd}
		}
		var numbers []uint64
		for _, text := range e.GUIDs {
			guid, err := net.ParseMAC(text)
			if err != nil || len(guid) != 8 {
				return nil, fmt.Errorf("entry %d of the GUID file, for %s: %q is no GUID, want eight bytes such as 00:11:22:33:44:55:66:77", n, p.PF, text)
			}
			p.List, numbers = append(p.List, guid.String()), append(numbers, binary.BigEndian.Uint64(guid))
		}
		if e.RangeStart != "" {
			p.List, p.First, p.Last = nil, numbers[0], numbers[1]
			if p.Last < p.First {
				return nil, fmt.Errorf("entry %d of the GUID file, for %s: rangeEnd %s is before rangeStart %s", n, p.PF, e.RangeEnd, e.RangeStart)
			}
		}
		pools = append(pools, p)
	}
	return pools, nil
}

// of reports whether the pool is a PF's.
func (g GUIDPool) of(pf PF) bool {
	return g.PF == pf.Address || pf.MAC != "" && strings.EqualFold(g.PF, pf.MAC)
}

// count is how many functions can have a GUID of the pool.
func (g GUIDPool) count() int {
	if len(g.List) > 0 {
		return len(g.List)
	}
	return int(min(g.Last-g.First, math.MaxInt32-1)) + 1
}

// at is the GUID of the function with an index below count.
func (g GUIDPool) at(index int) string {
	if len(g.List) > 0 {
		return g.List[index]
	}
	return net.HardwareAddr(binary.BigEndian.AppendUint64(nil, g.First+uint64(index))).String()
}

// static is the pool of a PF; nil: the file has none.
func (p *planner) static(pf PF) *GUIDPool {
	for n := range p.guids {
		if p.guids[n].of(pf) {
			return &p.guids[n]
		}
	}
	return nil
}

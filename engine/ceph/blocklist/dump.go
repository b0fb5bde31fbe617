package blocklist

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// entry is an entry of the blocklist.
type entry struct {
	block  netip.Prefix
	ranged bool   // in the list of ranges; otherwise block is one address
	nonce  uint32 // of one client instance; 0: of all
}

// String returns the entry as commands of the monitors expect it.
func (e entry) String() string {
	switch {
	case e.ranged:
		return e.block.String()
	case e.nonce == 0:
		return e.block.Addr().String()
	}
	return fmt.Sprintf("%s/%d", netip.AddrPortFrom(e.block.Addr(), 0), e.nonce)
}

func addressEntry(a netip.Addr) entry { return entry{block: netip.PrefixFrom(a, a.BitLen())} }

// osdMap is the part of the OSD map that fencing needs.
type osdMap struct {
	epoch     uint64
	up        []int    // OSDs
	pgs       []string // placement groups to which clients of volumes write
	hasRanges bool     // the release can block ranges
	until     map[entry]time.Time
}

// parseMap parses the output of `osd dump`. It ignores entries that it cannot
// parse: those of this package it can.
func parseMap(data []byte) (osdMap, error) {
	var dump struct {
		Epoch uint64 `json:"epoch"`
		OSDs  []struct {
			OSD int `json:"osd"`
			Up  int `json:"up"`
		} `json:"osds"`
		Pools []struct {
			ID           int64                        `json:"pool"`
			PGs          int                          `json:"pg_num"`
			Applications map[string]map[string]string `json:"application_metadata"`
		} `json:"pools"`
		Blocklist map[string]string  `json:"blocklist"`
		Ranges    *map[string]string `json:"range_blocklist"`
	}
	if err := json.Unmarshal(data, &dump); err != nil {
		return osdMap{}, fmt.Errorf("parse the answer to osd dump: %w", err)
	}
	if dump.Epoch == 0 || dump.Blocklist == nil {
		return osdMap{}, fmt.Errorf("the answer to osd dump has no epoch or no blocklist; Ceph 16.2 or newer is required")
	}
	m := osdMap{epoch: dump.Epoch, hasRanges: dump.Ranges != nil, until: map[entry]time.Time{}}
	for _, o := range dump.OSDs {
		if o.Up == 1 {
			m.up = append(m.up, o.OSD)
		}
	}
	for _, p := range dump.Pools {
		if !holdsData(p.Applications) {
			continue
		}
		for n := range p.PGs {
			m.pgs = append(m.pgs, fmt.Sprintf("%d.%x", p.ID, n))
		}
	}
	for address, until := range dump.Blocklist {
		m.add(parseAddressEntry, address, until)
	}
	if m.hasRanges {
		for block, until := range *dump.Ranges {
			m.add(parseRangeEntry, block, until)
		}
	}
	return m, nil
}

// holdsData reports whether a pool with these applications can have data of
// volumes: of RBD, of files, or of no application that is named. Only metadata
// servers write to the metadata pool of a file system.
func holdsData(applications map[string]map[string]string) bool {
	_, isRBD := applications["rbd"]
	fs, isFS := applications["cephfs"]
	_, isMetadata := fs["metadata"]
	_, isData := fs["data"]
	return len(applications) == 0 || isRBD || isFS && (isData || !isMetadata)
}

// Instances parses the output of `osd dump` in JSON. blocked reports whether a
// client instance is on the blocklist itself, and so never returns.
func Instances(dump []byte) (blocked func(Watcher) bool, err error) {
	m, err := parseMap(dump)
	if err != nil {
		return nil, err
	}
	return func(w Watcher) bool {
		e := addressEntry(w.Addr)
		e.nonce = w.Nonce
		_, ok := m.until[e]
		return ok
	}, nil
}

func (m *osdMap) add(parse func(string) (entry, bool), name, until string) {
	e, ok := parse(name)
	at, err := time.Parse("2006-01-02T15:04:05.999999-0700", until)
	if ok && err == nil {
		m.until[e] = at
	}
}

// parseAddressEntry parses 192.0.2.7:0/0 and 192.0.2.7:0/3710147553. Entries
// with a port are of daemons.
func parseAddressEntry(text string) (entry, bool) {
	w, port, err := parseAddress(text)
	if err != nil || port != 0 {
		return entry{}, false
	}
	e := addressEntry(w.Addr)
	e.nonce = w.Nonce
	return e, true
}

// parseRangeEntry parses cidr:192.0.2.0:0/24 and cidr:[2001:db8::]:0/32. Ceph
// does not mask the address.
func parseRangeEntry(text string) (entry, bool) {
	w, port, err := parseAddress(strings.TrimPrefix(text, "cidr:"))
	if err != nil || port != 0 || w.Nonce > uint32(w.Addr.BitLen()) {
		return entry{}, false
	}
	return entry{block: netip.PrefixFrom(w.Addr, int(w.Nonce)), ranged: true}, true
}

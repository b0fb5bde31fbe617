package spdk

import (
	"net/netip"
	"time"
)

// returnTime is more than a host that lives needs to connect again: nvme-cli, cleat and
// SNAP try every 2 to 10 s, and the kernel ends an attempt after 60 s.
const returnTime = 2 * time.Minute

// hostAt is a host of an export.
type hostAt struct{ nqn, host string }

// absence has the first and the last of successive comparisons that found an export as
// recorded, and a host of it not connected. A target that has restarted lists no host
// until it has connected again, and not every restart shows: so only a host that was
// absent for returnTime counts as gone.
type absence struct{ since, last time.Time }

// addAbsent adds the hosts of an export without a session to next. A missing export
// was made again by this comparison: before that no host could connect.
func (t *target) addAbsent(next map[hostAt]absence, nqn string, hosts []string, connected map[string][]netip.Addr, wasMissing bool) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, host := range hosts {
		at := hostAt{nqn, host}
		before, found := t.absent[at]
		if _, isConnected := connected[host]; isConnected {
			continue
		}
		if !found || wasMissing {
			before.since = now
		}
		next[at] = absence{before.since, now}
	}
}

func (t *target) setAbsent(all map[hostAt]absence) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.absent = all
}

// gone returns the hosts that were absent for a time.
func (t *target) gone(atLeast time.Duration) map[hostAt]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[hostAt]bool{}
	for at, a := range t.absent {
		all[at] = a.last.Sub(a.since) >= atLeast
	}
	return all
}

package sysfstest

import (
	"os"
	"slices"
	"strings"
)

// Fault is a failure of a write or a Network request, before it has an effect.
type Fault struct {
	// On is the end of a write's path and value, such as
	// "0000:3b:00.0/sriov_numvfs 4", or of a fault key (see Network).
	On  string
	Err error
	// 0 is unlimited.
	Times int
	// Until blocks the call until it is closed, like a hanging driver.
	Until <-chan struct{}
	// OnHit is called before the call blocks.
	OnHit func()
}

// Fault injects a fault.
func (t *Tree) Fault(f Fault) {
	t.faultMu.Lock()
	defer t.faultMu.Unlock()
	t.faults = append(t.faults, &f)
}

// ClearFaults removes all faults; blocked calls stay blocked.
func (t *Tree) ClearFaults() {
	t.faultMu.Lock()
	defer t.faultMu.Unlock()
	t.faults = nil
}

func (t *Tree) fault(what string) error {
	t.faultMu.Lock()
	var hit Fault
	for i, f := range t.faults {
		if !strings.HasSuffix(what, f.On) {
			continue
		}
		hit = *f
		if f.Times > 0 {
			if f.Times--; f.Times == 0 {
				t.faults = slices.Delete(t.faults, i, i+1)
			}
		}
		break
	}
	t.faultMu.Unlock()
	if hit.OnHit != nil {
		hit.OnHit()
	}
	if hit.Until != nil {
		<-hit.Until
	}
	return hit.Err
}

// LoadDriver registers a driver on a bus, like its module.
func (t *Tree) LoadDriver(bus, driver string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return os.MkdirAll(t.path("bus/"+bus+"/drivers/"+driver), 0o755)
}

// Strict adds checks: a driver exists only after it had a function or after
// LoadDriver, and a PF needs a driver to create VFs.
func (t *Tree) Strict() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.strict = true
}

// RefuseFunctions makes binds to a driver fail; nil ends that.
func (t *Tree) RefuseFunctions(driver string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refuses[driver] = err
}

// Writes returns all writes so far as "path value".
func (t *Tree) Writes() []string {
	t.faultMu.Lock()
	defer t.faultMu.Unlock()
	return slices.Clone(t.writes)
}

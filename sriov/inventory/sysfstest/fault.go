package sysfstest

import (
	"os"
	"slices"
	"strings"
)

// Fault is what goes wrong with a write or with a request to the Network, before
// it has done anything.
type Fault struct {
	// On is the end of a path and, behind a space, of the value that is written,
	// as "0000:3b:00.0/sriov_numvfs 4"; or a request, see Network.
	On  string
	Err error
	// Times is how often it does; 0 is always.
	Times int
	// Until, when it is not nil, is what the call waits for, as those wait that
	// meet a driver that hangs.
	Until <-chan struct{}
	// Met, when it is not nil, is called before that.
	Met func()
}

// Fault makes something go wrong from now on.
func (t *Tree) Fault(f Fault) {
	t.faultMu.Lock()
	defer t.faultMu.Unlock()
	t.faults = append(t.faults, &f)
}

// NoFaults lets everything go right again; what hangs goes on hanging.
func (t *Tree) NoFaults() {
	t.faultMu.Lock()
	defer t.faultMu.Unlock()
	t.faults = nil
}

// fault is the error of the first fault that is on it. It waits without a lock.
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
	if hit.Met != nil {
		hit.Met()
	}
	if hit.Until != nil {
		<-hit.Until
	}
	return hit.Err
}

// LoadDriver puts a driver on a bus ("pci", "vdpa"), as its module does.
func (t *Tree) LoadDriver(bus, driver string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return os.MkdirAll(t.path("bus/"+bus+"/drivers/"+driver), 0o755)
}

// Strict has the kernel refuse what trees do without where it does not matter: a
// driver is there when it has had a function or after LoadDriver, and a PF needs
// one to make virtual functions.
func (t *Tree) Strict() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.strict = true
}

// RefuseFunctions lets a driver fail with an error when it gets a function; nil
// ends that.
func (t *Tree) RefuseFunctions(driver string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refuses[driver] = err
}

// Writes is all that was written so far: "path value".
func (t *Tree) Writes() []string {
	t.faultMu.Lock()
	defer t.faultMu.Unlock()
	return slices.Clone(t.writes)
}

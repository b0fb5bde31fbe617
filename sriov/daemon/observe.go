package daemon

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"regexp"
	"slices"

	"github.com/cleatproject/cleat/sriov/host"
	"github.com/cleatproject/cleat/sriov/inventory"
	"github.com/cleatproject/cleat/sriov/nodestate"
	"github.com/cleatproject/cleat/sriov/nodestate/source"
	"github.com/cleatproject/cleat/sriov/plan"
	"github.com/cleatproject/cleat/sriov/podresources"
)

// Bounds of the files that are read, in bytes.
const (
	maxPluginConfig = 4 << 20 // more than a ConfigMap can have
	maxGUIDFile     = 1 << 20 // more than all functions of a node need
)

// observation is the node at one time.
type observation struct {
	state  plan.State
	unread []inventory.Problem // what of state could not be read
	hash   string              // of the plugin's configuration
	guids  []plan.GUIDPool
	pods   pods
	err    error // the rest but pods is not valid
}

// pods is what the kubelet reports.
type pods struct {
	holders       []podresources.Holder
	offered       map[string][]string // by resource
	offersUnknown bool                // no kubelet, or one too old to report them
	err           error
}

// observe reads the node.
func (d *Daemon) observe(ctx context.Context) (o observation) {
	// Before and after: what a pod gets or releases in between may be read changed.
	before := d.readPods(ctx)
	o.state, o.err = d.config.Host.Read(ctx)
	o.pods = d.readPods(ctx)
	for _, h := range before.holders {
		if !slices.Contains(o.pods.holders, h) {
			o.pods.holders = append(o.pods.holders, h)
		}
	}
	if incomplete, ok := errors.AsType[*host.Incomplete](o.err); ok {
		o.unread, o.err = incomplete.Problems, nil
	}
	if o.err == nil {
		o.hash, o.err = hashOf(d.config.PluginConfig)
	}
	if o.err == nil {
		o.guids, o.err = readGUIDs(d.config.GUIDFile)
	}
	return o
}

func (d *Daemon) readPods(ctx context.Context) (p pods) {
	if d.config.Pods == nil {
		return pods{offersUnknown: true}
	}
	if p.offered, p.err = d.config.Pods.Offered(ctx); errors.Is(p.err, podresources.ErrUnsupported) {
		p.offersUnknown, p.err = true, nil
	}
	if p.err == nil { // after what is offered: what a pod gets in between is seen here
		p.holders, p.err = d.config.Pods.Held(ctx)
	}
	return p
}

// readGUIDs reads the operator's file of static GUIDs, if it exists.
func readGUIDs(path string) ([]plan.GUIDPool, error) {
	if path == "" {
		return nil, nil
	}
	text, err := source.ReadFile(path, maxGUIDFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the file of static GUIDs: %w", err)
	}
	pools, err := plan.ParseGUIDs(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return pools, nil
}

// hashOf returns the hash by which the plugin names its configuration.
func hashOf(path string) (string, error) {
	if path == "" {
		return "", nil
	}
	text, err := source.ReadFile(path, maxPluginConfig)
	if err != nil {
		return "", fmt.Errorf("the plugin's configuration: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:]), nil
}

// addresses are those of PCI functions.
var addresses = regexp.MustCompile(`^[0-9a-f]+:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// check returns an error when something could not be read that a plan may need:
// PFs that the spec names, managed ones, their functions, or an unknown part.
func (o observation) check(spec nodestate.Spec, managed []string) error {
	if o.err != nil {
		return o.err
	}
	missing := map[string]bool{} // PFs of the plan that were not read
	for _, i := range spec.Interfaces {
		missing[i.PCIAddress] = true
	}
	for _, pf := range managed {
		missing[pf] = true
	}
	needed := map[string]bool{} // functions that were read: whether the plan is about them
	complete := true            // all functions of PFs of the plan were read
	for _, pf := range o.state.PFs {
		_, named := missing[pf.Address]
		needed[pf.Address] = named
		for _, v := range pf.VFs {
			needed[v.Address] = named
		}
		if named {
			delete(missing, pf.Address)
			complete = complete && len(pf.VFs) == pf.NumVFs
		}
	}
	complete = complete && len(missing) == 0
	for _, p := range o.unread {
		if isNeeded, known := needed[p.What]; isNeeded || !known && (!complete || !addresses.MatchString(p.What)) {
			return fmt.Errorf("not all of the node can be read: %s: %w", p.What, p.Err)
		}
	}
	return nil
}

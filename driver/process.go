package driver

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
)

// Process is a running driver, as its engine sees it.
type Process struct {
	// Deployment is what the flags say. Engine.Complete derives the rest; Open can set
	// PlacedVolumes, which for some engines only their configuration says.
	Deployment csi.Deployment
	// Boots reads the last boot reports of all nodes, for fences; nil: nodes do not
	// report their boots. Open sets it.
	Boots func(ctx context.Context) (map[string]volume.Boot, error)
	// Admit is called before this node stages or publishes a volume; after an error the
	// call fails with it. nil: no further condition. Node sets it.
	Admit func(ctx context.Context) error

	driver *driver
}

// NodeID returns --node-id.
func (p *Process) NodeID() string { return p.driver.nodeID }

// DriverName returns --driver-name.
func (p *Process) DriverName() string { return p.driver.driverName }

// StateDir returns --state-dir, which can be missing.
func (p *Process) StateDir() string { return p.driver.StateDir }

// UserAgent names the program for other servers, as NAME/VERSION.
func (p *Process) UserAgent() string { return p.driver.program.Name + "/" + p.driver.program.Version }

// Logger returns the log.
func (p *Process) Logger() *slog.Logger { return p.driver.Logger }

// Metrics returns the registry of /metrics.
func (p *Process) Metrics() prometheus.Registerer { return p.driver.Metrics }

// OnClose has a function called when the process ends, after all calls; the last one
// first.
func (p *Process) OnClose(closer func(ctx context.Context) error) { p.driver.OnClose(closer) }

// Background has run called once the state is open, until its context ends. An error
// ends the process.
func (p *Process) Background(name string, run func(ctx context.Context) error) {
	p.driver.background = append(p.driver.background, task{name, run})
}

// IsUsed reports whether this node has attached a volume in this boot of the machine.
func (p *Process) IsUsed(ctx context.Context) (bool, error) {
	if p.driver.manager == nil {
		return false, errs.Errorf(errs.Unavailable, "the node service is not open yet")
	}
	return p.driver.manager.IsUsed(ctx)
}

// UseState keeps grants and fences in a database, and returns their reader. Open calls
// it once. This node is recorded as a client, unless the process runs only a controller
// of volumes that are on no particular node.
func (p *Process) UseState(ctx context.Context, s State) (volume.Instances, error) {
	d := p.driver
	db, err := database(s)
	if err != nil {
		return nil, err
	}
	d.ledger = ledger.New(db)
	if p.Deployment.MultiNode && !p.Deployment.Services.Node {
		return d.ledger, nil
	}
	self, err := d.self()
	if err != nil {
		return nil, err
	}
	if len(self.Addrs) == 0 && d.fencesServed() {
		d.Logger.Warn("this node has no known address and cannot be fenced, set --node-address", "reason", "no default route")
	}
	return d.ledger, d.ledger.RecordClient(ctx, self)
}

// OpenFile opens a database in the state directory, as NAME.db. The process closes it.
func (p *Process) OpenFile(ctx context.Context, name string) (State, error) {
	if p.driver.election.isSet() {
		return nil, fmt.Errorf("--lease is for several replicas, and each would have a file %s.db of its own in its --state-dir: keep the state where all reach it, as in a ConfigMap", name)
	}
	file, err := p.driver.OpenStore(ctx, name+".db", fileOptions(name))
	if err != nil {
		return nil, err
	}
	return file, nil
}

// fileOptions preallocate: revocations and fences are recorded on a full disk, too.
func fileOptions(name string) store.Options {
	return store.Options{Role: name, Version: 1, Preallocate: 4 << 20}
}

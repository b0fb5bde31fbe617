// Package client is a small orchestrator for any CSI driver on this machine.
// It speaks CSI 1.13 over the driver's socket, uses what the driver announces
// and nothing else, and remembers on disk what an orchestrator must remember:
// contexts, capabilities, staging paths, targets. Every call may be repeated,
// also after a crash in the middle: it then continues.
package client

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// DefaultStateDir is where an orchestrator on this machine remembers.
const DefaultStateDir = "/var/lib/cleat/client"

// Config says which driver to use, and how.
type Config struct {
	// Endpoint of the driver, as unix:///run/cleat/csi/csi.sock.
	Endpoint string
	// NodeEndpoint is set where another process serves the node service.
	NodeEndpoint string
	// StateDir is a directory for what must be remembered, and for staging;
	// empty is DefaultStateDir. It is made when needed.
	StateDir string
	// Secrets go with every call that takes secrets. They are never stored.
	Secrets map[string]string
	// Patience is how long Dial waits for a driver that does not answer yet,
	// 3 s when zero.
	Patience time.Duration
	// Attempt bounds one attempt of a call, 2 min when zero. A driver goes on
	// with the work, and the next attempt joins it.
	Attempt time.Duration
	// Notice, when set, is told in a line for people what a call waits for.
	Notice func(line string)
}

// Driver is a CSI driver and what is remembered of its volumes. It may be used
// by several goroutines, and several processes may share a StateDir.
type Driver struct {
	config     Config
	memory     *memory
	conns      []*grpc.ClientConn
	identity   csi.IdentityClient
	controller csi.ControllerClient
	group      csi.GroupControllerClient
	metadata   csi.SnapshotMetadataClient
	node       csi.NodeClient
	info       Info
	offers     offers
}

// Dial connects to a driver, waits for it to be ready and asks what it can do.
func Dial(ctx context.Context, config Config) (*Driver, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, err
	}
	d := &Driver{config: config, memory: newMemory(config.StateDir)}
	main, err := d.connect(config.Endpoint)
	if err != nil {
		return nil, err
	}
	nodeConn := main
	if config.NodeEndpoint != "" && config.NodeEndpoint != config.Endpoint {
		if nodeConn, err = d.connect(config.NodeEndpoint); err != nil {
			return nil, errors.Join(err, d.Close())
		}
	}
	d.identity, d.controller = csi.NewIdentityClient(main), csi.NewControllerClient(main)
	d.group, d.metadata = csi.NewGroupControllerClient(main), csi.NewSnapshotMetadataClient(main)
	d.node = csi.NewNodeClient(nodeConn)

	patient, cancel := context.WithTimeout(ctx, config.Patience)
	defer cancel()
	if err := d.awaitReady(patient); err != nil {
		return nil, errors.Join(fmt.Errorf("no CSI driver answers on %s (is it running? start cleat's own with: cleat csi): %w", config.Endpoint, err), d.Close())
	}
	if err := d.ask(ctx); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (c Config) withDefaults() (Config, error) {
	if c.StateDir == "" {
		c.StateDir = DefaultStateDir
	}
	if c.Patience == 0 {
		c.Patience = 3 * time.Second
	}
	if c.Attempt == 0 {
		c.Attempt = 2 * time.Minute
	}
	if c.Notice == nil {
		c.Notice = func(string) {}
	}
	var err error
	c.StateDir, err = filepath.Abs(c.StateDir) // drivers want absolute staging paths
	return c, err
}

// connect makes a connection; gRPC dials it when it is used.
func (d *Driver) connect(endpoint string) (*grpc.ClientConn, error) {
	path, err := unixsock.ParseEndpoint(endpoint)
	if err != nil {
		return nil, err
	}
	const largest = 32 << 20 // a page of a driver that ignores max_entries
	conn, err := rpcdial.Unix(path, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest)))
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	d.conns = append(d.conns, conn)
	return conn, nil
}

// awaitReady probes until the driver says that it is ready.
func (d *Driver) awaitReady(ctx context.Context) error {
	for pause := newPause(); ; {
		answer, err := call(ctx, d, "Probe", d.identity.Probe, &csi.ProbeRequest{})
		switch {
		case err == nil && (answer.GetReady() == nil || answer.GetReady().GetValue()):
			return nil
		case err == nil:
			err = errors.New("the driver says that it is not ready yet")
		case codeOf(err) != codes.FailedPrecondition:
			return err
		}
		if !pause.wait(ctx) {
			return fmt.Errorf("%w: %w", err, ctx.Err())
		}
	}
}

// Close ends the connection.
func (d *Driver) Close() error {
	var errs []error
	for _, c := range d.conns {
		errs = append(errs, c.Close())
	}
	d.conns = nil
	return errors.Join(errs...)
}

// Info tells who the driver is and what it announces.
func (d *Driver) Info() Info { return d.info }

// unknown is the error for a name or id that means nothing.
func (d *Driver) unknown(what, ref string) error {
	return errs.Errorf(errs.NotFound, "driver %s has no %s with the name or id %q", d.info.Name, what, ref)
}

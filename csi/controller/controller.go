// Package controller is CSI's Controller service over any volume.Backend. It
// orders operations on one object, keeps to what was announced, and turns the
// engine's words into the contract's; errors leave it with a errs.Kind.
package controller

import (
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
)

// Grants record who may use which volume; ledger.Ledger does.
type Grants interface {
	// Enter lets a client in until leave is called, so that a fence can wait
	// for what is under way. Precondition: it is fenced.
	Enter(ctx context.Context, c volume.Client) (leave func(), err error)
	// Grant records a grant, or returns the equal one that is recorded.
	// Exists: the node has the volume in another way. Precondition: the client
	// is fenced, or another node has the volume.
	Grant(ctx context.Context, g ledger.Grant) (ledger.Grant, error)
	// Revoke removes the grant of a node, or all when node is empty; one that
	// is not there is no error.
	Revoke(ctx context.Context, id volume.ID, node string) error
	// Of returns the grants of a volume.
	Of(ctx context.Context, id volume.ID) ([]ledger.Grant, error)
	// ByNode returns the grants of a node.
	ByNode(ctx context.Context, node string) ([]ledger.Grant, error)
}

// Config is what the service works with.
type Config struct {
	Backend    volume.Backend
	Deployment csi.Deployment
	Operations *op.Operations
	Grants     Grants // needed with Deployment.ControllerPublish
}

// Server is the Controller service.
type Server struct {
	spec.UnimplementedControllerServer
	backend    volume.Backend
	nodes      []string
	perNode    bool // each node runs a controller of its own
	operations *op.Operations
	grants     Grants // nil without controller publish
	maxVolumes int64  // that a node takes; 0: no limit
	nodeLocks  op.Locks
	announced  csi.Announcement
	offer      request.Offer
}

// New makes the service.
func New(c Config) (*Server, error) {
	if err := c.Deployment.Check(); err != nil {
		return nil, err
	}
	s := &Server{
		backend: c.Backend, nodes: c.Deployment.Nodes, perNode: c.Deployment.PerNode, maxVolumes: c.Deployment.MaxVolumes, operations: c.Operations,
		announced: csi.Announce(csi.AbilitiesOf(c.Backend), c.Deployment),
	}
	s.offer = s.announced.Offer()
	if c.Deployment.ControllerPublish {
		if c.Grants == nil {
			return nil, errs.Errorf(errs.Internal, "controller publish needs a ledger of grants")
		}
		s.grants = c.Grants
	}
	return s, nil
}

// ControllerGetCapabilities tells what is offered.
func (s *Server) ControllerGetCapabilities(context.Context, *spec.ControllerGetCapabilitiesRequest) (*spec.ControllerGetCapabilitiesResponse, error) {
	return &spec.ControllerGetCapabilitiesResponse{Capabilities: s.announced.ControllerCapabilities()}, nil
}

// Keys of operations. A volume that is made has no id yet, so its name stands
// for it; grants have a key of their own, so that taking one away cancels its
// making and nothing else.
func volumeNameKey(name string) string        { return "volume-name:" + name }
func volumeKey(id volume.ID) string           { return "volume:" + string(id) }
func grantKey(id volume.ID) string            { return "grant:" + string(id) }
func snapshotNameKey(name string) string      { return "snapshot-name:" + name }
func snapshotKey(id volume.SnapshotID) string { return "snapshot:" + string(id) }

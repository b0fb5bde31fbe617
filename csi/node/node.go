// Package node serves the Node service of CSI 1.13: it checks and orders the
// calls and hands them to the stage machine of the node.
package node

import (
	"context"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/attach"
	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
)

// Admission lets clients in for the time that something is given to them;
// ledger.Ledger does.
type Admission interface {
	// Enter lets a client in until leave is called. Precondition: it is fenced.
	Enter(ctx context.Context, c volume.Client) (leave func(), err error)
}

// Config says what a Server serves. Machine, Operations and NodeID are needed.
type Config struct {
	Machine    *attach.Machine
	Operations *op.Operations
	NodeID     string
	// Announced is what every instance of this configuration announces.
	Announced csi.Announcement
	// MaxVolumes is how many volumes can be on this node; 0: no bound.
	MaxVolumes int64
	// RequireGrant is set where ControllerPublishVolume is served: a volume is
	// then staged and published only on the node that it was granted to.
	RequireGrant bool
	// Admission is asked before a volume is staged or published, and told when
	// that has ended; nil: nobody is. What undoes a stage never asks.
	Admission Admission
	// Client tells who this node is now; nil: NodeID is all that is known.
	Client func() volume.Client
}

// Server is the Node service. Its errors are kinds of package volume.
type Server struct {
	spec.UnimplementedNodeServer
	config Config
}

var _ spec.NodeServer = (*Server)(nil)

// New makes a Server.
func New(c Config) *Server { return &Server{config: c} }

func volumeKey(id volume.ID) string { return "node-volume:" + string(id) }

func targetKey(path string) string { return "target:" + path }

// do runs a call that answers nothing but that it is done.
func (s *Server) do(ctx context.Context, r op.Request, fn func(ctx context.Context) error) error {
	_, err := op.Do(ctx, s.config.Operations, r, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) })
	return err
}

// checkGrant refuses a volume that was granted to another node, or to none.
func (s *Server) checkGrant(id volume.ID, publishContext map[string]string) error {
	if !s.config.RequireGrant {
		return nil
	}
	switch to := request.GrantedTo(publishContext); to {
	case s.config.NodeID:
		return nil
	case "":
		return errs.Errorf(errs.Precondition, "publish_context holds no grant of volume %s; call ControllerPublishVolume for node %s first and pass on its publish_context", id, s.config.NodeID)
	default:
		return errs.Errorf(errs.Precondition, "volume %s is granted to node %s, this is node %s", id, to, s.config.NodeID)
	}
}

// enter asks whether this node may be given anything. It is asked where the
// work is done, so that a fence also waits for work whose caller has gone.
func (s *Server) enter(ctx context.Context) (leave func(), err error) {
	if s.config.Admission == nil {
		return func() {}, nil
	}
	client := volume.Client{Node: s.config.NodeID}
	if s.config.Client != nil {
		client = s.config.Client()
	}
	return s.config.Admission.Enter(ctx, client)
}

// capability translates a checked capability.
func capability(c request.Capability) volume.Capability {
	to := volume.Capability{Block: c.Block, FSType: c.FSType, MountFlags: c.MountFlags, Mode: volume.SingleNodeWriter}
	if gid, ok := c.GroupID(); ok {
		to.MountGroup = &gid
	}
	switch c.Mode {
	case spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY:
		to.Mode = volume.SingleNodeReaderOnly
	case spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER:
		to.Mode = volume.SingleNodeSingleWriter
	case spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		to.Mode = volume.SingleNodeMultiWriter
	}
	return to
}

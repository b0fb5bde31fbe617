package controller

import (
	"context"
	"slices"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const publishCapability = spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME

// ControllerPublishVolume grants a node the use of a volume.
func (s *Server) ControllerPublishVolume(ctx context.Context, r *spec.ControllerPublishVolumeRequest) (*spec.ControllerPublishVolumeResponse, error) {
	if err := s.announced.RequireController("ControllerPublishVolume", publishCapability); err != nil {
		return nil, err
	}
	req, err := request.ControllerPublishVolume(r)
	if err != nil {
		return nil, err
	}
	_, err = op.Do(ctx, s.operations, op.Request{
		What: "ControllerPublishVolume", Keys: []string{grantKey(req.Volume)}, Fingerprint: request.Fingerprint(r),
	}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.grant(ctx, req)
	})
	if err != nil {
		return nil, err
	}
	return &spec.ControllerPublishVolumeResponse{PublishContext: request.GrantContext(req.Node, req.ReadOnly)}, nil
}

func (s *Server) grant(ctx context.Context, req request.ControllerPublish) error {
	v, err := s.backend.Engine.Get(ctx, req.Volume)
	if err != nil {
		return err
	}
	if !slices.Contains(s.nodes, req.Node) {
		return errs.Errorf(errs.NotFound, "node %q is not known; known nodes are %q", req.Node, s.nodes)
	}
	if req.Locator != nil && !access.Equal(req.Locator, v.Locator) {
		return errs.Errorf(errs.Invalid, "volume_context is not that of volume %s", v.ID)
	}
	if err := checkUsable(v, req.Capability); err != nil {
		return err
	}
	// The ledger knows by which addresses.
	client := volume.Client{Node: req.Node}
	leave, err := s.grants.Enter(ctx, client)
	if err != nil {
		return err
	}
	defer leave()
	done, err := s.admitToNode(ctx, v.ID, req.Node)
	if err != nil {
		return err
	}
	defer done()
	// The ledger decides whether this goes with what is granted already.
	_, err = s.grants.Grant(ctx, ledger.Grant{
		Volume: v.ID, Client: client, ReadOnly: req.ReadOnly, Mode: grantMode(req.Capability), Granted: time.Now(),
	})
	return err
}

// admitToNode refuses a volume beyond what a node takes. Grants for one node
// wait for each other until done is called, so that two cannot share the last
// place; without a limit they do not.
func (s *Server) admitToNode(ctx context.Context, id volume.ID, node string) (done func(), err error) {
	if s.maxVolumes == 0 {
		return func() {}, nil
	}
	unlock, err := s.nodeLocks.Lock(ctx, node)
	if err != nil {
		return nil, err
	}
	granted, err := s.grants.ByNode(ctx, node)
	if err == nil && int64(len(granted)) >= s.maxVolumes &&
		!slices.ContainsFunc(granted, func(g ledger.Grant) bool { return g.Volume == id }) {
		err = errs.Errorf(errs.Exhausted, "node %q has %d volumes, which is its limit of %d (--max-volumes); unpublish one first", node, len(granted), s.maxVolumes)
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// grantMode is what must stay the same while a volume is granted to a node.
func grantMode(c request.Capability) string {
	if c.Block {
		return c.Mode.String() + "/block"
	}
	return c.Mode.String() + "/mount"
}

// ControllerUnpublishVolume takes the use of a volume from a node, or from all.
// What was never granted, or is unknown altogether, is not granted afterwards.
func (s *Server) ControllerUnpublishVolume(ctx context.Context, r *spec.ControllerUnpublishVolumeRequest) (*spec.ControllerUnpublishVolumeResponse, error) {
	if err := s.announced.RequireController("ControllerUnpublishVolume", publishCapability); err != nil {
		return nil, err
	}
	req, err := request.ControllerUnpublishVolume(r)
	if err != nil {
		return nil, err
	}
	_, err = op.Do(ctx, s.operations, op.Request{
		What: "ControllerUnpublishVolume", Keys: []string{grantKey(req.Volume)}, Fingerprint: request.Fingerprint(r), Negates: true,
	}, func(ctx context.Context) (struct{}, error) {
		return struct{}{}, s.grants.Revoke(ctx, req.Volume, req.Node)
	})
	if err != nil {
		return nil, err
	}
	return &spec.ControllerUnpublishVolumeResponse{}, nil
}

// checkUnpublished refuses to go on with a volume that a node may use.
func (s *Server) checkUnpublished(ctx context.Context, id volume.ID) error {
	nodes, err := s.publishedNodes(ctx, id)
	if err != nil || len(nodes) == 0 {
		return err
	}
	return errs.Errorf(errs.Precondition, "volume %s is in use: it is published to %q; unpublish it first", id, nodes)
}

// publishedNodes returns the nodes that a volume is granted to.
func (s *Server) publishedNodes(ctx context.Context, id volume.ID) ([]string, error) {
	if s.grants == nil {
		return nil, nil
	}
	granted, err := s.grants.Of(ctx, id)
	if err != nil {
		return nil, err
	}
	var nodes []string
	for _, g := range granted {
		nodes = append(nodes, g.Client.Node)
	}
	return nodes, nil
}

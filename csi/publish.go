package csi

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// Keys of the publish context, from controller to node.
const (
	keyGrantedTo       = "grantedTo"
	keyGrantedReadOnly = "grantedReadOnly"
)

func isReadOnlyGrant(publishContext map[string]string) bool {
	return publishContext[keyGrantedReadOnly] == "true"
}

// ControllerPublishVolume grants a volume to a node.
func (s *Controller) ControllerPublishVolume(ctx context.Context, r *spec.ControllerPublishVolumeRequest) (*spec.ControllerPublishVolumeResponse, error) {
	if err := cmp.Or(
		s.announced.needs(r, spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME),
		checkID("volume_id", r.GetVolumeId()),
		requireString("node_id", r.GetNodeId(), maxNodeID),
		checkMap("volume_context", r.GetVolumeContext()),
	); err != nil {
		return nil, err
	}
	capability, err := s.deployment.parseCapability("volume_capability", r.GetVolumeCapability())
	if err != nil {
		return nil, err
	}
	locator, err := parseLocator(r.GetVolumeContext(), nil)
	if err != nil {
		return nil, err
	}
	g := volume.Grant{Volume: volume.ID(r.GetVolumeId()), ReadOnly: r.GetReadonly(), Mode: grantMode(capability)}
	now, err := do(ctx, s.operations, r, []string{grantKey(g.Volume)}, func(ctx context.Context) (access.Access, error) {
		return s.grant(ctx, g, r.GetNodeId(), capability, locator)
	})
	if err != nil {
		return nil, err
	}
	properties := s.publishContext(r)
	maps.Copy(properties, access.Update(locator, now))
	return &spec.ControllerPublishVolumeResponse{PublishContext: properties}, nil
}

// publishContext names no node if the storage keeps other nodes out: a node
// service then needs no proof of the grant. Such a storage admits a node for
// writing too; the node service mounts the volume read-only.
func (s *Controller) publishContext(r *spec.ControllerPublishVolumeRequest) map[string]string {
	properties := map[string]string{}
	if !s.deployment.StorageGrants {
		properties[keyGrantedTo] = s.deployment.nodeName(r.GetNodeId())
	}
	if r.GetReadonly() {
		properties[keyGrantedReadOnly] = "true"
	}
	return properties
}

// grantMode must not change during a grant.
func grantMode(c volume.Capability) string {
	if c.Block {
		return c.Mode.CSIName() + "/block"
	}
	return c.Mode.CSIName() + "/mount"
}

// grant records a grant if the node can use the volume in this way, and returns
// the volume's locator of today. locator is nil when the request has none.
func (s *Controller) grant(ctx context.Context, g volume.Grant, nodeID string, c volume.Capability, locator access.Access) (now access.Access, err error) {
	v, err := s.backend.Engine.Get(ctx, g.Volume)
	if err != nil {
		return nil, err
	}
	if g.Client, err = s.client(nodeID); err != nil {
		return nil, err
	}
	g.NameOnly = s.deployment.MultiNode && len(g.Client.Addrs) == 0
	if locator != nil && !access.SameVolume(locator, v.Locator) {
		return nil, invalidf("volume_context does not match volume %s", v.ID)
	}
	if err := checkUsable(v, c); err != nil {
		return nil, err
	}
	switch p := v.Progress; {
	case p.Failed != "":
		return nil, errs.Errorf(errs.Precondition, "volume %s has only a part of the content of its source: %s; delete it and create it again", v.ID, p.Failed)
	case p.Running():
		return nil, errs.Errorf(errs.Busy, "volume %s is being copied (%d of %d bytes); retry after the copy", v.ID, p.Done, p.Total)
	}
	leave, err := s.grants.Enter(ctx, g.Client)
	if err != nil {
		return nil, err
	}
	defer leave()
	unlock, err := s.lockNode(ctx, v.ID, g.Client.Node)
	if err != nil {
		return nil, err
	}
	defer unlock()
	g.Granted = time.Now()
	if _, err = s.grants.Grant(ctx, g); err != nil {
		return nil, err
	}
	if s.backend.Granter == nil {
		return v.Locator, nil
	}
	return v.Locator, s.backend.Granter.Enforce(ctx, v.ID)
}

// client returns the node with an id, or NotFound.
func (s *Controller) client(nodeID string) (volume.Client, error) {
	switch {
	case s.deployment.MultiNode:
		return s.deployment.parseNodeID(nodeID)
	case !slices.Contains(s.deployment.Nodes, nodeID):
		return volume.Client{}, errs.Errorf(errs.NotFound, "node %q is not known; known nodes are %q", nodeID, s.deployment.Nodes)
	}
	return volume.Client{Node: nodeID}, nil
}

// lockNode refuses a volume beyond the limit of a node. Grants for one node
// exclude each other until unlock is called, so that two cannot take its last
// place; without a limit they do not.
func (s *Controller) lockNode(ctx context.Context, id volume.ID, node string) (unlock func(), err error) {
	limit := s.deployment.MaxVolumes
	if limit == 0 {
		return func() {}, nil
	}
	if unlock, err = s.nodeLocks.Lock(ctx, node); err != nil {
		return nil, err
	}
	granted, err := s.grants.ByNode(ctx, node)
	if err == nil && int64(len(granted)) >= limit &&
		!slices.ContainsFunc(granted, func(g volume.Grant) bool { return g.Volume == id }) {
		err = errs.Errorf(errs.Exhausted, "node %q has %d volumes, which is its limit of %d (--max-volumes); unpublish one first", node, len(granted), limit)
	}
	if err != nil {
		unlock()
		return nil, err
	}
	return unlock, nil
}

// ControllerUnpublishVolume revokes the grant of a node, or all grants if the
// request names no node. A missing grant or volume is no error; the storage is
// called also then, as an earlier call can have failed in between.
func (s *Controller) ControllerUnpublishVolume(ctx context.Context, r *spec.ControllerUnpublishVolumeRequest) (*spec.ControllerUnpublishVolumeResponse, error) {
	if err := cmp.Or(
		s.announced.needs(r, spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME),
		checkID("volume_id", r.GetVolumeId()),
		checkString("node_id", r.GetNodeId(), maxNodeID),
	); err != nil {
		return nil, err
	}
	id, node := volume.ID(r.GetVolumeId()), s.deployment.nodeName(r.GetNodeId())
	var enforce func(context.Context) error
	if g := s.backend.Granter; g != nil {
		enforce = func(ctx context.Context) error { return g.Revoke(ctx, id, node) }
	}
	return &spec.ControllerUnpublishVolumeResponse{}, undo(ctx, s.operations, r, []string{grantKey(id)}, nil, func(ctx context.Context) error {
		return s.grants.Revoke(ctx, id, node, enforce)
	})
}

// checkUnpublished refuses a granted volume.
func (s *Controller) checkUnpublished(ctx context.Context, id volume.ID) error {
	nodes, err := s.publishedNodes(ctx, id)
	if err != nil || len(nodes) == 0 {
		return err
	}
	return errs.Errorf(errs.Precondition, "volume %s is in use: it is published to %q; unpublish it first", id, nodes)
}

// publishedNodes returns the ids of the nodes that have a grant, as last passed
// to ControllerPublishVolume: the external-attacher compares them with those of
// the CSINode objects.
func (s *Controller) publishedNodes(ctx context.Context, id volume.ID) (nodes []string, err error) {
	if !s.deployment.ControllerPublish {
		return nil, nil
	}
	granted, err := s.grants.Of(ctx, id)
	if err != nil {
		return nil, err
	}
	for _, g := range granted {
		last, _, err := s.grants.Client(ctx, g.Client.Node)
		if err != nil {
			return nil, err
		}
		node, err := s.nodeID(g, last)
		if err != nil {
			return nil, err
		}
		nodes = append(nodes, node)
	}
	return nodes, nil
}

// allPublishedNodes returns those of volumes with ids greater than after, with
// two reads of the state for all.
func (s *Controller) allPublishedNodes(ctx context.Context, after volume.ID) (map[volume.ID][]string, error) {
	if !s.deployment.ControllerPublish {
		return nil, nil
	}
	granted, err := s.grants.All(ctx, after, 0)
	if err != nil {
		return nil, err
	}
	clients, err := s.grants.Clients(ctx)
	if err != nil {
		return nil, err
	}
	last := map[string]volume.Client{}
	for _, c := range clients {
		last[c.Node] = c
	}
	nodes := map[volume.ID][]string{}
	for _, g := range granted {
		node, err := s.nodeID(g, last[g.Client.Node])
		if err != nil {
			return nil, err
		}
		nodes[g.Volume] = append(nodes[g.Volume], node)
	}
	return nodes, nil
}

// nodeID prefers the record of the client to that of the grant, as the node's
// addresses can have changed since.
func (s *Controller) nodeID(g volume.Grant, last volume.Client) (string, error) {
	switch {
	case !s.deployment.MultiNode || g.NameOnly:
		return g.Client.Node, nil
	case len(last.Addrs) > 0:
		return FormatNodeID(last)
	}
	return FormatNodeID(g.Client)
}

package csi

import (
	"maps"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/csi/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// Abilities are those of an engine that decide what is announced. They belong
// to the configuration, not to the process: one that serves only the node
// service opens no engine and announces the same.
type Abilities struct {
	Snapshots, Clones, Groups, Deltas, Modify, Health bool
}

// AbilitiesOf reads the abilities off a backend.
func AbilitiesOf(b volume.Backend) Abilities {
	return Abilities{
		Snapshots: b.Snapshots != nil, Clones: b.Clones, Groups: b.Groups != nil && b.Snapshots != nil,
		Deltas: b.Deltas != nil && b.Snapshots != nil, Modify: b.Modifier != nil, Health: b.Health != nil,
	}
}

// Deployment says how the plugin is deployed. All instances of one
// configuration have the same, save for Services and the values of Topology.
type Deployment struct {
	Services Services
	// ControllerPublish is set where an orchestrator attaches volumes through
	// the controller before it uses them on a node.
	ControllerPublish bool
	// PerNode is set where each node runs a controller of its own. The
	// sidecars that publish, expand and modify through the controller work
	// only with a single one, so these are not announced.
	PerNode bool
	// Topology holds the segments of this node; none: not announced.
	Topology map[string]string
	// Nodes are the ids of the nodes that volumes can be published to.
	Nodes []string
	// MaxVolumes is how many volumes a node takes; 0: no limit.
	MaxVolumes int64
}

// Services say which services a process serves, beside Identity.
type Services struct {
	Controller, Node bool
}

// Check refuses a deployment that makes no sense.
func (d Deployment) Check() error {
	switch {
	case !d.Services.Controller && !d.Services.Node:
		return errs.Errorf(errs.Invalid, "neither the controller nor the node service is to be served; name at least one")
	case d.PerNode && d.ControllerPublish:
		return errs.Errorf(errs.Invalid, "controller publish needs a single controller, but each node is to run its own")
	}
	for _, node := range d.Nodes {
		if node == "" || len(node) > request.MaxNodeID {
			return errs.Errorf(errs.Invalid, "node id %q has %d bytes; 1 to %d are needed", node, len(node), request.MaxNodeID)
		}
	}
	return request.CheckTopology("topology", d.Topology)
}

// Announcement is what an orchestrator is told that it may call.
type Announcement struct {
	Services   []spec.PluginCapability_Service_Type
	Expansion  []spec.PluginCapability_VolumeExpansion_Type
	Controller []spec.ControllerServiceCapability_RPC_Type
	Group      []spec.GroupControllerServiceCapability_RPC_Type
	Node       []spec.NodeServiceCapability_RPC_Type
	// Segments is the topology of this node, empty when none is announced.
	Segments map[string]string
}

// Announce derives what is announced, for every service whether or not this
// process serves it.
func Announce(a Abilities, d Deployment) Announcement {
	return Announcement{
		Services:   services(a, d),
		Expansion:  []spec.PluginCapability_VolumeExpansion_Type{spec.PluginCapability_VolumeExpansion_ONLINE},
		Controller: controllerRPCs(a, d),
		Group:      groupRPCs(a),
		Node:       nodeRPCs(),
		Segments:   maps.Clone(d.Topology),
	}
}

func services(a Abilities, d Deployment) []spec.PluginCapability_Service_Type {
	return chosen([]choice[spec.PluginCapability_Service_Type]{
		{spec.PluginCapability_Service_CONTROLLER_SERVICE, true},
		{spec.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS, len(d.Topology) > 0},
		{spec.PluginCapability_Service_GROUP_CONTROLLER_SERVICE, a.Groups},
		{spec.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE, a.Deltas},
		{spec.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS, len(d.Topology) > 0 && a.Snapshots},
	})
}

func controllerRPCs(a Abilities, d Deployment) []spec.ControllerServiceCapability_RPC_Type {
	return chosen([]choice[spec.ControllerServiceCapability_RPC_Type]{
		{spec.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, true},
		{spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, d.ControllerPublish},
		{spec.ControllerServiceCapability_RPC_LIST_VOLUMES, true},
		{spec.ControllerServiceCapability_RPC_GET_CAPACITY, true},
		{spec.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, a.Snapshots},
		{spec.ControllerServiceCapability_RPC_LIST_SNAPSHOTS, a.Snapshots},
		{spec.ControllerServiceCapability_RPC_CLONE_VOLUME, a.Clones},
		{spec.ControllerServiceCapability_RPC_PUBLISH_READONLY, d.ControllerPublish},
		{spec.ControllerServiceCapability_RPC_EXPAND_VOLUME, !d.PerNode},
		{spec.ControllerServiceCapability_RPC_LIST_VOLUMES_PUBLISHED_NODES, d.ControllerPublish},
		{spec.ControllerServiceCapability_RPC_GET_VOLUME, true},
		{spec.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER, true},
		{spec.ControllerServiceCapability_RPC_MODIFY_VOLUME, a.Modify && !d.PerNode},
		{spec.ControllerServiceCapability_RPC_GET_SNAPSHOT, a.Snapshots},
		{spec.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH, a.Health},
		{spec.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH, a.Health},
	})
}

func groupRPCs(a Abilities) []spec.GroupControllerServiceCapability_RPC_Type {
	return chosen([]choice[spec.GroupControllerServiceCapability_RPC_Type]{
		{spec.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT, a.Groups},
	})
}

// nodeRPCs are the node's own work and do not depend on the engine.
func nodeRPCs() []spec.NodeServiceCapability_RPC_Type {
	return []spec.NodeServiceCapability_RPC_Type{
		spec.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		spec.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		spec.NodeServiceCapability_RPC_EXPAND_VOLUME,
		spec.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		spec.NodeServiceCapability_RPC_VOLUME_MOUNT_GROUP,
		spec.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		spec.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	}
}

type choice[T any] struct {
	what    T
	offered bool
}

func chosen[T any](all []choice[T]) []T {
	var out []T
	for _, c := range all {
		if c.offered {
			out = append(out, c.what)
		}
	}
	return out
}

// HasService reports whether a service or constraint of the plugin is announced.
func (a Announcement) HasService(t spec.PluginCapability_Service_Type) bool {
	return slices.Contains(a.Services, t)
}

// RequireController returns an error of kind errs.Unsupported unless the
// capability that the call needs is announced.
func (a Announcement) RequireController(call string, t spec.ControllerServiceCapability_RPC_Type) error {
	if slices.Contains(a.Controller, t) {
		return nil
	}
	return errs.Errorf(errs.Unsupported, "%s is not offered here: %s is not among the announced capabilities", call, t)
}

// RequireService is RequireController for the services beside the controller.
func (a Announcement) RequireService(call string, t spec.PluginCapability_Service_Type) error {
	if a.HasService(t) {
		return nil
	}
	return errs.Errorf(errs.Unsupported, "%s is not offered here: %s is not among the announced capabilities", call, t)
}

// Offer says which optional fields of requests are taken.
func (a Announcement) Offer() request.Offer {
	return request.Offer{
		Topology:         a.HasService(spec.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS),
		SnapshotTopology: a.HasService(spec.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS),
		Modify:           slices.Contains(a.Controller, spec.ControllerServiceCapability_RPC_MODIFY_VOLUME),
	}
}

// AccessibleTopology is where volumes and snapshots of this node are usable
// from; nil when none is announced.
func (a Announcement) AccessibleTopology() []*spec.Topology {
	if len(a.Segments) == 0 {
		return nil
	}
	return []*spec.Topology{{Segments: maps.Clone(a.Segments)}}
}

// ControllerCapabilities returns the answer of ControllerGetCapabilities.
func (a Announcement) ControllerCapabilities() []*spec.ControllerServiceCapability {
	var out []*spec.ControllerServiceCapability
	for _, t := range a.Controller {
		out = append(out, &spec.ControllerServiceCapability{
			Type: &spec.ControllerServiceCapability_Rpc{Rpc: &spec.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return out
}

// GroupCapabilities returns the answer of GroupControllerGetCapabilities.
func (a Announcement) GroupCapabilities() []*spec.GroupControllerServiceCapability {
	var out []*spec.GroupControllerServiceCapability
	for _, t := range a.Group {
		out = append(out, &spec.GroupControllerServiceCapability{
			Type: &spec.GroupControllerServiceCapability_Rpc{Rpc: &spec.GroupControllerServiceCapability_RPC{Type: t}},
		})
	}
	return out
}

// NodeCapabilities returns the answer of NodeGetCapabilities.
func (a Announcement) NodeCapabilities() []*spec.NodeServiceCapability {
	var out []*spec.NodeServiceCapability
	for _, t := range a.Node {
		out = append(out, &spec.NodeServiceCapability{
			Type: &spec.NodeServiceCapability_Rpc{Rpc: &spec.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return out
}

// PluginCapabilities returns the answer of GetPluginCapabilities.
func (a Announcement) PluginCapabilities() []*spec.PluginCapability {
	var out []*spec.PluginCapability
	for _, t := range a.Services {
		out = append(out, &spec.PluginCapability{
			Type: &spec.PluginCapability_Service_{Service: &spec.PluginCapability_Service{Type: t}},
		})
	}
	for _, t := range a.Expansion {
		out = append(out, &spec.PluginCapability{
			Type: &spec.PluginCapability_VolumeExpansion_{VolumeExpansion: &spec.PluginCapability_VolumeExpansion{Type: t}},
		})
	}
	return out
}

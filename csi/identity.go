// Package csi serves the Container Storage Interface 1.13: Identity;
// Controller, GroupController and SnapshotMetadata over a volume.Backend (type
// Controller); Node over a node.Manager (type Node).
//
// A method checks and translates its request and runs it as an operation on
// named objects (operation.go). Checks are pure, ignore secrets and return
// errs.Invalid unless documented otherwise. An unknown id is not invalid: only
// the engine knows whether it exists.
//
// Secrets of controller requests are accepted and ignored: the engine has its
// own credentials. Those of NodeStageVolume go to the attacher. No secret is
// logged, stored or part of a fingerprint.
package csi

import (
	"context"
	"maps"
	"regexp"
	"slices"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// DefaultName is the default name of the plugin.
const DefaultName = "csi.cleat.dev"

const homePage = "https://github.com/cleatproject/cleat"

var domainName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

// CheckName validates a plugin name, which becomes part of paths and of names
// of Kubernetes objects.
func CheckName(name string) error {
	if len(name) > 63 || !domainName.MatchString(name) {
		return invalidf("driver name %q is not a domain name of at most 63 letters, digits, dashes and dots, as %s is", name, DefaultName)
	}
	return nil
}

// Identity is the Identity service; the caller sets all exported fields.
type Identity struct {
	spec.UnimplementedIdentityServer

	Name    string // valid for CheckName
	Version string // of the program
	Engine  string // as in the configuration
	// the same in all processes of a configuration
	Abilities  Abilities
	Deployment Deployment
}

// GetPluginInfo returns name and version.
func (i *Identity) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{
		Name: i.Name, VendorVersion: i.Version, Manifest: map[string]string{"url": homePage, "engine": i.Engine},
	}, nil
}

// GetPluginCapabilities returns the capabilities of all processes of the
// configuration together.
func (i *Identity) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	all := wrap(announce(i.Abilities, i.Deployment).services, func(t spec.PluginCapability_Service_Type) *spec.PluginCapability {
		return &spec.PluginCapability{Type: &spec.PluginCapability_Service_{Service: &spec.PluginCapability_Service{Type: t}}}
	})
	return &spec.GetPluginCapabilitiesResponse{Capabilities: append(all, &spec.PluginCapability{
		Type: &spec.PluginCapability_VolumeExpansion_{VolumeExpansion: &spec.PluginCapability_VolumeExpansion{Type: spec.PluginCapability_VolumeExpansion_ONLINE}},
	})}, nil
}

// Probe reports that the process serves calls. It ignores the state of the
// storage: a restart after a failed probe does not repair a disk.
func (i *Identity) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// Abilities are the abilities of an engine that decide what is announced. They
// follow from the configuration: a process that serves only Node opens no
// engine and announces the same, but for Groups of Ceph, which depend on the
// controller's librbd.
type Abilities struct {
	Snapshots, Clones, Groups, Deltas, Modify, Health bool
}

// AbilitiesOf returns the abilities of a backend.
func AbilitiesOf(b volume.Backend) Abilities {
	return Abilities{
		Snapshots: b.Snapshots != nil, Clones: b.Clones, Groups: b.Groups != nil && b.Snapshots != nil,
		Deltas: b.Deltas != nil && b.Snapshots != nil, Modify: b.Modifier != nil, Health: b.Health != nil,
	}
}

// Deployment describes how the plugin is deployed: the same for all processes
// of a configuration, except for Services and the values of Topology.
type Deployment struct {
	Services Services
	// ControllerPublish: the controller attaches volumes before a node uses
	// them.
	ControllerPublish bool
	// PerNode: each node runs its own controller. The sidecars that publish,
	// expand and modify need a single one, so these calls are not announced.
	PerNode bool
	// Topology of this node; empty: not announced.
	Topology map[string]string
	// PlacedVolumes: the storage has several places, each reachable from some
	// nodes (volume.Volume.Topology), and the engine chooses one for a volume.
	// Otherwise volumes are where the node is, or with MultiNode everywhere.
	// Requires MultiNode.
	PlacedVolumes bool
	// MultiNode: volumes are reachable from every node (volume.Backend), block
	// volumes from several at once. Node ids are those of FormatNodeID, unless
	// Static.
	MultiNode bool
	// SharedFS is volume.Backend.SharedFS, also of a process that serves only
	// Node: volumes have no device, and can be mounted in all modes. Requires
	// MultiNode.
	SharedFS string
	// Static: the driver creates no volumes and serves only Node. A locator in
	// the volume_context suffices to stage a volume; file systems can be mounted
	// read-only on several nodes. Requires MultiNode. Node ids are plain names.
	Static bool
	// StorageGrants: the storage admits exactly the nodes that have a grant
	// (volume.Granter). The publish context names no node, as DPF replaces the
	// attachments of volumes in use when it changes. Requires ControllerPublish.
	StorageGrants bool
	// PlainNodeIDs: a node id can also be a name without addresses, which the
	// storage reports later. The external-attacher of DPF passes the name of a
	// DPU. Requires MultiNode.
	PlainNodeIDs bool
	// Nodes are the ids that volumes can be published to, unless MultiNode.
	Nodes []string
	// MaxVolumes per node; 0: no limit.
	MaxVolumes int64
}

// Services are the services that a process serves beside Identity.
type Services struct {
	Controller, Node bool
}

// Check validates a deployment.
func (d Deployment) Check() error {
	switch {
	case !d.Services.Controller && !d.Services.Node:
		return invalidf("neither the controller nor the node service is to be served; name at least one")
	case d.PerNode && d.ControllerPublish:
		return invalidf("controller publish needs a single controller, but each node is to run its own")
	case d.Static && (d.Services.Controller || d.ControllerPublish || d.PerNode || !d.MultiNode):
		return invalidf("static volumes are reachable from all nodes, and have no controller service that creates or publishes them")
	case d.StorageGrants && !d.ControllerPublish:
		return invalidf("a storage that admits single nodes needs a controller that publishes volumes to them (ControllerPublishVolume)")
	case d.PlacedVolumes && !d.MultiNode:
		return invalidf("volumes that are placed by topology must be reachable from several nodes")
	case d.SharedFS != "" && !d.MultiNode:
		return invalidf("a shared file system must be reachable from several nodes")
	case d.PlainNodeIDs && (!d.MultiNode || d.Static):
		return invalidf("node ids without addresses are for volumes that several nodes reach, and that a controller publishes")
	case d.MultiNode && !d.Static && (d.PerNode || !d.ControllerPublish):
		return invalidf("volumes that several nodes reach need a single controller that publishes them (ControllerPublishVolume)")
	}
	for _, node := range d.Nodes {
		if node == "" || len(node) > maxNodeID {
			return invalidf("node id %q has %d bytes; 1 to %d are needed", node, len(node), maxNodeID)
		}
	}
	return checkTopology("topology", d.Topology)
}

// announcement includes calls that other processes serve.
type announcement struct {
	services   []spec.PluginCapability_Service_Type
	controller []spec.ControllerServiceCapability_RPC_Type
	segments   map[string]string // of all volumes and snapshots; empty: not announced
	placed     bool              // volumes have topologies of their own
}

func announce(a Abilities, d Deployment) announcement {
	var segments map[string]string
	if !d.MultiNode {
		segments = maps.Clone(d.Topology)
	}
	return announcement{
		services: offered([]offer[spec.PluginCapability_Service_Type]{
			{spec.PluginCapability_Service_CONTROLLER_SERVICE, !d.Static},
			{spec.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS, len(segments) > 0 || d.PlacedVolumes},
			{spec.PluginCapability_Service_GROUP_CONTROLLER_SERVICE, a.Groups},
			{spec.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE, a.Deltas},
			{spec.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS, len(segments) > 0 && a.Snapshots},
		}),
		controller: offered([]offer[spec.ControllerServiceCapability_RPC_Type]{
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
		}),
		segments: segments, placed: d.PlacedVolumes,
	}
}

type offer[T any] struct {
	capability T
	announced  bool
}

func offered[T any](all []offer[T]) (announced []T) {
	for _, o := range all {
		if o.announced {
			announced = append(announced, o.capability)
		}
	}
	return announced
}

func wrap[T, M any](all []T, message func(T) M) []M {
	out := make([]M, len(all))
	for i, one := range all {
		out[i] = message(one)
	}
	return out
}

// needs returns errs.Unsupported unless the capability is announced.
func (a announcement) needs(r proto.Message, t spec.ControllerServiceCapability_RPC_Type) error {
	if slices.Contains(a.controller, t) {
		return nil
	}
	return errs.Errorf(errs.Unsupported, "%s is not supported: this driver does not announce %s", callName(r), t)
}

// needsService is needs for the services beside Controller.
func (a announcement) needsService(r proto.Message, t spec.PluginCapability_Service_Type) error {
	if slices.Contains(a.services, t) {
		return nil
	}
	return errs.Errorf(errs.Unsupported, "%s is not supported: this driver does not announce %s", callName(r), t)
}

// accessibleTopology is where an object with these segments of its own is usable
// from; nil when no topology is announced.
func (a announcement) accessibleTopology(own map[string]string) []*spec.Topology {
	if a.placed {
		return topologyOf(own)
	}
	return topologyOf(a.segments)
}

func topologyOf(segments map[string]string) []*spec.Topology {
	if len(segments) == 0 {
		return nil
	}
	return []*spec.Topology{{Segments: maps.Clone(segments)}}
}

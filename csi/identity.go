// Package csi serves the Container Storage Interface 1.13: Identity; Controller,
// GroupController and SnapshotMetadata over any volume.Backend (type
// Controller); and Node over a node.Manager (type Node).
//
// A method checks its request and translates it to what the engine or the node
// takes, runs it as an operation on named objects (operation.go) and translates
// the result. The checks are pure, look at no secret and return errors of kind
// errs.Invalid unless they say otherwise. An id that is not ours is not invalid:
// only the engine knows whether it exists.
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

// DefaultName is the name of the plugin unless another one is configured.
const DefaultName = "csi.cleat.dev"

// homePage is part of the manifest.
const homePage = "https://github.com/cleatproject/cleat"

var domainName = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*$`)

// CheckName refuses an invalid plugin name. The name becomes part of paths and
// of names of Kubernetes objects.
func CheckName(name string) error {
	if len(name) > 63 || !domainName.MatchString(name) {
		return invalidf("driver name %q is not a domain name of at most 63 letters, digits, dashes and dots, as %s is", name, DefaultName)
	}
	return nil
}

// Identity is the Identity service. The caller sets all exported fields.
type Identity struct {
	spec.UnimplementedIdentityServer

	Name    string // as CheckName accepts it
	Version string // of the program
	Engine  string // its name in the configuration
	// Abilities and Deployment are the same in all processes of a
	// configuration, whichever services they serve.
	Abilities  Abilities
	Deployment Deployment
}

// GetPluginInfo returns name and version.
func (i *Identity) GetPluginInfo(context.Context, *spec.GetPluginInfoRequest) (*spec.GetPluginInfoResponse, error) {
	return &spec.GetPluginInfoResponse{
		Name: i.Name, VendorVersion: i.Version, Manifest: map[string]string{"url": homePage, "engine": i.Engine},
	}, nil
}

// GetPluginCapabilities returns what all processes of this configuration offer
// together.
func (i *Identity) GetPluginCapabilities(context.Context, *spec.GetPluginCapabilitiesRequest) (*spec.GetPluginCapabilitiesResponse, error) {
	all := wrap(announce(i.Abilities, i.Deployment).services, func(t spec.PluginCapability_Service_Type) *spec.PluginCapability {
		return &spec.PluginCapability{Type: &spec.PluginCapability_Service_{Service: &spec.PluginCapability_Service{Type: t}}}
	})
	return &spec.GetPluginCapabilitiesResponse{Capabilities: append(all, &spec.PluginCapability{
		Type: &spec.PluginCapability_VolumeExpansion_{VolumeExpansion: &spec.PluginCapability_VolumeExpansion{Type: spec.PluginCapability_VolumeExpansion_ONLINE}},
	})}, nil
}

// Probe reports that the process serves calls. The state of the storage is not
// part of it: a restart, which is what an orchestrator does after a failed
// probe, does not repair a disk.
func (i *Identity) Probe(context.Context, *spec.ProbeRequest) (*spec.ProbeResponse, error) {
	return &spec.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// Abilities are the abilities of an engine that decide what is announced. They
// follow from the configuration: a process that serves only Node opens no
// engine and announces the same.
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

// Deployment describes how the plugin is deployed. All processes of one
// configuration have the same, except for Services and the values of Topology.
type Deployment struct {
	Services Services
	// ControllerPublish is set where an orchestrator attaches volumes through
	// the controller before a node uses them.
	ControllerPublish bool
	// PerNode is set where each node runs its own controller. The sidecars that
	// publish, expand and modify through the controller work only with a single
	// one, so these calls are not announced.
	PerNode bool
	// Topology holds the segments of this node; empty: not announced.
	Topology map[string]string
	// Nodes are the ids of the nodes that volumes can be published to.
	Nodes []string
	// MaxVolumes is how many volumes a node can have; 0: no limit.
	MaxVolumes int64
}

// Services are the services that a process serves, beside Identity.
type Services struct {
	Controller, Node bool
}

// Check refuses a contradictory or malformed deployment.
func (d Deployment) Check() error {
	switch {
	case !d.Services.Controller && !d.Services.Node:
		return invalidf("neither the controller nor the node service is to be served; name at least one")
	case d.PerNode && d.ControllerPublish:
		return invalidf("controller publish needs a single controller, but each node is to run its own")
	}
	for _, node := range d.Nodes {
		if node == "" || len(node) > maxNodeID {
			return invalidf("node id %q has %d bytes; 1 to %d are needed", node, len(node), maxNodeID)
		}
	}
	return checkTopology("topology", d.Topology)
}

// announcement is what an orchestrator learns that it can call, whether or not
// this process serves it.
type announcement struct {
	services   []spec.PluginCapability_Service_Type
	controller []spec.ControllerServiceCapability_RPC_Type
	segments   map[string]string // topology of this node; empty: none is announced
}

func announce(a Abilities, d Deployment) announcement {
	return announcement{
		services: offered([]offer[spec.PluginCapability_Service_Type]{
			{spec.PluginCapability_Service_CONTROLLER_SERVICE, true},
			{spec.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS, len(d.Topology) > 0},
			{spec.PluginCapability_Service_GROUP_CONTROLLER_SERVICE, a.Groups},
			{spec.PluginCapability_Service_SNAPSHOT_METADATA_SERVICE, a.Deltas},
			{spec.PluginCapability_Service_SNAPSHOT_ACCESSIBILITY_CONSTRAINTS, len(d.Topology) > 0 && a.Snapshots},
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
		segments: maps.Clone(d.Topology),
	}
}

// offer is a capability and whether it is announced.
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

// wrap translates each element of a list to its message.
func wrap[T, M any](all []T, message func(T) M) []M {
	out := make([]M, len(all))
	for i, one := range all {
		out[i] = message(one)
	}
	return out
}

// needs returns an error of kind errs.Unsupported unless the capability that
// the request needs is announced.
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

// accessibleTopology is where volumes and snapshots of this node are usable
// from; nil when no topology is announced.
func (a announcement) accessibleTopology() []*spec.Topology {
	if len(a.segments) == 0 {
		return nil
	}
	return []*spec.Topology{{Segments: maps.Clone(a.segments)}}
}

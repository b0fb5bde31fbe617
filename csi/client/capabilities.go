package client

import (
	"context"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
)

// Info is a driver as it describes itself. The capabilities are the
// specification's own words, sorted.
type Info struct {
	Name       string            `json:"name"`
	Version    string            `json:"version"`
	Manifest   map[string]string `json:"manifest,omitempty"`
	Node       string            `json:"node,omitempty"`
	Topology   map[string]string `json:"topology,omitempty"`
	Plugin     []string          `json:"plugin"`
	Controller []string          `json:"controller"`
	Group      []string          `json:"group"`
	NodeRPCs   []string          `json:"nodeRPCs"`
}

// Short names for the words of the specification.
type (
	controllerRPC = csi.ControllerServiceCapability_RPC_Type
	nodeRPC       = csi.NodeServiceCapability_RPC_Type
	pluginService = csi.PluginCapability_Service_Type
	expansion     = csi.PluginCapability_VolumeExpansion_Type
)

// offers is what the driver announces.
type offers struct {
	plugin     map[pluginService]bool
	expansion  map[expansion]bool
	controller map[controllerRPC]bool
	groups     bool
	node       map[nodeRPC]bool
}

// ask reads identity and capabilities, once.
func (d *Driver) ask(ctx context.Context) error {
	info, err := call(ctx, d, "GetPluginInfo", d.identity.GetPluginInfo, &csi.GetPluginInfoRequest{})
	if err != nil {
		return err
	}
	if info.GetName() == "" {
		return errs.Errorf(errs.Unavailable, "the driver on %s answers GetPluginInfo without a name", d.config.Endpoint)
	}
	d.info = Info{Name: info.GetName(), Version: info.GetVendorVersion(), Manifest: info.GetManifest()}
	for _, ask := range []func(context.Context) error{d.askPlugin, d.askController, d.askGroup, d.askNode} {
		if err := ask(ctx); err != nil {
			return err
		}
	}
	for _, words := range [][]string{d.info.Plugin, d.info.Controller, d.info.Group, d.info.NodeRPCs} {
		slices.Sort(words)
	}
	return nil
}

func (d *Driver) askPlugin(ctx context.Context) error {
	d.offers.plugin, d.offers.expansion = map[pluginService]bool{}, map[expansion]bool{}
	answer, err := call(ctx, d, "GetPluginCapabilities", d.identity.GetPluginCapabilities, &csi.GetPluginCapabilitiesRequest{})
	if err != nil {
		return err
	}
	for _, c := range answer.GetCapabilities() {
		switch {
		case c.GetService() != nil:
			d.offers.plugin[c.GetService().GetType()] = true
			d.info.Plugin = append(d.info.Plugin, c.GetService().GetType().String())
		case c.GetVolumeExpansion() != nil:
			d.offers.expansion[c.GetVolumeExpansion().GetType()] = true
			d.info.Plugin = append(d.info.Plugin, "VolumeExpansion_"+c.GetVolumeExpansion().GetType().String())
		}
	}
	return nil
}

func (d *Driver) askController(ctx context.Context) error {
	d.offers.controller = map[controllerRPC]bool{}
	if !d.offers.plugin[csi.PluginCapability_Service_CONTROLLER_SERVICE] {
		return nil
	}
	answer, err := call(ctx, d, "ControllerGetCapabilities", d.controller.ControllerGetCapabilities, &csi.ControllerGetCapabilitiesRequest{})
	if err != nil {
		if codeOf(err) == codes.Unimplemented {
			return nil // announced for the plugin as a whole, served elsewhere
		}
		return err
	}
	for _, c := range answer.GetCapabilities() {
		d.offers.controller[c.GetRpc().GetType()] = true
		d.info.Controller = append(d.info.Controller, c.GetRpc().GetType().String())
	}
	return nil
}

func (d *Driver) askGroup(ctx context.Context) error {
	if !d.offers.plugin[csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE] {
		return nil
	}
	answer, err := call(ctx, d, "GroupControllerGetCapabilities", d.group.GroupControllerGetCapabilities, &csi.GroupControllerGetCapabilitiesRequest{})
	if err != nil {
		if codeOf(err) == codes.Unimplemented {
			return nil
		}
		return err
	}
	for _, c := range answer.GetCapabilities() {
		d.info.Group = append(d.info.Group, c.GetRpc().GetType().String())
		if c.GetRpc().GetType() == csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT {
			d.offers.groups = true
		}
	}
	return nil
}

// askNode leaves the node empty where the endpoint serves no node service.
func (d *Driver) askNode(ctx context.Context) error {
	d.offers.node = map[nodeRPC]bool{}
	answer, err := call(ctx, d, "NodeGetCapabilities", d.node.NodeGetCapabilities, &csi.NodeGetCapabilitiesRequest{})
	if err != nil {
		if codeOf(err) == codes.Unimplemented {
			return nil
		}
		return err
	}
	for _, c := range answer.GetCapabilities() {
		d.offers.node[c.GetRpc().GetType()] = true
		d.info.NodeRPCs = append(d.info.NodeRPCs, c.GetRpc().GetType().String())
	}
	node, err := call(ctx, d, "NodeGetInfo", d.node.NodeGetInfo, &csi.NodeGetInfoRequest{})
	if err != nil {
		if codeOf(err) == codes.Unimplemented {
			return nil // drivers without attach and topology may leave it out
		}
		return err
	}
	d.info.Node, d.info.Topology = node.GetNodeId(), node.GetAccessibleTopology().GetSegments()
	return nil
}

func (d *Driver) lacks(what string, capability fmt.Stringer) error {
	return errs.Errorf(errs.Unsupported, "driver %s cannot %s: it does not announce %s", d.info.Name, what, capability)
}

func (d *Driver) needController(what string, rpc controllerRPC) error {
	if !d.offers.controller[rpc] {
		return d.lacks(what, rpc)
	}
	return nil
}

func (d *Driver) needNode(what string, rpc nodeRPC) error {
	if !d.offers.node[rpc] {
		return d.lacks(what, rpc)
	}
	return nil
}

// here is the wish for a place that this node can reach; nil where the driver
// knows no places.
func (d *Driver) here() *csi.TopologyRequirement {
	if !d.offers.plugin[csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS] || len(d.info.Topology) == 0 {
		return nil
	}
	t := []*csi.Topology{{Segments: d.info.Topology}}
	return &csi.TopologyRequirement{Requisite: t, Preferred: t}
}

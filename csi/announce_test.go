package csi_test

import (
	"context"
	"io"
	"slices"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/volume"
)

// announced says what a Rig announces, by the name of the value.
func announced(t *testing.T, rig *plugin) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	c, err := rig.Controller.ControllerGetCapabilities(t.Context(), &spec.ControllerGetCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range c.GetCapabilities() {
		all[one.GetRpc().GetType().String()] = true
	}
	p, err := rig.Identity.GetPluginCapabilities(t.Context(), &spec.GetPluginCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range p.GetCapabilities() {
		all[one.GetService().GetType().String()] = true
	}
	g, err := rig.Group.GroupControllerGetCapabilities(t.Context(), &spec.GroupControllerGetCapabilitiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range g.GetCapabilities() {
		all[one.GetRpc().GetType().String()] = true
	}
	return all
}

// drain reads a stream to its end.
func drain[M any](stream interface{ Recv() (M, error) }, err error) error {
	for err == nil {
		_, err = stream.Recv()
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// calls are all RPCs that need a capability, with its name.
func calls(rig *plugin) []struct {
	name, needs string
	call        func(context.Context) error
} {
	c, g, m := rig.Controller, rig.Group, rig.Metadata
	return []struct {
		name, needs string
		call        func(context.Context) error
	}{
		{"CreateVolume", "CREATE_DELETE_VOLUME", func(x context.Context) error { _, err := c.CreateVolume(x, &spec.CreateVolumeRequest{}); return err }},
		{"DeleteVolume", "CREATE_DELETE_VOLUME", func(x context.Context) error { _, err := c.DeleteVolume(x, &spec.DeleteVolumeRequest{}); return err }},
		{"ControllerPublishVolume", "PUBLISH_UNPUBLISH_VOLUME", func(x context.Context) error {
			_, err := c.ControllerPublishVolume(x, &spec.ControllerPublishVolumeRequest{})
			return err
		}},
		{"ControllerUnpublishVolume", "PUBLISH_UNPUBLISH_VOLUME", func(x context.Context) error {
			_, err := c.ControllerUnpublishVolume(x, &spec.ControllerUnpublishVolumeRequest{})
			return err
		}},
		{"ListVolumes", "LIST_VOLUMES", func(x context.Context) error { _, err := c.ListVolumes(x, &spec.ListVolumesRequest{}); return err }},
		{"GetCapacity", "GET_CAPACITY", func(x context.Context) error { _, err := c.GetCapacity(x, &spec.GetCapacityRequest{}); return err }},
		{"CreateSnapshot", "CREATE_DELETE_SNAPSHOT", func(x context.Context) error {
			_, err := c.CreateSnapshot(x, &spec.CreateSnapshotRequest{})
			return err
		}},
		{"DeleteSnapshot", "CREATE_DELETE_SNAPSHOT", func(x context.Context) error {
			_, err := c.DeleteSnapshot(x, &spec.DeleteSnapshotRequest{})
			return err
		}},
		{"ListSnapshots", "LIST_SNAPSHOTS", func(x context.Context) error { _, err := c.ListSnapshots(x, &spec.ListSnapshotsRequest{}); return err }},
		{"GetSnapshot", "GET_SNAPSHOT", func(x context.Context) error { _, err := c.GetSnapshot(x, &spec.GetSnapshotRequest{}); return err }},
		{"ControllerExpandVolume", "EXPAND_VOLUME", func(x context.Context) error {
			_, err := c.ControllerExpandVolume(x, &spec.ControllerExpandVolumeRequest{})
			return err
		}},
		{"ControllerGetVolume", "GET_VOLUME", func(x context.Context) error {
			_, err := c.ControllerGetVolume(x, &spec.ControllerGetVolumeRequest{})
			return err
		}},
		{"ControllerModifyVolume", "MODIFY_VOLUME", func(x context.Context) error {
			_, err := c.ControllerModifyVolume(x, &spec.ControllerModifyVolumeRequest{})
			return err
		}},
		{"ControllerGetVolumeHealth", "GET_VOLUME_HEALTH", func(x context.Context) error {
			_, err := c.ControllerGetVolumeHealth(x, &spec.ControllerGetVolumeHealthRequest{})
			return err
		}},
		{"ControllerListVolumeHealth", "LIST_VOLUME_HEALTH", func(x context.Context) error {
			_, err := c.ControllerListVolumeHealth(x, &spec.ControllerListVolumeHealthRequest{})
			return err
		}},
		{"CreateVolumeGroupSnapshot", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT", func(x context.Context) error {
			_, err := g.CreateVolumeGroupSnapshot(x, &spec.CreateVolumeGroupSnapshotRequest{})
			return err
		}},
		{"DeleteVolumeGroupSnapshot", "GROUP_CONTROLLER_SERVICE", func(x context.Context) error {
			_, err := g.DeleteVolumeGroupSnapshot(x, &spec.DeleteVolumeGroupSnapshotRequest{})
			return err
		}},
		{"GetVolumeGroupSnapshot", "GROUP_CONTROLLER_SERVICE", func(x context.Context) error {
			_, err := g.GetVolumeGroupSnapshot(x, &spec.GetVolumeGroupSnapshotRequest{})
			return err
		}},
		{"GetMetadataAllocated", "SNAPSHOT_METADATA_SERVICE", func(x context.Context) error {
			return drain(m.GetMetadataAllocated(x, &spec.GetMetadataAllocatedRequest{}))
		}},
		{"GetMetadataDelta", "SNAPSHOT_METADATA_SERVICE", func(x context.Context) error {
			return drain(m.GetMetadataDelta(x, &spec.GetMetadataDeltaRequest{}))
		}},
	}
}

// What is announced is there, and what is not announced says so.
func TestAnnouncedMeansImplemented(t *testing.T) {
	bare := csi.Deployment{Services: csi.Services{Controller: true}}
	perNode := bare
	perNode.PerNode, perNode.Topology = true, fullDeployment().Topology
	for name, o := range map[string]options{
		"everything":   {},
		"bare engine":  {Deployment: &bare, Backend: func(b *volume.Backend) { *b = volume.Backend{Engine: b.Engine} }},
		"per node":     {Deployment: &perNode},
		"no snapshots": {Backend: func(b *volume.Backend) { b.Snapshots = nil }},
		"no groups":    {Backend: func(b *volume.Backend) { b.Groups = nil }},
		"no deltas":    {Backend: func(b *volume.Backend) { b.Deltas = nil }},
		"no health":    {Backend: func(b *volume.Backend) { b.Health = nil }},
		"no modifier":  {Backend: func(b *volume.Backend) { b.Modifier = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			rig := newPlugin(t, o)
			offered := announced(t, rig)
			for _, single := range []string{"EXPAND_VOLUME", "MODIFY_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"} {
				if name == "per node" && offered[single] {
					t.Errorf("%s is announced, but needs one controller for all nodes", single)
				}
			}
			for _, c := range calls(rig) {
				err := c.call(t.Context())
				if missing := status.Code(err) == codes.Unimplemented; missing == offered[c.needs] {
					t.Errorf("%s: %s is announced: %t, the call answers %v", c.name, c.needs, offered[c.needs], err)
				}
			}
		})
	}
}

// Capabilities that are not a call of their own show in others.
func TestEveryCapabilityIsCovered(t *testing.T) {
	rig := newPlugin(t, options{})
	var known []string
	for _, c := range calls(rig) {
		known = append(known, c.needs)
	}
	// Each of these has a test of what it promises.
	known = append(known, "CONTROLLER_SERVICE", "VOLUME_ACCESSIBILITY_CONSTRAINTS", "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS", "CLONE_VOLUME",
		"PUBLISH_READONLY", "LIST_VOLUMES_PUBLISHED_NODES", "SINGLE_NODE_MULTI_WRITER", "UNKNOWN" /* the service of an expansion entry */)
	for name := range announced(t, rig) {
		if !slices.Contains(known, name) {
			t.Errorf("%s is announced and no test asks for it", name)
		}
	}
	for _, values := range []map[int32]string{spec.ControllerServiceCapability_RPC_Type_name, spec.PluginCapability_Service_Type_name} {
		for _, name := range values {
			if name != "UNKNOWN" && !announced(t, rig)[name] {
				t.Errorf("%s is in the specification and not announced by an engine that can do everything", name)
			}
		}
	}
}

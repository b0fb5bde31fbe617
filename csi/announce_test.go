package csi_test

import (
	"errors"
	"io"
	"slices"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func announced(t *testing.T, rig *plugin) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	c := testkit.Value(rig.Controller.ControllerGetCapabilities(t.Context(), &spec.ControllerGetCapabilitiesRequest{}))(t)
	for _, one := range c.GetCapabilities() {
		all[one.GetRpc().GetType().String()] = true
	}
	p := testkit.Value(rig.Identity.GetPluginCapabilities(t.Context(), &spec.GetPluginCapabilitiesRequest{}))(t)
	for _, one := range p.GetCapabilities() {
		all[one.GetService().GetType().String()] = true
	}
	g := testkit.Value(rig.Group.GroupControllerGetCapabilities(t.Context(), &spec.GroupControllerGetCapabilitiesRequest{}))(t)
	for _, one := range g.GetCapabilities() {
		all[one.GetRpc().GetType().String()] = true
	}
	return all
}

func drain[M any](stream interface{ Recv() (M, error) }, err error) error {
	for err == nil {
		_, err = stream.Recv()
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// callEmpty sends a request without fields.
func callEmpty(t *testing.T, rig *plugin, method string) error {
	stream, err := rig.Conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/"+method)
	testkit.Must(t, err)
	testkit.Must(t, errors.Join(stream.SendMsg(&emptypb.Empty{}), stream.CloseSend()))
	for err == nil {
		err = stream.RecvMsg(&emptypb.Empty{})
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

var needs = map[string]string{
	"csi.v1.Controller/CreateVolume":                   "CREATE_DELETE_VOLUME",
	"csi.v1.Controller/DeleteVolume":                   "CREATE_DELETE_VOLUME",
	"csi.v1.Controller/ControllerPublishVolume":        "PUBLISH_UNPUBLISH_VOLUME",
	"csi.v1.Controller/ControllerUnpublishVolume":      "PUBLISH_UNPUBLISH_VOLUME",
	"csi.v1.Controller/ListVolumes":                    "LIST_VOLUMES",
	"csi.v1.Controller/GetCapacity":                    "GET_CAPACITY",
	"csi.v1.Controller/CreateSnapshot":                 "CREATE_DELETE_SNAPSHOT",
	"csi.v1.Controller/DeleteSnapshot":                 "CREATE_DELETE_SNAPSHOT",
	"csi.v1.Controller/ListSnapshots":                  "LIST_SNAPSHOTS",
	"csi.v1.Controller/GetSnapshot":                    "GET_SNAPSHOT",
	"csi.v1.Controller/ControllerExpandVolume":         "EXPAND_VOLUME",
	"csi.v1.Controller/ControllerGetVolume":            "GET_VOLUME",
	"csi.v1.Controller/ControllerModifyVolume":         "MODIFY_VOLUME",
	"csi.v1.Controller/ControllerGetVolumeHealth":      "GET_VOLUME_HEALTH",
	"csi.v1.Controller/ControllerListVolumeHealth":     "LIST_VOLUME_HEALTH",
	"csi.v1.GroupController/CreateVolumeGroupSnapshot": "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT",
	"csi.v1.GroupController/DeleteVolumeGroupSnapshot": "GROUP_CONTROLLER_SERVICE",
	"csi.v1.GroupController/GetVolumeGroupSnapshot":    "GROUP_CONTROLLER_SERVICE",
	"csi.v1.SnapshotMetadata/GetMetadataAllocated":     "SNAPSHOT_METADATA_SERVICE",
	"csi.v1.SnapshotMetadata/GetMetadataDelta":         "SNAPSHOT_METADATA_SERVICE",
}

// Unannounced calls return Unimplemented.
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
			for call, capability := range needs {
				err := callEmpty(t, rig, call)
				if missing := status.Code(err) == codes.Unimplemented; missing == offered[capability] {
					t.Errorf("%s: %s is announced: %t, the call answers %v", call, capability, offered[capability], err)
				}
			}
		})
	}
}

// Some capabilities are not calls but fields of others.
func TestEveryCapabilityIsCovered(t *testing.T) {
	rig := newPlugin(t, options{})
	var known []string
	for _, capability := range needs {
		known = append(known, capability)
	}
	// These have tests of their own.
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

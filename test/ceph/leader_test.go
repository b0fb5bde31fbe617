//go:build ceph

package ceph

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/test/testkit"
)

const (
	nodeOne = "node-1@192.0.2.1"
	nodeTwo = "node-2@192.0.2.2"
)

func (r *rig) fence(machine, verb, block string) {
	r.Helper()
	out, err := exec.CommandContext(r.Context(), shared.cleat, "fence", verb, block, "--endpoint", "unix://"+r.addons(machine)).CombinedOutput()
	if err != nil {
		r.Fatalf("cleat fence %s %s: %v\n%s", verb, block, err, out)
	}
}

func publish(v *spec.Volume, node string) *spec.ControllerPublishVolumeRequest {
	return &spec.ControllerPublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: node, VolumeCapability: mounted(), VolumeContext: v.GetVolumeContext()}
}

func (r *rig) refused(err error, code codes.Code, words ...string) {
	r.Helper()
	if status.Code(err) != code {
		r.Errorf("got %v, want %v", err, code)
	}
	for _, w := range words {
		if !strings.Contains(status.Convert(err).Message(), w) {
			r.Errorf("%v does not say %q", err, w)
		}
	}
}

// A controller that starts on another machine, without any file of the first
// one, has its volumes, grants and fences.
func TestStateSurvivesTheMachineOfTheController(t *testing.T) {
	for engine, rig := range engines() {
		t.Run(engine, func(t *testing.T) { rig(t).survives(t) })
	}
}

func (r *rig) survives(t *testing.T) {
	ctx := testkit.Context(t)
	first := r.controller("one")
	c := spec.NewControllerClient(first.Conn)
	v := testkit.Value(c.CreateVolume(ctx, create("a", 16*mib)))(t).GetVolume()
	w := testkit.Value(c.CreateVolume(ctx, create("b", 16*mib)))(t).GetVolume()
	testkit.Value(c.ControllerPublishVolume(ctx, publish(v, nodeOne)))(t)
	_, err := c.ControllerPublishVolume(ctx, publish(v, nodeTwo))
	r.refused(err, codes.FailedPrecondition, "node-1")
	_, err = c.ControllerPublishVolume(ctx, publish(v, "node-1"))
	r.refused(err, codes.NotFound)
	r.fence("one", "add", "192.0.2.1")
	first.Process.Kill()

	second := r.controller("two")
	c = spec.NewControllerClient(second.Conn)
	list := testkit.Value(c.ListVolumes(ctx, &spec.ListVolumesRequest{}))(t)
	published := map[string][]string{}
	for _, e := range list.GetEntries() {
		published[e.GetVolume().GetVolumeId()] = e.GetStatus().GetPublishedNodeIds()
	}
	if len(published) != 2 || !slices.Equal(published[v.GetVolumeId()], []string{nodeOne}) || len(published[w.GetVolumeId()]) != 0 {
		t.Errorf("published to %v", published)
	}
	again := testkit.Value(c.CreateVolume(ctx, create("a", 16*mib)))(t).GetVolume()
	if again.GetVolumeId() != v.GetVolumeId() {
		t.Errorf("volume a is %s, and now %s", v.GetVolumeId(), again.GetVolumeId())
	}
	_, err = c.ControllerPublishVolume(ctx, publish(w, nodeOne))
	r.refused(err, codes.FailedPrecondition, "fenced", "192.0.2.1")
	if out := testkit.Value(shared.Command("osd", "blocklist", "ls"))(t); !strings.Contains(out, "192.0.2.1:0/0") {
		t.Errorf("the cluster's blocklist: %s", out)
	}
	// Takeover: the fenced node's grant is revoked, another node gets the volume.
	testkit.Value(c.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: nodeOne}))(t)
	testkit.Value(c.ControllerPublishVolume(ctx, publish(v, nodeTwo)))(t)
	r.fence("two", "rm", "192.0.2.1")
	testkit.Value(c.ControllerPublishVolume(ctx, publish(w, nodeOne)))(t)
	if out := testkit.Value(shared.Command("osd", "blocklist", "ls"))(t); strings.Contains(out, "192.0.2.1:0/0") {
		t.Errorf("after unfence the cluster's blocklist is %s", out)
	}
	if text := first.Log.String() + second.Log.String(); strings.Contains(text, shared.AdminKey()) {
		t.Error("a log has the key")
	}
}

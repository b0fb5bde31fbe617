package csi

import (
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const poolUUID = "0f0e0d0c-0b0a-4908-8706-050403020100"

func locator() map[string]string {
	return access.Encode(access.File{Pool: poolUUID, Name: "volumes/v"})
}

func soundStage() *spec.NodeStageVolumeRequest {
	return &spec.NodeStageVolumeRequest{
		VolumeId: "v", StagingTargetPath: "/stage", VolumeCapability: mountCap(), VolumeContext: locator(),
		Secrets: map[string]string{"key": strings.Repeat("s", 9000)},
	}
}

func soundPublish() *spec.NodePublishVolumeRequest {
	return &spec.NodePublishVolumeRequest{
		VolumeId: "v", StagingTargetPath: "/stage", TargetPath: "/target", VolumeCapability: mountCap(), VolumeContext: locator(),
	}
}

func TestNodeStageVolume(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*spec.NodeStageVolumeRequest)
		kind errs.Kind
	}{
		"as it should be": {func(*spec.NodeStageVolumeRequest) {}, ""},
		"foreign id":      {func(r *spec.NodeStageVolumeRequest) { r.VolumeId = "../../etc/passwd" }, ""},
		"no context":      {func(r *spec.NodeStageVolumeRequest) { r.VolumeContext = nil }, ""},
		"no id":           {func(r *spec.NodeStageVolumeRequest) { r.VolumeId = "" }, errs.Invalid},
		"long id":         {func(r *spec.NodeStageVolumeRequest) { r.VolumeId = strings.Repeat("v", 129) }, errs.Invalid},
		"no path":         {func(r *spec.NodeStageVolumeRequest) { r.StagingTargetPath = "" }, errs.Invalid},
		"relative path":   {func(r *spec.NodeStageVolumeRequest) { r.StagingTargetPath = "a" }, errs.Invalid},
		"traversal":       {func(r *spec.NodeStageVolumeRequest) { r.StagingTargetPath = "/a/../b" }, errs.Invalid},
		"no capability":   {func(r *spec.NodeStageVolumeRequest) { r.VolumeCapability = nil }, errs.Invalid},
		"evil locator":    {func(r *spec.NodeStageVolumeRequest) { r.VolumeContext["file"] = "../../etc/passwd" }, errs.Invalid},
		"foreign locator": {func(r *spec.NodeStageVolumeRequest) { r.VolumeContext["targetType"] = "iscsi" }, errs.Invalid},
		"evil overlay":    {func(r *spec.NodeStageVolumeRequest) { r.PublishContext = map[string]string{"file": "/etc/shadow"} }, errs.Invalid},
		"large context":   {func(r *spec.NodeStageVolumeRequest) { r.VolumeContext["x"] = strings.Repeat("x", 4096) }, errs.Invalid},
		"large publish": {func(r *spec.NodeStageVolumeRequest) {
			r.PublishContext = map[string]string{"x": strings.Repeat("x", 4096)}
		}, errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			r := soundStage()
			c.edit(r)
			_, err := new(Node).stageRequest(r)
			wantKind(t, err, c.kind)
		})
	}
}

func TestNodePublishVolume(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*spec.NodePublishVolumeRequest)
		kind errs.Kind
	}{
		"as it should be":   {func(*spec.NodePublishVolumeRequest) {}, ""},
		"no id":             {func(r *spec.NodePublishVolumeRequest) { r.VolumeId = "" }, errs.Invalid},
		"no target":         {func(r *spec.NodePublishVolumeRequest) { r.TargetPath = "" }, errs.Invalid},
		"relative target":   {func(r *spec.NodePublishVolumeRequest) { r.TargetPath = "target" }, errs.Invalid},
		"root as target":    {func(r *spec.NodePublishVolumeRequest) { r.TargetPath = "/" }, errs.Invalid},
		"relative staging":  {func(r *spec.NodePublishVolumeRequest) { r.StagingTargetPath = "stage" }, errs.Invalid},
		"target is staging": {func(r *spec.NodePublishVolumeRequest) { r.TargetPath = "/stage" }, errs.Invalid},
		"target hides":      {func(r *spec.NodePublishVolumeRequest) { r.StagingTargetPath = "/target/stage" }, errs.Invalid},
		"target beside":     {func(r *spec.NodePublishVolumeRequest) { r.StagingTargetPath = "/target-stage" }, ""},
		"no capability":     {func(r *spec.NodePublishVolumeRequest) { r.VolumeCapability = nil }, errs.Invalid},
		"no staging":        {func(r *spec.NodePublishVolumeRequest) { r.StagingTargetPath = "" }, errs.Precondition},
		"foreign locator":   {func(r *spec.NodePublishVolumeRequest) { r.VolumeContext["targetType"] = "iscsi" }, errs.Invalid},
		"odd ephemeral":     {func(r *spec.NodePublishVolumeRequest) { r.VolumeContext[keyEphemeral] = "maybe" }, errs.Invalid},
		"ephemeral block": {func(r *spec.NodePublishVolumeRequest) {
			r.VolumeContext[keyEphemeral], r.VolumeCapability = "true", blockCap()
		}, errs.Invalid},
		"ephemeral Size": {func(r *spec.NodePublishVolumeRequest) {
			r.VolumeContext = map[string]string{keyEphemeral: "true", "Size": "1Gi"}
		}, errs.Invalid},
		"ephemeral size": {func(r *spec.NodePublishVolumeRequest) {
			r.VolumeContext = map[string]string{keyEphemeral: "true", "size": "much"}
		}, errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			r := soundPublish()
			c.edit(r)
			_, err := inlineNode().publishRequest(r)
			wantKind(t, err, c.kind)
		})
	}
}

func inlineNode() *Node { return NewNode(NodeConfig{InlineParameters: []string{"provisioning"}}) }

// The error of a wrong attribute knows those that are not parameters of the
// engine.
func TestWrongInlineAttribute(t *testing.T) {
	for key, want := range map[string]string{
		"sise": `did you mean "size"?`, "SIZE": "known are size", "fstype": `"fsType"`, "provisionin": `"provisioning"`,
		"somethingElse": "known are size, fsType, provisioning",
	} {
		r := soundPublish()
		r.VolumeContext = map[string]string{keyEphemeral: "true", key: "1Gi"}
		_, err := inlineNode().publishRequest(r)
		if wantKind(t, err, errs.Invalid); err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", key, err, want)
		}
	}
}

func TestEphemeralVolume(t *testing.T) {
	r := soundPublish()
	r.StagingTargetPath = ""
	r.VolumeContext = map[string]string{
		keyEphemeral: "true", "size": "64Mi", "fsType": "xfs", "provisioning": "thick", "csi.storage.k8s.io/pod.name": "p",
	}
	before := proto.Clone(r)
	got := testkit.Value(inlineNode().publishRequest(r))(t)
	want := &node.InlineVolume{Size: volume.SizeRange{Required: 64 << 20}, FSType: "xfs", Parameters: map[string]string{"provisioning": "thick"}}
	if d := cmp.Diff(want, got.Inline); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if !proto.Equal(before, r) {
		t.Error("the request was changed")
	}
}

func TestReadOnlyGrant(t *testing.T) {
	for granted, want := range map[string]bool{"true": true, "": false} {
		r := soundPublish()
		r.PublishContext = map[string]string{keyGrantedTo: "n", keyGrantedReadOnly: granted}
		if p, err := new(Node).publishRequest(r); err != nil || p.ReadOnly != want {
			t.Errorf("%q: read-only is %t, %v", granted, p.ReadOnly, err)
		}
	}
}

func TestFormatOfAStage(t *testing.T) {
	multi := &Node{config: NodeConfig{Deployment: Deployment{MultiNode: true}}}
	sharing := &Node{config: NodeConfig{Deployment: Deployment{MultiNode: true, SharedFS: "ceph"}}}
	xfs := mountCap(func(m *mountVolume) { m.FsType = "xfs" })
	for name, c := range map[string]struct {
		service    *Node
		capability *spec.VolumeCapability
		key        string
		fsType     string
		format     bool
		kind       errs.Kind
	}{
		"no key":       {multi, mountCap(), "", "", false, ""},
		"type of key":  {multi, mountCap(), "btrfs", "btrfs", true, ""},
		"same type":    {multi, xfs, "xfs", "xfs", true, ""},
		"other type":   {multi, xfs, "ext4", "", false, errs.Invalid},
		"unknown type": {multi, mountCap(), "ntfs", "", false, errs.Invalid},
		"block":        {multi, blockCap(), "ext4", "", false, ""},
		"local engine": {&Node{}, mountCap(), "ext4", "", false, ""},
		"shared":       {sharing, mountCap(func(m *mountVolume) { m.FsType = "ceph" }), "ext4", "", false, ""},
		"shared, xfs":  {sharing, xfs, "", "", false, errs.Invalid},
		"shared block": {sharing, blockCap(), "", "", false, errs.Invalid},
	} {
		r := soundStage()
		r.VolumeCapability = c.capability
		r.VolumeContext[access.KeyFormat] = c.key
		got, err := c.service.stageRequest(r)
		if wantKind(t, err, c.kind); err == nil && (got.Format != c.format || got.Capability.FSType != c.fsType || got.Secrets["key"] == "") {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

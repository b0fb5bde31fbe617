package request

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const pool = "0f0e0d0c-0b0a-4908-8706-050403020100"

func locator() map[string]string {
	return access.Encode(access.File{Pool: pool, Name: "volumes/v"})
}

func stageRequest() *csi.NodeStageVolumeRequest {
	return &csi.NodeStageVolumeRequest{
		VolumeId: "v", StagingTargetPath: "/stage", VolumeCapability: mountCap(), VolumeContext: locator(),
		Secrets: map[string]string{"key": strings.Repeat("s", 9000)},
	}
}

func publishRequest() *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{
		VolumeId: "v", StagingTargetPath: "/stage", TargetPath: "/target", VolumeCapability: mountCap(), VolumeContext: locator(),
	}
}

func TestNodeStageVolume(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*csi.NodeStageVolumeRequest)
		kind errs.Kind
	}{
		"as it should be": {func(*csi.NodeStageVolumeRequest) {}, ""},
		"foreign id":      {func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "../../etc/passwd" }, ""},
		"no context":      {func(r *csi.NodeStageVolumeRequest) { r.VolumeContext = nil }, ""},
		"no id":           {func(r *csi.NodeStageVolumeRequest) { r.VolumeId = "" }, errs.Invalid},
		"long id":         {func(r *csi.NodeStageVolumeRequest) { r.VolumeId = strings.Repeat("v", 129) }, errs.Invalid},
		"no path":         {func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "" }, errs.Invalid},
		"relative path":   {func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "a" }, errs.Invalid},
		"traversal":       {func(r *csi.NodeStageVolumeRequest) { r.StagingTargetPath = "/a/../b" }, errs.Invalid},
		"no capability":   {func(r *csi.NodeStageVolumeRequest) { r.VolumeCapability = nil }, errs.Invalid},
		"evil locator":    {func(r *csi.NodeStageVolumeRequest) { r.VolumeContext["file"] = "../../etc/passwd" }, errs.Invalid},
		"foreign locator": {func(r *csi.NodeStageVolumeRequest) { r.VolumeContext["targetType"] = "iscsi" }, errs.Invalid},
		"evil overlay":    {func(r *csi.NodeStageVolumeRequest) { r.PublishContext = map[string]string{"file": "/etc/shadow"} }, errs.Invalid},
		"large context":   {func(r *csi.NodeStageVolumeRequest) { r.VolumeContext["x"] = strings.Repeat("x", 4096) }, errs.Invalid},
		"large publish": {func(r *csi.NodeStageVolumeRequest) {
			r.PublishContext = map[string]string{"x": strings.Repeat("x", 4096)}
		}, errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			r := stageRequest()
			c.edit(r)
			_, err := NodeStageVolume(r)
			wantKind(t, err, c.kind)
		})
	}
}

func TestNodePublishVolume(t *testing.T) {
	for name, c := range map[string]struct {
		edit func(*csi.NodePublishVolumeRequest)
		kind errs.Kind
	}{
		"as it should be":   {func(*csi.NodePublishVolumeRequest) {}, ""},
		"no id":             {func(r *csi.NodePublishVolumeRequest) { r.VolumeId = "" }, errs.Invalid},
		"no target":         {func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "" }, errs.Invalid},
		"relative target":   {func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "target" }, errs.Invalid},
		"root as target":    {func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "/" }, errs.Invalid},
		"relative staging":  {func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "stage" }, errs.Invalid},
		"target is staging": {func(r *csi.NodePublishVolumeRequest) { r.TargetPath = "/stage" }, errs.Invalid},
		"target hides":      {func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "/target/stage" }, errs.Invalid},
		"target beside":     {func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "/target-stage" }, ""},
		"no capability":     {func(r *csi.NodePublishVolumeRequest) { r.VolumeCapability = nil }, errs.Invalid},
		"no staging":        {func(r *csi.NodePublishVolumeRequest) { r.StagingTargetPath = "" }, errs.Precondition},
		"odd ephemeral":     {func(r *csi.NodePublishVolumeRequest) { r.VolumeContext[keyEphemeral] = "maybe" }, errs.Invalid},
		"ephemeral block": {func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext[keyEphemeral], r.VolumeCapability = "true", blockCap()
		}, errs.Invalid},
		"ephemeral Size": {func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext = map[string]string{keyEphemeral: "true", "Size": "1Gi"}
		}, errs.Invalid},
		"ephemeral size": {func(r *csi.NodePublishVolumeRequest) {
			r.VolumeContext = map[string]string{keyEphemeral: "true", "size": "much"}
		}, errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			r := publishRequest()
			c.edit(r)
			_, err := NodePublishVolume(r)
			wantKind(t, err, c.kind)
		})
	}
}

func TestEphemeralVolume(t *testing.T) {
	r := publishRequest()
	r.StagingTargetPath = ""
	r.VolumeContext = map[string]string{
		keyEphemeral: "true", "size": "64Mi", "fsType": "xfs", "provisioning": "thick", "csi.storage.k8s.io/pod.name": "p",
	}
	before := proto.Clone(r)
	got, err := NodePublishVolume(r)
	if err != nil {
		t.Fatal(err)
	}
	want := &Ephemeral{Size: volume.SizeRange{Required: 64 << 20}, FSType: "xfs", Parameters: map[string]string{"provisioning": "thick"}}
	if d := cmp.Diff(want, got.Ephemeral); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got.Locator != nil || !proto.Equal(before, r) {
		t.Errorf("locator %v, request changed: %t", got.Locator, !proto.Equal(before, r))
	}
}

func TestPublishReadOnly(t *testing.T) {
	for name, edit := range map[string]func(*csi.NodePublishVolumeRequest){
		"asked for": func(r *csi.NodePublishVolumeRequest) { r.Readonly = true },
		"by mode": func(r *csi.NodePublishVolumeRequest) {
			r.VolumeCapability = withMode(mountCap(), csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY)
		},
		"by grant": func(r *csi.NodePublishVolumeRequest) { r.PublishContext = GrantContext("n", true) },
	} {
		r := publishRequest()
		edit(r)
		if p, err := NodePublishVolume(r); err != nil || !p.ReadOnly {
			t.Errorf("%s: read-only is %t, %v", name, p.ReadOnly, err)
		}
	}
	r := publishRequest()
	r.PublishContext = GrantContext("n", false)
	if p, err := NodePublishVolume(r); err != nil || p.ReadOnly || GrantedTo(p.PublishContext) != "n" {
		t.Errorf("writable grant: %+v, %v", p, err)
	}
}

// An unknown volume is answered before the form of a path, so that form is a
// step of its own.
func TestPathsAreCheckedLater(t *testing.T) {
	unpublish, err := NodeUnpublishVolume(&csi.NodeUnpublishVolumeRequest{VolumeId: "v", TargetPath: "some/path"})
	wantKind(t, err, "")
	wantKind(t, unpublish.CheckPaths(), errs.Invalid)
	unstage, err := NodeUnstageVolume(&csi.NodeUnstageVolumeRequest{VolumeId: "v", StagingTargetPath: "some/path"})
	wantKind(t, err, "")
	wantKind(t, unstage.CheckPaths(), errs.Invalid)
	_, err = NodeGetVolumeStats(&csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "some/path"})
	wantKind(t, err, "")
	_, err = NodeExpandVolume(&csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: "some/path"})
	wantKind(t, err, "")
}

func TestNodeMissingFields(t *testing.T) {
	long := "/" + strings.Repeat("p/", 2100)
	for name, call := range map[string]func() error{
		"unstage without id": func() error {
			_, err := NodeUnstageVolume(&csi.NodeUnstageVolumeRequest{StagingTargetPath: "/s"})
			return err
		},
		"unstage without path": func() error { _, err := NodeUnstageVolume(&csi.NodeUnstageVolumeRequest{VolumeId: "v"}); return err },
		"unpublish without id": func() error {
			_, err := NodeUnpublishVolume(&csi.NodeUnpublishVolumeRequest{TargetPath: "/s"})
			return err
		},
		"unpublish without target": func() error {
			_, err := NodeUnpublishVolume(&csi.NodeUnpublishVolumeRequest{VolumeId: "v"})
			return err
		},
		"stats without id": func() error {
			_, err := NodeGetVolumeStats(&csi.NodeGetVolumeStatsRequest{VolumePath: "/s"})
			return err
		},
		"stats without path": func() error { _, err := NodeGetVolumeStats(&csi.NodeGetVolumeStatsRequest{VolumeId: "v"}); return err },
		"stats with a long path": func() error {
			_, err := NodeGetVolumeStats(&csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: long})
			return err
		},
		"expand without id":   func() error { _, err := NodeExpandVolume(&csi.NodeExpandVolumeRequest{VolumePath: "/s"}); return err },
		"expand without path": func() error { _, err := NodeExpandVolume(&csi.NodeExpandVolumeRequest{VolumeId: "v"}); return err },
		"expand to less": func() error {
			_, err := NodeExpandVolume(&csi.NodeExpandVolumeRequest{
				VolumeId: "v", VolumePath: "/s", CapacityRange: &csi.CapacityRange{RequiredBytes: 2, LimitBytes: 1},
			})
			return err
		},
		"expand for many nodes": func() error {
			_, err := NodeExpandVolume(&csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: "/s", VolumeCapability: withMode(mountCap(), 5)})
			return err
		},
		"health without id": func() error { _, err := NodeGetVolumeHealth(&csi.NodeGetVolumeHealthRequest{}); return err },
		"health with a long path": func() error {
			_, err := NodeGetVolumeHealth(&csi.NodeGetVolumeHealthRequest{VolumeId: "v", VolumePublishPath: long})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) { wantKind(t, call(), errs.Invalid) })
	}
}

package client_test

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func everyStep(o *other) *other {
	o.controller = append(o.controller, csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	o.nodeRPCs = append(o.nodeRPCs, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_EXPAND_VOLUME)
	return o
}

func attachSteps() []string {
	return []string{"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume"}
}

func TestAttachWalksAllSteps(t *testing.T) {
	o := everyStep(newOther())
	d, config := start(t, o)
	ctx, dir := t.Context(), t.TempDir()
	testkit.Value(d.Create(ctx, sized("v")))(t)
	one, two := filepath.Join(dir, "one"), filepath.Join(dir, "two")
	for _, target := range []string{one, two, one} { // the third is a repeat
		testkit.Value(d.Attach(ctx, client.AttachRequest{Volume: "v", Target: target}))(t)
	}
	_, err := d.Attach(ctx, client.AttachRequest{Volume: "v", Target: one, ReadOnly: true})
	wantKind(t, err, errs.Exists, "read-only")
	_, err = d.Attach(ctx, client.AttachRequest{Volume: "v", Target: filepath.Join(dir, "three"), Capability: &client.Capability{Block: true}})
	wantKind(t, err, errs.Precondition, one)
	wantKind(t, d.Detach(ctx, "v", "/elsewhere"), errs.NotFound, "/elsewhere", one, two)

	testkit.Must(t, d.Detach(ctx, "v", one))
	if got := o.made("NodeUnstageVolume"); len(got) != 0 {
		t.Error("unstaged while another target was there")
	}
	testkit.Must(t, d.Detach(ctx, "v", ""))
	want := []string{
		"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume",
		"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume",
		"ControllerPublishVolume", "NodeStageVolume", "NodePublishVolume",
		"NodeUnpublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume", "ControllerUnpublishVolume",
	}
	if diff := cmp.Diff(want, o.made(attachSteps()...)); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	left, err := os.ReadDir(filepath.Join(config.StateDir, "staging"))
	if err != nil || len(left) != 0 {
		t.Errorf("left in the staging directory: %v, %v", left, err)
	}
}

// Grants of a driver restarted without ControllerPublishVolume do not block a
// detach.
func TestDetachAfterRestartWithoutPublish(t *testing.T) {
	o := everyStep(newOther())
	d, config := start(t, o)
	testkit.Value(d.Create(t.Context(), sized("v")))(t)
	testkit.Value(d.Attach(t.Context(), client.AttachRequest{Volume: "v", Target: filepath.Join(t.TempDir(), "v")}))(t)
	o.controller = slices.DeleteFunc(o.controller, func(c csi.ControllerServiceCapability_RPC_Type) bool {
		return c == csi.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME
	})
	testkit.Must(t, dial(t, config).Detach(t.Context(), "v", ""))
	if got := o.made("NodeUnstageVolume", "ControllerUnpublishVolume"); !slices.Equal(got, []string{"NodeUnstageVolume"}) {
		t.Errorf("calls: %v", got)
	}
}

// Existing files at a target are neither hidden nor lost.
func TestTargets(t *testing.T) {
	d, _ := start(t, newOther())
	ctx, dir := t.Context(), t.TempDir()
	for _, req := range []client.CreateRequest{sized("v"), {Name: "b", Size: volume.SizeRange{Required: mib}, Capability: &client.Capability{Block: true}}} {
		testkit.Value(d.Create(ctx, req))(t)
	}
	full, file := filepath.Join(dir, "full"), filepath.Join(dir, "full", "file")
	testkit.Must(t, os.Mkdir(full, 0o700))
	testkit.Must(t, os.WriteFile(file, []byte("precious"), 0o600))
	for _, bad := range []client.AttachRequest{
		{Volume: "v", Target: full}, {Volume: "v", Target: file}, {Volume: "b", Target: file}, {Volume: "b", Target: full},
		{Volume: "v", Target: "relative"}, {Volume: "v", Target: "/a/../b"}, {Volume: "v", Target: "/"}, {Volume: "v", Target: "/a\x00b"}, {Volume: "v"},
	} {
		_, err := d.Attach(ctx, bad)
		wantKind(t, err, errs.Invalid)
	}
	empty := filepath.Join(dir, "empty")
	testkit.Must(t, errors.Join(os.Mkdir(empty, 0o700), os.Chmod(empty, 0o731), os.Chown(empty, 12, 34)))
	before := stat(t, empty)
	device := filepath.Join(dir, "device")
	for volume, target := range map[string]string{"v": empty, "b": device} {
		testkit.Value(d.Attach(ctx, client.AttachRequest{Volume: volume, Target: target}))(t)
		testkit.Must(t, d.Detach(ctx, volume, ""))
	}
	if after := stat(t, empty); after != before {
		t.Errorf("the directory that was there came back as %v, was %v", after, before)
	}
	if _, err := os.Lstat(device); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a target that the driver made is still there: %v", err)
	}
}

func TestRefusedAttachIsReverted(t *testing.T) {
	o := everyStep(newOther())
	d, _ := start(t, o)
	ctx := t.Context()
	testkit.Value(d.Create(ctx, sized("v")))(t)
	_, err := d.Attach(ctx, client.AttachRequest{Volume: "v", Target: filepath.Join(t.TempDir(), "forbidden")})
	wantKind(t, err, errs.Denied, "not there")
	if err := d.Delete(ctx, "v"); err != nil {
		t.Errorf("after a refused attach: %v", err)
	}
}

func TestMountFlagsAreNotInErrors(t *testing.T) {
	d, _ := start(t, everyStep(newOther()))
	ctx, dir := t.Context(), t.TempDir()
	testkit.Value(d.Create(ctx, sized("v")))(t)
	attach := func(target string, flags ...string) error {
		_, err := d.Attach(ctx, client.AttachRequest{Volume: "v", Target: filepath.Join(dir, target), Capability: &client.Capability{FSType: "ext4", MountFlags: flags}})
		return err
	}
	testkit.Must(t, attach("one", "password=hunter2"))
	err := attach("two")
	wantKind(t, err, errs.Precondition, "another capability (mount ext4, single-node-writer)")
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error has a mount flag: %v", err)
	}
}

// At the controller, then on the node, or there at the next attach.
func TestExpand(t *testing.T) {
	o := everyStep(newOther())
	d, _ := start(t, o)
	ctx, target := t.Context(), filepath.Join(t.TempDir(), "v")
	v, err := d.Create(ctx, sized("v"))
	testkit.Must(t, err)
	attach := func() {
		t.Helper()
		testkit.Value(d.Attach(ctx, client.AttachRequest{Volume: "v", Target: target}))(t)
	}
	grown := func(want int64) {
		t.Helper()
		o.mu.Lock()
		defer o.mu.Unlock()
		if got := o.volumes[v.ID].grown; got != want {
			t.Errorf("the node got the size %d, want %d", got, want)
		}
	}
	if got, err := d.Expand(ctx, "v", volume.SizeRange{Required: 2 * mib}); err != nil || got.Size != 2*mib {
		t.Fatalf("%+v, %v", got, err)
	}
	grown(0)
	attach()
	grown(2 * mib)
	testkit.Value(d.Expand(ctx, "v", volume.SizeRange{Required: 3 * mib}))(t)
	grown(3 * mib)
	_, err = d.Expand(ctx, "v", volume.SizeRange{})
	wantKind(t, err, errs.Invalid)
}

func TestExpandWhereItIsPossible(t *testing.T) {
	for name, c := range map[string]struct {
		change   func(*other)
		attached bool
		want     errs.Kind
	}{
		"offline only, attached":   {func(o *other) { o.expansion = csi.PluginCapability_VolumeExpansion_OFFLINE }, true, errs.Precondition},
		"offline only, detached":   {func(o *other) { o.expansion = csi.PluginCapability_VolumeExpansion_OFFLINE }, false, ""},
		"online, attached":         {func(o *other) { o.expansion = csi.PluginCapability_VolumeExpansion_ONLINE }, true, ""},
		"on the node only":         {func(o *other) { o.controller = o.controller[:1] }, true, ""},
		"on the node only, absent": {func(o *other) { o.controller = o.controller[:1] }, false, errs.Precondition},
	} {
		t.Run(name, func(t *testing.T) {
			o := everyStep(newOther())
			c.change(o)
			d, _ := start(t, o)
			testkit.Value(d.Create(t.Context(), sized("v")))(t)
			if c.attached {
				testkit.Value(d.Attach(t.Context(), client.AttachRequest{Volume: "v", Target: filepath.Join(t.TempDir(), "v")}))(t)
			}
			v, err := d.Expand(t.Context(), "v", volume.SizeRange{Required: 2 * mib})
			if c.want != "" {
				wantKind(t, err, c.want)
			} else if err != nil || v.Size != 2*mib {
				t.Errorf("%+v, %v", v, err)
			}
		})
	}
}

func stat(t *testing.T, path string) [3]uint32 {
	t.Helper()
	info := testkit.Value(os.Stat(path))(t)
	uid, gid := owner(info)
	return [3]uint32{uint32(info.Mode().Perm()), uid, gid}
}

// A static volume is known by its context alone, which the attachment keeps.
func TestStaticVolume(t *testing.T) {
	o := newOther()
	o.plugin, o.controller = nil, nil
	o.nodeRPCs = append(o.nodeRPCs, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
	o.volumes["disk"] = &otherVolume{Volume: &csi.Volume{VolumeId: "disk"}, targets: map[string]bool{}}
	d, config := start(t, o)
	ctx, target := t.Context(), filepath.Join(t.TempDir(), "disk")
	_, err := d.Attach(ctx, client.AttachRequest{Volume: "disk", Target: target})
	wantKind(t, err, errs.Unsupported, "disk", "not known")
	req := client.AttachRequest{Volume: "disk", Target: target, Context: map[string]string{"context": "disk"}}
	for range 2 {
		v := testkit.Value(d.Attach(ctx, req))(t)
		if v.ID != "disk" || v.State != client.StateForeign || len(v.Targets) != 1 {
			t.Errorf("attached %+v", v)
		}
	}
	other := req
	other.Context = map[string]string{"context": "another"}
	_, err = d.Attach(ctx, other)
	wantKind(t, err, errs.Exists, "volume_context")
	other.Volume = ""
	_, err = d.Attach(ctx, other)
	wantKind(t, err, errs.Invalid, "empty")

	d = dial(t, config)
	testkit.Value(d.Attach(ctx, client.AttachRequest{Volume: "disk", Target: target}))(t) // the context is known
	testkit.Must(t, d.Detach(ctx, "disk", ""))
	want := []string{"NodeStageVolume", "NodePublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume"}
	if diff := cmp.Diff(want, o.made(attachSteps()...)); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	wantKind(t, d.Detach(ctx, "disk", ""), errs.Unsupported, "disk", "not known")
}

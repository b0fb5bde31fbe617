package client_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/cleatproject/cleat/csi/client"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const mib = 1 << 20

func sized(name string) client.CreateRequest {
	return client.CreateRequest{Name: name, Size: volume.SizeRange{Required: mib}}
}

// name=state
func names(t *testing.T, d *client.Driver) (out []string) {
	t.Helper()
	all := testkit.Value(d.List(t.Context()))(t)
	for _, v := range all {
		out = append(out, v.Name+"="+v.State)
	}
	return out
}

func wantKind(t *testing.T, err error, kind errs.Kind, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("%v, want an error of kind %q", err, kind)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
}

func TestDialWithoutADriver(t *testing.T) {
	for name, endpoint := range map[string]string{
		"nothing there": "unix://" + filepath.Join(t.TempDir(), "csi.sock"),
	} {
		_, err := client.Dial(t.Context(), client.Config{Endpoint: endpoint, StateDir: t.TempDir(), Patience: 50 * time.Millisecond})
		if !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), "cleat csi") || strings.Contains(err.Error(), "answered") || !strings.Contains(err.Error(), endpoint) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := client.Dial(t.Context(), client.Config{Endpoint: "tcp://127.0.0.1:1", StateDir: t.TempDir()}); err == nil {
		t.Error("a TCP endpoint was accepted")
	}
}

func TestInfo(t *testing.T) {
	o := newOther()
	o.nodeRPCs = []csi.NodeServiceCapability_RPC_Type{csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csi.NodeServiceCapability_RPC_EXPAND_VOLUME}
	d, _ := start(t, o)
	want := client.Info{
		Name: "other.example.com", Version: "7", Node: "node-7", Plugin: []string{"CONTROLLER_SERVICE"},
		Controller: []string{"CREATE_DELETE_VOLUME"}, NodeRPCs: []string{"EXPAND_VOLUME", "STAGE_UNSTAGE_VOLUME"},
	}
	if diff := cmp.Diff(want, d.Info()); diff != "" {
		t.Errorf("Info (-want +got):\n%s", diff)
	}
}

// Only announced calls are used.
func TestLifeWithFewCapabilities(t *testing.T) {
	o := newOther()
	d, _ := start(t, o)
	ctx := t.Context()
	v := testkit.Value(d.Create(ctx, sized("data")))(t)
	target := filepath.Join(t.TempDir(), "deep", "down", "here")
	testkit.Value(d.Attach(ctx, client.AttachRequest{Volume: "data", Target: target}))(t)
	at, err := d.At(ctx, target)
	if err != nil || at.ID != v.ID || len(at.Targets) != 1 || !at.Targets[0].Published {
		t.Errorf("At: %+v, %v", at, err)
	}
	if diff := cmp.Diff([]string{"data=ready"}, names(t, d)); diff != "" {
		t.Errorf("List without LIST_VOLUMES (-want +got):\n%s", diff)
	}
	wantKind(t, d.Delete(ctx, "data"), errs.Precondition, target, "detach")
	for range 2 {
		testkit.Must(t, d.Detach(ctx, v.ID, ""))
	}
	testkit.Must(t, d.Delete(ctx, "data"))
	// The driver might have it: under this ID, or created with another state directory.
	wantKind(t, d.Delete(ctx, "data"), errs.Unsupported, "data", "GET_VOLUME", "LIST_VOLUMES", "not known")
	want := []string{"CreateVolume", "NodePublishVolume", "NodeUnpublishVolume", "DeleteVolume"}
	got := o.made("CreateVolume", "NodePublishVolume", "NodeUnpublishVolume", "DeleteVolume", "NodeStageVolume",
		"NodeUnstageVolume", "ControllerPublishVolume", "ControllerUnpublishVolume", "ListVolumes", "ControllerGetVolume", "NodeGetVolumeHealth")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// The error names the capability, and the call is not sent.
func TestMissingCapabilities(t *testing.T) {
	o := newOther()
	d, _ := start(t, o)
	ctx := t.Context()
	testkit.Value(d.Create(ctx, sized("v")))(t)
	before := len(o.made())
	nothing := func(client.BlockPage) error { return nil }
	for word, ask := range map[string]func() error{
		"EXPAND_VOLUME":          func() error { _, err := d.Expand(ctx, "v", volume.SizeRange{Required: 2 * mib}); return err },
		"CREATE_DELETE_SNAPSHOT": func() error { _, err := d.CreateSnapshot(ctx, "s", "v", nil); return err },
		"GET_VOLUME_STATS":       func() error { _, err := d.Stats(ctx, "v"); return err },
		"GET_VOLUME_HEALTH":      func() error { _, err := d.Health(ctx, "v"); return err },
		"GET_STORAGE_HEALTH":     func() error { _, err := d.StorageHealth(ctx); return err },
		"MODIFY_VOLUME":          func() error { _, err := d.Modify(ctx, "v", map[string]string{"a": "b"}); return err },
		"GET_CAPACITY":           func() error { _, err := d.Capacity(ctx, client.Capability{}, nil); return err },
		"GROUP_SNAPSHOT":         func() error { _, err := d.CreateGroup(ctx, "g", []string{"v"}, nil); return err },
		"SNAPSHOT_METADATA":      func() error { return d.Allocated(ctx, "s", 0, nothing) },
		"SINGLE_NODE_MULTI_WRITER": func() error {
			r := sized("w")
			r.Capability = &client.Capability{AccessMode: "single-node-single-writer"}
			_, err := d.Create(ctx, r)
			return err
		},
		"CLONE_VOLUME": func() error { r := sized("c"); r.FromVolume = "v"; _, err := d.Create(ctx, r); return err },
		"VOLUME_MOUNT_GROUP": func() error {
			r := sized("g")
			r.Capability = &client.Capability{MountGroup: "7"}
			_, err := d.Create(ctx, r)
			return err
		},
	} {
		t.Run(word, func(t *testing.T) { wantKind(t, ask(), errs.Unsupported, word, "other.example.com") })
	}
	if after := len(o.made()); after != before {
		t.Errorf("the driver was asked all the same: %v", o.made()[before:])
	}
}

func TestCreateRefusedLeavesNoTrace(t *testing.T) {
	o := newOther()
	d, _ := start(t, o)
	req := sized("v")
	req.Parameters = map[string]string{"tier": "gold"}
	_, err := d.Create(t.Context(), req)
	wantKind(t, err, errs.Invalid, "no gold", "CreateVolume")
	if got := names(t, d); len(got) != 0 {
		t.Errorf("records: %v", got)
	}
	_, err = d.Create(t.Context(), client.CreateRequest{})
	wantKind(t, err, errs.Invalid, "name")
}

func TestCreateAgain(t *testing.T) {
	o := newOther()
	d, _ := start(t, o)
	one := testkit.Value(d.Create(t.Context(), sized("v")))(t)
	two, err := d.Create(t.Context(), sized("v"))
	if err != nil || two.ID != one.ID || !two.Created.Equal(one.Created) {
		t.Errorf("the same again: %+v, %v; want %+v", two, err, one)
	}
	larger := sized("v")
	larger.Size.Required *= 2
	_, err = d.Create(t.Context(), larger)
	wantKind(t, err, errs.Exists)
	if diff := cmp.Diff([]string{"v=ready"}, names(t, d)); diff != "" {
		t.Errorf("after a refused create of a taken name (-want +got):\n%s", diff)
	}
}

// The same request is repeated for a driver that is busy or away, but not after
// a final error.
func TestRetries(t *testing.T) {
	for _, code := range []codes.Code{codes.Unavailable, codes.Aborted, codes.DeadlineExceeded} {
		t.Run(code.String(), func(t *testing.T) {
			o := newOther()
			failures := 2
			o.before = func(method string) error {
				if method == "CreateVolume" && failures > 0 {
					failures--
					return status.Error(code, "not now")
				}
				return nil
			}
			d, _ := start(t, o)
			testkit.Value(d.Create(t.Context(), sized("v")))(t)
			asked := o.asked("CreateVolume")
			if len(asked) != 3 {
				t.Fatalf("asked %d times, want 3", len(asked))
			}
			for _, a := range asked[1:] {
				if diff := cmp.Diff(asked[0], a, protocmp.Transform()); diff != "" {
					t.Errorf("the repeat differs:\n%s", diff)
				}
			}
		})
	}
	t.Run("until the context ends", func(t *testing.T) {
		o := newOther()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		asked := 0
		o.before = func(method string) error {
			if method != "CreateVolume" {
				return nil
			}
			if asked++; asked == 3 {
				cancel()
			}
			return status.Error(codes.Unavailable, "away for long")
		}
		d, _ := start(t, o)
		_, err := d.Create(ctx, sized("v"))
		wantKind(t, err, errs.Unavailable, "away for long")
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%v does not say that time ran out", err)
		}
		if diff := cmp.Diff([]string{"v=creating"}, names(t, d)); diff != "" {
			t.Errorf("it can have been created, and must have a record (-want +got):\n%s", diff)
		}
	})
}

// A call survives the driver's restart.
func TestDriverRestarts(t *testing.T) {
	o := newOther()
	dir := t.TempDir()
	socket := filepath.Join(dir, "csi.sock")
	stop := o.serve(t, socket)
	d := dial(t, client.Config{Endpoint: "unix://" + socket, StateDir: filepath.Join(dir, "state")})
	stop()
	made := make(chan error, 1)
	go func() {
		_, err := d.Create(t.Context(), sized("v"))
		made <- err
	}()
	o.serve(t, socket)
	testkit.Must(t, <-made)
}

// The list marks what only one side has.
func TestListMergesNotesAndDriver(t *testing.T) {
	o := newOther()
	o.controller = append(o.controller, csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
	o.pageLimit = 2
	d, config := start(t, o)
	for _, name := range []string{"a", "b", "c", "d", "e"} {
		testkit.Value(d.Create(t.Context(), sized(name)))(t)
	}
	o.mu.Lock()
	delete(o.volumes, "id/2")
	o.mu.Unlock()
	elsewhere := config
	elsewhere.StateDir = t.TempDir()
	testkit.Value(dial(t, elsewhere).Create(t.Context(), sized("theirs")))(t)
	want := []string{"a=ready", "b=missing", "c=ready", "d=ready", "e=ready", "id/6=foreign"}
	if diff := cmp.Diff(want, names(t, d)); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
	if v, err := d.Show(t.Context(), "b"); err != nil || v.State != client.StateMissing {
		t.Errorf("Show of a volume that the driver has lost: %+v, %v", v, err)
	}
	// Its name is that of its PersistentVolume, and found as List shows it.
	o.mu.Lock()
	o.volumes["id/6"].VolumeContext[access.KeyName] = "pvc-6"
	o.mu.Unlock()
	if v, err := d.Show(t.Context(), "pvc-6"); err != nil || v.ID != "id/6" {
		t.Errorf("Show of a foreign volume by its name: %+v, %v", v, err)
	}
	// Calls need its id, which the error has.
	target := filepath.Join(t.TempDir(), "theirs")
	_, err := d.Attach(t.Context(), client.AttachRequest{Volume: "pvc-6", Target: target})
	wantKind(t, err, errs.NotFound, "pvc-6", "use its ID, id/6")
	wantKind(t, d.Delete(t.Context(), "pvc-6"), errs.NotFound, "pvc-6", "use its ID, id/6")
	// A foreign volume is used and deleted by its id.
	testkit.Value(d.Attach(t.Context(), client.AttachRequest{Volume: "id/6", Target: target}))(t)
	testkit.Must(t, d.Detach(t.Context(), "id/6", target))
	testkit.Must(t, d.Delete(t.Context(), "id/6"))
	if err := d.Delete(t.Context(), "b"); err != nil {
		t.Errorf("deleting what the driver has lost: %v", err)
	}
	wantKind(t, d.Delete(t.Context(), "missing"), errs.NotFound, "missing")
}

// What another command did before the lock counts, also if it cannot be read: here it
// attached the volume, and a newer release wrote a record.
func TestUnreadableAfterLock(t *testing.T) {
	o := newOther()
	o.controller = append(o.controller, csi.ControllerServiceCapability_RPC_GET_VOLUME)
	d, config := start(t, o)
	elsewhere := dial(t, client.Config{Endpoint: config.Endpoint, StateDir: t.TempDir()})
	v := testkit.Value(elsewhere.Create(t.Context(), sized("v")))(t)
	other, target := dial(t, config), filepath.Join(t.TempDir(), "v")
	newer := filepath.Join(config.StateDir, "volumes", "newer.json")
	var begun atomic.Bool
	o.before = func(method string) error {
		if method != "ControllerGetVolume" || begun.Swap(true) {
			return nil
		}
		return errors.Join(
			testkit.Err(other.Attach(t.Context(), client.AttachRequest{Volume: v.ID, Target: target})),
			os.MkdirAll(filepath.Dir(newer), 0o700), os.WriteFile(newer, []byte(`{"version":99}`), 0o600))
	}
	testkit.WantError(t, "Delete", d.Delete(t.Context(), v.ID), nil, "written by a newer cleat")
	if calls := o.made("DeleteVolume"); len(calls) > 0 {
		t.Errorf("the driver was called for a volume that is attached: %v", calls)
	}
	testkit.Must(t, os.Remove(newer))
	wantKind(t, d.Delete(t.Context(), v.ID), errs.Precondition, "attached at "+target)
}

// A volume of pods is listed with their paths, from the kubelet's records and
// the mount table, and with the name of its PersistentVolume.
func TestListShowsPods(t *testing.T) {
	o := newOther()
	o.controller = append(o.controller, csi.ControllerServiceCapability_RPC_LIST_VOLUMES)
	root := t.TempDir()
	config := client.Config{Endpoint: "unix://" + filepath.Join(root, "plugins", "other", "csi.sock"), StateDir: t.TempDir()}
	testkit.Must(t, os.MkdirAll(filepath.Join(root, "plugins", "other"), 0o750))
	o.serve(t, filepath.Join(root, "plugins", "other", "csi.sock"))
	d := dial(t, config)
	elsewhere := config
	elsewhere.StateDir = t.TempDir()
	for _, name := range []string{"mounted", "device", "unmounted"} {
		testkit.Value(dial(t, elsewhere).Create(t.Context(), sized(name)))(t)
	}
	record := func(dir, id, driver, pv string) {
		testkit.Must(t, os.MkdirAll(dir, 0o750))
		text := fmt.Sprintf(`{"driverName": %q, "volumeHandle": %q, "specVolID": %q}`, driver, id, pv)
		testkit.Must(t, os.WriteFile(filepath.Join(dir, "vol_data.json"), []byte(text), 0o600))
	}
	pod := func(id, driver, pv string) string {
		dir := filepath.Join(root, "pods", "uid", "volumes", "kubernetes.io~csi", pv)
		record(dir, id, driver, pv)
		testkit.Must(t, os.Mkdir(filepath.Join(dir, "mount"), 0o750))
		return filepath.Join(dir, "mount")
	}
	bind := func(from, to string) {
		testkit.Run(t, "mount", "--bind", from, to)
		t.Cleanup(func() { testkit.Unmount(t, to) })
	}
	mounted := pod("id/1", d.Info().Name, "pvc-1")
	testkit.Run(t, "mount", "-t", "tmpfs", "-o", "ro", "none", mounted)
	t.Cleanup(func() { testkit.Unmount(t, mounted) })
	pod("id/3", d.Info().Name, "pvc-3")                        // not mounted
	bind(t.TempDir(), pod("id/3", "csi.example.com", "pvc-4")) // another driver's volume
	devices := filepath.Join(root, "plugins", "kubernetes.io", "csi", "volumeDevices")
	record(filepath.Join(devices, "pvc-2", "data"), "id/2", d.Info().Name, "pvc-2")
	device := filepath.Join(devices, "publish", "pvc-2", "uid")
	testkit.Must(t, os.MkdirAll(filepath.Dir(device), 0o750), os.WriteFile(device, nil, 0o600))
	bind("/dev/null", device)

	var got []string
	for _, v := range testkit.Value(d.List(t.Context()))(t) {
		got = append(got, fmt.Sprintf("%s %s %v %s %v", v.Name, v.State, v.Capability.Block, v.Capability.FSType, v.Targets))
	}
	want := []string{
		"id/3 foreign false  []",
		"pvc-1 foreign false tmpfs [{" + mounted + " true true}]",
		"pvc-2 foreign true  [{" + device + " false true}]",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("List (-want +got):\n%s", diff)
	}
	if v, err := d.Show(t.Context(), "id/1"); err != nil || v.Name != "pvc-1" || len(v.Targets) != 1 {
		t.Errorf("Show: %+v, %v", v, err)
	}
}

// A call for a foreign volume does not touch the record of an own volume with its
// name, and no name deletes a foreign volume.
func TestForeignVolumeWithOwnName(t *testing.T) {
	o := newOther()
	o.controller = append(o.controller, csi.ControllerServiceCapability_RPC_LIST_VOLUMES, csi.ControllerServiceCapability_RPC_EXPAND_VOLUME)
	d, config := start(t, o)
	own := testkit.Value(d.Create(t.Context(), sized("data")))(t)
	elsewhere := config
	elsewhere.StateDir = t.TempDir()
	theirs := testkit.Value(dial(t, elsewhere).Create(t.Context(), sized("theirs")))(t)
	o.mu.Lock()
	o.volumes[theirs.ID].VolumeContext[access.KeyName] = "data"
	o.mu.Unlock()
	isOwn := func() {
		t.Helper()
		if v, err := d.Show(t.Context(), "data"); err != nil || v.ID != own.ID || v.State != client.StateReady {
			t.Errorf("data is %+v, %v; want %s", v, err, own.ID)
		}
	}
	testkit.Value(d.Expand(t.Context(), theirs.ID, volume.SizeRange{Required: 2 << 30}))(t)
	isOwn()
	o.before = func(method string) error {
		if method == "DeleteVolume" {
			return status.Error(codes.FailedPrecondition, "in use")
		}
		return nil
	}
	wantKind(t, d.Delete(t.Context(), theirs.ID), errs.Precondition, "in use")
	isOwn()
	ctx, interrupt := context.WithCancel(t.Context())
	o.before = func(method string) error {
		if method == "DeleteVolume" {
			interrupt()
		}
		return nil
	}
	if err := d.Delete(ctx, theirs.ID); err == nil {
		t.Error("an interrupted deletion succeeded")
	}
	o.before = func(string) error { return nil }
	isOwn()
	testkit.Must(t, d.Delete(t.Context(), "data"))
	wantKind(t, d.Delete(t.Context(), "data"), errs.NotFound, "use its ID, "+theirs.ID)
	testkit.Must(t, d.Delete(t.Context(), theirs.ID))
}

// A condition that both report is shown once.
func TestHealthOfControllerAndNode(t *testing.T) {
	o := newOther()
	o.controller = append(o.controller, csi.ControllerServiceCapability_RPC_GET_VOLUME_HEALTH, csi.ControllerServiceCapability_RPC_LIST_VOLUME_HEALTH)
	o.nodeRPCs = append(o.nodeRPCs, csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH)
	d, _ := start(t, o)
	for _, name := range []string{"sick", "well"} {
		testkit.Value(d.Create(t.Context(), sized(name)))(t)
	}
	testkit.Value(d.Attach(t.Context(), client.AttachRequest{Volume: "sick", Target: filepath.Join(t.TempDir(), "v")}))(t)
	lost := volume.Condition{Severity: volume.DataLoss, Reason: "FileGone", Message: "the file is gone"}
	all, err := d.List(t.Context())
	if err != nil || len(all) != 2 || !cmp.Equal(all[0].Conditions, []volume.Condition{lost}) || len(all[1].Conditions) != 0 {
		t.Errorf("List: %+v, %v", all, err)
	}
	got, err := d.Health(t.Context(), "sick")
	if want := []volume.Condition{lost, {Severity: volume.Degraded, Reason: "ReadOnly"}}; err != nil || !cmp.Equal(got, want) {
		t.Errorf("Health: %+v, %v; want %+v", got, err, want)
	}
}

// A node reports only on volumes that are attached to it: of another one, a driver
// without health at the controller says nothing, which is not healthy.
func TestHealthIsNotKnownWithoutAReport(t *testing.T) {
	o := newOther()
	o.nodeRPCs = append(o.nodeRPCs, csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH)
	d, _ := start(t, o)
	v := testkit.Value(d.Create(t.Context(), sized("v")))(t)
	unknown := func(when string) {
		t.Helper()
		if got, err := d.Health(t.Context(), v.ID); !errors.Is(err, errs.Unsupported) {
			t.Errorf("%s: %+v, %v; want %v", when, got, err, errs.Unsupported)
		}
	}
	unknown("detached")
	testkit.Value(d.Attach(t.Context(), client.AttachRequest{Volume: "v", Target: filepath.Join(t.TempDir(), "v")}))(t)
	if got, err := d.Health(t.Context(), v.ID); err != nil || len(got) != 2 {
		t.Errorf("attached: %+v, %v", got, err)
	}
	o.before = func(method string) error {
		if method == "NodeGetVolumeHealth" {
			return status.Error(codes.NotFound, "it is not staged")
		}
		return nil
	}
	unknown("not staged, as after a reboot")
}

// Drivers before CSI 1.13 have a VolumeCondition instead: {abnormal: true, message:
// "the disk fails"} as field 2 of their answers.
func TestVolumeCondition(t *testing.T) {
	o := newOther()
	o.controller = append(o.controller, csi.ControllerServiceCapability_RPC_GET_VOLUME, 11)
	d, _ := start(t, o)
	v := testkit.Value(d.Create(t.Context(), sized("v")))(t)
	if info := d.Info(); !strings.Contains(strings.Join(info.Controller, " "), "VOLUME_CONDITION") {
		t.Errorf("capabilities %v", info.Controller)
	}
	for _, c := range []struct {
		condition string
		want      []volume.Condition
		kind      error
	}{
		{"\x12\x12\x08\x01\x12\x0ethe disk fails", []volume.Condition{{Severity: volume.Degraded, Reason: client.ReasonAbnormal, Message: "the disk fails"}}, nil},
		{"\x12\x04\x12\x02ok", nil, nil},
		{"", nil, errs.Unsupported}, // not reported is not healthy
	} {
		o.mu.Lock()
		o.condition = []byte(c.condition)
		o.mu.Unlock()
		got, err := d.Health(t.Context(), v.ID)
		if !cmp.Equal(got, c.want) || !errors.Is(err, c.kind) {
			t.Errorf("%q: %+v, %v; want %+v, %v", c.condition, got, err, c.want, c.kind)
		}
	}
}

func (o *other) ControllerGetVolume(_ context.Context, r *csi.ControllerGetVolumeRequest) (*csi.ControllerGetVolumeResponse, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	v := o.volumes[r.GetVolumeId()]
	if v == nil {
		return nil, status.Error(codes.NotFound, "it is not there")
	}
	state := &csi.ControllerGetVolumeResponse_VolumeStatus{}
	state.ProtoReflect().SetUnknown(o.condition)
	return &csi.ControllerGetVolumeResponse{Volume: v.Volume, Status: state}, nil
}

func health(id string) *csi.VolumeHealth {
	return &csi.VolumeHealth{VolumeId: id, HealthStatuses: []*csi.VolumeHealth_VolumeHealthEntry{
		{Status: csi.VolumeHealthErrorType_DATA_LOSS, Reason: "FileGone", Message: "the file is gone"},
	}}
}

func (o *other) ControllerGetVolumeHealth(_ context.Context, r *csi.ControllerGetVolumeHealthRequest) (*csi.ControllerGetVolumeHealthResponse, error) {
	return &csi.ControllerGetVolumeHealthResponse{VolumeHealth: health(r.GetVolumeId())}, nil
}

func (o *other) ControllerListVolumeHealth(context.Context, *csi.ControllerListVolumeHealthRequest) (*csi.ControllerListVolumeHealthResponse, error) {
	return &csi.ControllerListVolumeHealthResponse{Entries: []*csi.VolumeHealth{health("id/1")}}, nil
}

func (o *other) NodeGetVolumeHealth(_ context.Context, r *csi.NodeGetVolumeHealthRequest) (*csi.NodeGetVolumeHealthResponse, error) {
	h := health(r.GetVolumeId())
	h.HealthStatuses = append(h.HealthStatuses, &csi.VolumeHealth_VolumeHealthEntry{Status: csi.VolumeHealthErrorType_DEGRADED, Reason: "ReadOnly"})
	return &csi.NodeGetVolumeHealthResponse{VolumeHealth: h}, nil
}

func TestSecretsAreSentAndNotStored(t *testing.T) {
	o := everyStep(newOther())
	_, config := start(t, o)
	config.Secrets = map[string]string{"key": "hunter2hunter2"}
	d := dial(t, config)
	testkit.Value(d.Create(t.Context(), sized("v")))(t)
	testkit.Value(d.Attach(t.Context(), client.AttachRequest{Volume: "v", Target: filepath.Join(t.TempDir(), "v")}))(t)
	if got := o.asked("CreateVolume")[0].(*csi.CreateVolumeRequest).GetSecrets()["key"]; got != "hunter2hunter2" {
		t.Errorf("the driver got the secret %q", got)
	}
	files := 0
	err := filepath.WalkDir(config.StateDir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		files++
		info, err := e.Info()
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if strings.Contains(string(data), "hunter2") || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v and %q", path, info.Mode(), data)
		}
		return err
	})
	if err != nil || files < 2 {
		t.Errorf("%d files in the state directory, %v", files, err)
	}
}

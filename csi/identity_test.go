package csi_test

import (
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

func TestDriverNames(t *testing.T) {
	for name, ok := range map[string]bool{
		csi.DefaultName: true, "a": true, "A1.b-c.d": true, strings.Repeat("n", 63): true,
		"": false, "-a": false, "a-": false, "a..b": false, ".a": false, "a.": false, "a_b": false, "a/b": false, "ä": false, "a\n": false,
		strings.Repeat("n", 64): false, "a.-b": false,
	} {
		if err := csi.CheckName(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestPluginInfo(t *testing.T) {
	got, err := newPlugin(t, options{}).Identity.GetPluginInfo(t.Context(), &spec.GetPluginInfoRequest{})
	if err != nil || got.GetName() != csi.DefaultName || got.GetVendorVersion() != "test" || got.GetManifest()["engine"] != "reference" || got.GetManifest()["url"] == "" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestDeploymentCheck(t *testing.T) {
	for name, edit := range map[string]func(*csi.Deployment){
		"no service":               func(d *csi.Deployment) { d.Services = csi.Services{} },
		"per node publish":         func(d *csi.Deployment) { d.PerNode = true },
		"empty node":               func(d *csi.Deployment) { d.Nodes = []string{""} },
		"long node":                func(d *csi.Deployment) { d.Nodes = []string{strings.Repeat("n", 257)} },
		"topology":                 func(d *csi.Deployment) { d.Topology = map[string]string{"a b": "c"} },
		"many nodes, no publish":   func(d *csi.Deployment) { d.MultiNode, d.ControllerPublish = true, false },
		"grants, no publish":       func(d *csi.Deployment) { d.StorageGrants, d.ControllerPublish = true, false },
		"names, only on one node":  func(d *csi.Deployment) { d.PlainNodeIDs = true },
		"shared, only on one node": func(d *csi.Deployment) { d.SharedFS = "ceph" },
		"static, controller":       func(d *csi.Deployment) { *d = staticDeployment(); d.Services.Controller = true },
		"static, publish":          func(d *csi.Deployment) { *d = staticDeployment(); d.ControllerPublish = true },
		"static, per node":         func(d *csi.Deployment) { *d = staticDeployment(); d.PerNode = true },
		"static, only on one node": func(d *csi.Deployment) { *d = staticDeployment(); d.MultiNode = false },
	} {
		d := fullDeployment()
		edit(&d)
		if err := d.Check(); errs.KindOf(err) != errs.Invalid || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, d := range []csi.Deployment{fullDeployment(), staticDeployment()} {
		if err := d.Check(); err != nil {
			t.Errorf("%+v: %v", d, err)
		}
	}
}

func TestProbe(t *testing.T) {
	r, err := newPlugin(t, options{}).Identity.Probe(t.Context(), &spec.ProbeRequest{})
	if err != nil || !r.GetReady().GetValue() {
		t.Errorf("got %v, %v", r, err)
	}
}

func TestAllProcessesAnnounceTheSame(t *testing.T) {
	capabilities := func(d csi.Deployment) *spec.GetPluginCapabilitiesResponse {
		i := csi.Identity{Abilities: csi.Abilities{Snapshots: true, Clones: true, Groups: true, Deltas: true, Modify: true, Health: true}, Deployment: d}
		r := testkit.Value(i.GetPluginCapabilities(t.Context(), &spec.GetPluginCapabilitiesRequest{}))(t)
		return r
	}
	want := capabilities(fullDeployment())
	for _, services := range []csi.Services{{Controller: true}, {Node: true}} {
		d := fullDeployment()
		d.Services, d.Topology = services, map[string]string{"topology.csi.cleat.dev/node": "another"}
		if diff := cmp.Diff(want, capabilities(d), protocmp.Transform()); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", services, diff)
		}
	}
}

func TestHealthEntries(t *testing.T) {
	rig := newPlugin(t, options{})
	v := rig.MustCreate(t, "v", mountCap())
	testkit.Must(t, rig.Reference.Report(volume.ID(v.GetVolumeId()),
		volume.Condition{Severity: volume.Degraded, Reason: "PoolNearlyFull", Message: strings.Repeat("ü", 100)},
		volume.Condition{Severity: volume.Degraded, Reason: "PoolNearlyFull", Message: "again"},
		volume.Condition{Severity: volume.Inaccessible, Reason: "PoolNearlyFull"},
		volume.Condition{Severity: volume.DataLoss, Reason: "BackingFileMissing"},
		volume.Condition{Severity: "ODD", Reason: "Odd"},
	))
	r := testkit.Value(rig.Controller.ControllerGetVolumeHealth(t.Context(), &spec.ControllerGetVolumeHealthRequest{VolumeId: v.GetVolumeId()}))(t)
	want := []spec.VolumeHealthErrorType{
		spec.VolumeHealthErrorType_DEGRADED, spec.VolumeHealthErrorType_INACCESSIBLE, spec.VolumeHealthErrorType_DATA_LOSS, spec.VolumeHealthErrorType_DEGRADED,
	}
	got := r.GetVolumeHealth().GetHealthStatuses()
	if len(got) != len(want) {
		t.Fatalf("got %v", got)
	}
	for i, entry := range got {
		if entry.GetStatus() != want[i] || len(entry.GetMessage()) > 128 {
			t.Errorf("entry %d is %v", i, entry)
		}
	}
}

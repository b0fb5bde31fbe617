package csi_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/csi/csitest"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// What is refused for want of room keeps its message; the rest is not touched.
func TestRefused(t *testing.T) {
	full := fmt.Errorf("expand: %w", errs.Errorf(errs.Exhausted, "7 bytes are left"))
	for _, c := range []struct {
		err  error
		want codes.Code
	}{{full, codes.OutOfRange}, {errs.Precondition, codes.FailedPrecondition}, {errors.New("plain"), codes.Internal}, {nil, codes.OK}} {
		got := csi.Refused(c.err, errs.OutOfRange)
		if errs.Code(got) != c.want {
			t.Errorf("%v: got %v, want %v", c.err, errs.Code(got), c.want)
		}
		if c.err != nil && got.Error() != c.err.Error() {
			t.Errorf("%q became %q", c.err, got)
		}
	}
}

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
	if i, err := csi.NewIdentity(csi.IdentityConfig{Name: "a b", Version: "1"}); err == nil || i != nil {
		t.Error("a bad name made a service")
	}
	if _, err := csi.NewIdentity(csi.IdentityConfig{}); err == nil {
		t.Error("the specification demands a vendor_version")
	}
}

func TestPluginInfo(t *testing.T) {
	got, err := csitest.New(t, csitest.Options{}).Identity.GetPluginInfo(t.Context(), &spec.GetPluginInfoRequest{})
	if err != nil || got.GetName() != csi.DefaultName || got.GetVendorVersion() != "test" || got.GetManifest()["engine"] != "reference" || got.GetManifest()["url"] == "" {
		t.Errorf("%v, %v", got, err)
	}
}

func TestProbe(t *testing.T) {
	for name, c := range map[string]struct {
		ready bool
		err   error
		want  codes.Code
	}{
		"ready": {true, nil, codes.OK}, "starting": {false, nil, codes.OK},
		"unhealthy": {false, errors.New("the pool is gone"), codes.FailedPrecondition},
		"kind":      {true, errs.Errorf(errs.Unavailable, "mkfs is missing"), codes.FailedPrecondition},
	} {
		t.Run(name, func(t *testing.T) {
			i, err := csi.NewIdentity(csi.IdentityConfig{Version: "1", Ready: func(context.Context) (bool, error) { return c.ready, c.err }})
			if err != nil {
				t.Fatal(err)
			}
			r, err := i.Probe(t.Context(), &spec.ProbeRequest{})
			if errs.Code(err) != c.want || err == nil && r.GetReady().GetValue() != c.ready {
				t.Errorf("got %v, %v", r, err)
			}
			if err != nil && !strings.Contains(err.Error(), c.err.Error()) {
				t.Errorf("%v does not say why", err)
			}
		})
	}
}

// Whatever an instance serves, it announces what all of them offer together.
func TestAllInstancesAnnounceTheSame(t *testing.T) {
	all := csi.Abilities{Snapshots: true, Clones: true, Groups: true, Deltas: true, Modify: true, Health: true}
	want := csi.Announce(all, csitest.Full()).PluginCapabilities()
	for _, services := range []csi.Services{{Controller: true}, {Node: true}} {
		d := csitest.Full()
		d.Services = services
		d.Topology = map[string]string{"topology.csi.cleat.dev/node": "another"}
		if diff := cmp.Diff(want, csi.Announce(all, d).PluginCapabilities(), protocmp.Transform()); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", services, diff)
		}
	}
}

func TestAnnouncementFollowsAbilities(t *testing.T) {
	d := csi.Deployment{Services: csi.Services{Controller: true}}
	bare := csi.Announce(csi.Abilities{}, d)
	if len(bare.Services) != 1 || len(bare.Group) != 0 || bare.AccessibleTopology() != nil || bare.Offer().Modify || bare.Offer().Topology {
		t.Errorf("bare engine: %+v", bare)
	}
	d.PerNode = true
	perNode := csi.Announce(csi.Abilities{Modify: true, Snapshots: true}, d)
	for _, t2 := range perNode.Controller {
		switch t2 {
		case spec.ControllerServiceCapability_RPC_EXPAND_VOLUME, spec.ControllerServiceCapability_RPC_MODIFY_VOLUME,
			spec.ControllerServiceCapability_RPC_PUBLISH_UNPUBLISH_VOLUME:
			t.Errorf("%v is announced, but needs one controller for all nodes", t2)
		}
	}
}

func TestDeploymentCheck(t *testing.T) {
	for name, edit := range map[string]func(*csi.Deployment){
		"no service":       func(d *csi.Deployment) { d.Services = csi.Services{} },
		"per node publish": func(d *csi.Deployment) { d.PerNode = true },
		"empty node":       func(d *csi.Deployment) { d.Nodes = []string{""} },
		"long node":        func(d *csi.Deployment) { d.Nodes = []string{strings.Repeat("n", 257)} },
		"topology":         func(d *csi.Deployment) { d.Topology = map[string]string{"a b": "c"} },
	} {
		d := csitest.Full()
		edit(&d)
		if err := d.Check(); errs.KindOf(err) != errs.Invalid || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := csitest.Full().Check(); err != nil {
		t.Error(err)
	}
}

func TestHealthWords(t *testing.T) {
	got := csi.VolumeHealth("v", []volume.Condition{
		{Severity: volume.Degraded, Reason: "PoolNearlyFull", Message: strings.Repeat("ü", 100)},
		{Severity: volume.Degraded, Reason: "PoolNearlyFull", Message: "again"},
		{Severity: volume.Inaccessible, Reason: "PoolNearlyFull"},
		{Severity: volume.DataLoss, Reason: "BackingFileMissing"},
		{Severity: "ODD", Reason: "Odd"},
	}).GetHealthStatuses()
	want := []spec.VolumeHealthErrorType{
		spec.VolumeHealthErrorType_DEGRADED, spec.VolumeHealthErrorType_INACCESSIBLE, spec.VolumeHealthErrorType_DATA_LOSS, spec.VolumeHealthErrorType_DEGRADED,
	}
	if len(got) != len(want) {
		t.Fatalf("got %v", got)
	}
	for i, entry := range got {
		if entry.GetStatus() != want[i] || len(entry.GetMessage()) > 128 {
			t.Errorf("entry %d is %v", i, entry)
		}
	}
}

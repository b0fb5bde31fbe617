package dputest

import (
	"context"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
)

// testReady waits; that a starting plugin is not ready is no error.
func testReady(t *trial) {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		reply, err := t.identity.Probe(t.ctx, &storagev1.ProbeRequest{})
		t.checkCode(t.ctx, "Probe", err)
		switch {
		case err != nil:
			t.Fatalf("Probe: %v", err)
		case reply.GetReady() == nil:
			t.Fatal("Probe leaves ready unset, which the node driver treats as not ready")
		case reply.GetReady().GetValue():
			return
		}
		select {
		case <-ticker.C:
		case <-t.ctx.Done():
			t.Fatalf("plugin not ready after %s", t.Timeout)
		}
	}
}

// label is a domain label of RFC 1035 section 2.3.1.
const label = `[a-zA-Z]([a-zA-Z0-9-]*[a-zA-Z0-9])?`

func testPluginInfo(t *trial) {
	info, err := t.identity.GetPluginInfo(t.ctx, &storagev1.GetPluginInfoRequest{})
	t.checkCode(t.ctx, "GetPluginInfo", err)
	if err != nil {
		t.Fatalf("GetPluginInfo: %v", err)
	}
	switch name := info.GetName(); {
	case name == "":
		t.Error("name is empty, but required")
	case len(name) > 63:
		t.Errorf("name %q has %d characters, at most 63 are allowed", name, len(name))
	case !regexp.MustCompile(`^` + label + `(\.` + label + `)*$`).MatchString(name):
		t.Errorf("name %q is not a domain name (RFC 1035 section 2.3.1) such as example-vendor-plugin.example", name)
	}
	if info.GetVendorVersion() == "" {
		t.Error("vendor_version is empty, but required")
	}
	if len(info.GetManifest()) == 0 {
		t.Error("manifest is empty, but required")
	}
	again, err := t.identity.GetPluginInfo(t.ctx, &storagev1.GetPluginInfoRequest{})
	if err != nil || !proto.Equal(info, again) {
		t.Errorf("GetPluginInfo returns %v first, then %v, %v", info, again, err)
	}
}

func testCapabilities(t *trial) {
	got := map[Capability]bool{}
	for range 2 {
		reply, err := t.plugin.StoragePluginGetCapabilities(t.ctx, &storagev1.StoragePluginGetCapabilitiesRequest{})
		t.checkCode(t.ctx, "StoragePluginGetCapabilities", err)
		if err != nil {
			t.Fatalf("StoragePluginGetCapabilities: %v", err)
		}
		clear(got)
		for _, c := range reply.GetCapabilities() {
			got[c.GetRpc().GetType()] = true
			switch c.GetRpc().GetType() {
			case blockDevice, fsDevice, getDevice, listDevices:
			default:
				t.Errorf("announces unknown capability %v", c)
			}
		}
		if !maps.Equal(got, t.announced) {
			t.Errorf("announces %v first, then %v", sorted(t.announced), sorted(got))
		}
	}
	if want := set(t.Announced); t.Announced != nil && !maps.Equal(got, want) {
		t.Errorf("announces %v, want %v", sorted(got), sorted(want))
	}
	if got[blockDevice] && t.Block == nil {
		t.Error("announces block devices, but Options.Block is not set")
	}
	if got[fsDevice] && t.Filesystem == nil {
		t.Error("announces file system devices, but Options.Filesystem is not set")
	}
}

func set(of []Capability) map[Capability]bool {
	out := map[Capability]bool{}
	for _, c := range of {
		out[c] = true
	}
	return out
}

func sorted(of map[Capability]bool) []Capability { return slices.Sorted(maps.Keys(of)) }

// testServed: announced calls are served, all others return UNIMPLEMENTED.
func testServed(t *trial) {
	absent := t.id + "-served"
	for name, c := range map[string]struct {
		announced, optional bool
		call                func(context.Context) error
	}{
		"CreateDevice": {announced: t.announced[blockDevice] || t.announced[fsDevice], call: func(ctx context.Context) error {
			_, err := t.plugin.CreateDevice(ctx, &storagev1.CreateDeviceRequest{})
			return err
		}},
		"DeleteDevice": {announced: t.announced[blockDevice] || t.announced[fsDevice], call: func(ctx context.Context) error {
			_, err := t.plugin.DeleteDevice(ctx, &storagev1.DeleteDeviceRequest{VolumeId: absent})
			return err
		}},
		"GetDevice": {announced: t.announced[getDevice], optional: t.Unannounced, call: func(ctx context.Context) error {
			_, err := t.plugin.GetDevice(ctx, &storagev1.GetDeviceRequest{VolumeId: absent, DeviceName: absent})
			return err
		}},
		"ListDevices": {announced: t.announced[listDevices], optional: t.Unannounced, call: func(ctx context.Context) error {
			_, err := t.plugin.ListDevices(ctx, &storagev1.ListDevicesRequest{})
			return err
		}},
		"an unknown call": {call: func(ctx context.Context) error {
			return t.conn.Invoke(ctx, "/nvidia.storage.plugins.v1.StoragePluginService/DputestNoSuchCall", &emptypb.Empty{}, &emptypb.Empty{})
		}},
	} {
		err := c.call(t.ctx)
		unimplemented := status.Code(err) == codes.Unimplemented
		switch {
		case c.announced && unimplemented:
			t.Errorf("%s is announced, but returns UNIMPLEMENTED", name)
		case !c.announced && !unimplemented && !c.optional:
			t.Errorf("%s is not announced, but returns %v, want UNIMPLEMENTED", name, err)
		case !c.announced && !unimplemented:
			t.Logf("%s is served without being announced", name)
		}
	}
}

// testProvider: the node driver uses the name as a directory in the socket's
// path.
func testProvider(t *trial) {
	var names []string
	for range 2 {
		reply, err := t.plugin.GetSNAPProvider(t.ctx, &storagev1.GetSNAPProviderRequest{})
		t.checkCode(t.ctx, "GetSNAPProvider", err)
		if err != nil {
			t.Fatalf("GetSNAPProvider: %v", err)
		}
		names = append(names, reply.GetProviderName())
	}
	name := names[0]
	if names[1] != name {
		t.Errorf("GetSNAPProvider returns %q first, then %q", name, names[1])
	}
	if name == "." || name == ".." || strings.ContainsAny(name, "/\x00") || len(name) > 255 {
		t.Errorf("provider_name %q cannot be a directory of providers/<provider_name>/snap.sock", name)
	}
	if name == "" {
		t.Log("provider_name is empty (default SNAP process): current node drivers skip SNAP's teardown then")
	}
}

func testNothingLeft(t *trial) {
	if !t.servesList {
		t.Log("not checked, since ListDevices is not served")
		return
	}
	if left := t.mine(t.list(0)); len(left) > 0 {
		t.Errorf("all devices were deleted, but ListDevices has %q", left)
	}
}

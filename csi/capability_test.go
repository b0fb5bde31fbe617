package csi

import (
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

type mountVolume = spec.VolumeCapability_MountVolume

func withMode(c *spec.VolumeCapability, mode spec.VolumeCapability_AccessMode_Mode) *spec.VolumeCapability {
	c.AccessMode = &spec.VolumeCapability_AccessMode{Mode: mode}
	return c
}

func TestCapability(t *testing.T) {
	for name, c := range map[string]struct {
		in   *spec.VolumeCapability
		kind errs.Kind
	}{
		"mount":             {mountCap(), ""},
		"block":             {blockCap(), ""},
		"nil":               {nil, errs.Invalid},
		"no access type":    {&spec.VolumeCapability{AccessMode: mountCap().AccessMode}, errs.Invalid},
		"no access mode":    {&spec.VolumeCapability{AccessType: mountCap().AccessType}, errs.Invalid},
		"mode 0":            {withMode(mountCap(), 0), errs.Invalid},
		"reader":            {withMode(blockCap(), 2), ""},
		"multi reader":      {withMode(mountCap(), 3), errs.Invalid},
		"multi one writer":  {withMode(mountCap(), 4), errs.Invalid},
		"multi writer":      {withMode(blockCap(), 5), errs.Invalid},
		"single writer":     {withMode(mountCap(), 6), ""},
		"several writers":   {withMode(mountCap(), 7), ""},
		"future mode":       {withMode(mountCap(), 8), errs.Invalid},
		"negative mode":     {withMode(mountCap(), -1), errs.Invalid},
		"xfs":               {mountCap(func(m *mountVolume) { m.FsType = "xfs" }), ""},
		"ntfs":              {mountCap(func(m *mountVolume) { m.FsType = "ntfs" }), errs.Invalid},
		"EXT4":              {mountCap(func(m *mountVolume) { m.FsType = "EXT4" }), errs.Invalid},
		"injected fs":       {mountCap(func(m *mountVolume) { m.FsType = "ext4 -F" }), errs.Invalid},
		"long fs":           {mountCap(func(m *mountVolume) { m.FsType = strings.Repeat("x", 129) }), errs.Invalid},
		"flags":             {mountCap(func(m *mountVolume) { m.MountFlags = []string{"noatime", "x=a b"} }), ""},
		"empty flag":        {mountCap(func(m *mountVolume) { m.MountFlags = []string{""} }), errs.Invalid},
		"flag with newline": {mountCap(func(m *mountVolume) { m.MountFlags = []string{"a\nb"} }), errs.Invalid},
		"flags full":        {mountCap(func(m *mountVolume) { m.MountFlags = []string{strings.Repeat("f", 4095), "f"} }), ""},
		"flags too long":    {mountCap(func(m *mountVolume) { m.MountFlags = []string{strings.Repeat("f", 4095), "ff"} }), errs.Invalid},
		"gid":               {mountCap(func(m *mountVolume) { m.VolumeMountGroup = "1000" }), ""},
		"gid 0":             {mountCap(func(m *mountVolume) { m.VolumeMountGroup = "0" }), ""},
		"gid name":          {mountCap(func(m *mountVolume) { m.VolumeMountGroup = "staff" }), errs.Invalid},
		"gid negative":      {mountCap(func(m *mountVolume) { m.VolumeMountGroup = "-1" }), errs.Invalid},
		"gid none":          {mountCap(func(m *mountVolume) { m.VolumeMountGroup = "4294967295" }), errs.Invalid},
		"gid odd":           {mountCap(func(m *mountVolume) { m.VolumeMountGroup = "+07" }), errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Deployment{}.parseCapability("volume_capability", c.in)
			wantKind(t, err, c.kind)
		})
	}
}

func TestCapabilityFields(t *testing.T) {
	mode := func(m spec.VolumeCapability_AccessMode_Mode) *spec.VolumeCapability { return withMode(blockCap(), m) }
	gid := 5
	for name, c := range map[string]struct {
		in   *spec.VolumeCapability
		want volume.Capability
	}{
		"writer":          {mode(spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER), volume.Capability{Block: true, Mode: volume.SingleNodeWriter}},
		"reader":          {mode(spec.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY), volume.Capability{Block: true, Mode: volume.SingleNodeReaderOnly}},
		"single writer":   {mode(spec.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER), volume.Capability{Block: true, Mode: volume.SingleNodeSingleWriter}},
		"several writers": {mode(spec.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER), volume.Capability{Block: true, Mode: volume.SingleNodeMultiWriter}},
		"mount": {
			mountCap(func(m *mountVolume) { m.VolumeMountGroup, m.FsType, m.MountFlags = "5", "xfs", []string{"noatime"} }),
			volume.Capability{FSType: "xfs", MountFlags: []string{"noatime"}, MountGroup: &gid, Mode: volume.SingleNodeWriter},
		},
	} {
		got, err := Deployment{}.parseCapability("c", c.in)
		if d := cmp.Diff(c.want, got); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, d)
		}
		if mode := c.in.GetAccessMode().GetMode(); got.Mode.CSIName() != mode.String() {
			t.Errorf("mode %v is named %s", mode, got.Mode.CSIName())
		}
	}
}

func TestMountFlagsAreNeverQuoted(t *testing.T) {
	_, err := Deployment{}.parseCapability("volume_capability", mountCap(func(m *mountVolume) { m.MountFlags = []string{"password=hush\n"} }))
	if err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("error: %v", err)
	}
}

func TestContentOfSeveralCapabilities(t *testing.T) {
	xfs := mountCap(func(m *mountVolume) { m.FsType = "xfs" })
	ext4 := mountCap(func(m *mountVolume) { m.FsType = "ext4" })
	for name, c := range map[string]struct {
		in      []*spec.VolumeCapability
		content volume.Content
		fsType  string
		kind    errs.Kind
	}{
		"none":         {nil, "", "", errs.Invalid},
		"block":        {[]*spec.VolumeCapability{blockCap(), blockCap()}, volume.Raw, "", ""},
		"mount":        {[]*spec.VolumeCapability{mountCap()}, volume.Filesystem, "", ""},
		"mixed":        {[]*spec.VolumeCapability{blockCap(), mountCap(), xfs}, volume.Filesystem, "xfs", ""},
		"two types":    {[]*spec.VolumeCapability{xfs, ext4}, "", "", errs.Invalid},
		"one is wrong": {[]*spec.VolumeCapability{mountCap(), withMode(mountCap(), 5)}, "", "", errs.Invalid},
		"one is nil":   {[]*spec.VolumeCapability{mountCap(), nil}, "", "", errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := everything().createRequest(&spec.CreateVolumeRequest{Name: "n", VolumeCapabilities: c.in})
			wantKind(t, err, c.kind)
			if err == nil && (got.Content != c.content || got.FSType != c.fsType) {
				t.Errorf("got %s %q, want %s %q", got.Content, got.FSType, c.content, c.fsType)
			}
		})
	}
}

func TestFSTypeFromParameters(t *testing.T) {
	xfs := mountCap(func(m *mountVolume) { m.FsType = "xfs" })
	for name, c := range map[string]struct {
		capability *spec.VolumeCapability
		parameters map[string]string
		want       string
		kind       errs.Kind
	}{
		"kubernetes":    {mountCap(), map[string]string{"csi.storage.k8s.io/fstype": "btrfs"}, "btrfs", ""},
		"short":         {mountCap(), map[string]string{"fsType": "xfs"}, "xfs", ""},
		"agree":         {xfs, map[string]string{"fsType": "xfs", "csi.storage.k8s.io/fstype": "xfs"}, "xfs", ""},
		"conflict":      {xfs, map[string]string{"fsType": "ext4"}, "", errs.Invalid},
		"two conflict":  {mountCap(), map[string]string{"fsType": "ext4", "csi.storage.k8s.io/fstype": "xfs"}, "", errs.Invalid},
		"unknown":       {mountCap(), map[string]string{"fsType": "zfs"}, "", errs.Invalid},
		"block forgets": {blockCap(), map[string]string{"fsType": "xfs"}, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := everything().createRequest(&spec.CreateVolumeRequest{
				Name: "n", VolumeCapabilities: []*spec.VolumeCapability{c.capability}, Parameters: c.parameters,
			})
			wantKind(t, err, c.kind)
			if err == nil && (got.FSType != c.want || len(got.Parameters) != 0) {
				t.Errorf("got %q and parameters %v, want %q and none", got.FSType, got.Parameters, c.want)
			}
		})
	}
}

func TestParametersForTheEngine(t *testing.T) {
	in := map[string]string{"provisioning": "thin", "trimInterval": "0", "csi.storage.k8s.io/pvc/name": "x"}
	got := testkit.Value(everything().createRequest(&spec.CreateVolumeRequest{
		Name: "n", VolumeCapabilities: []*spec.VolumeCapability{mountCap()}, Parameters: in,
		MutableParameters: map[string]string{"provisioning": "thick", "csi.storage.k8s.io/pv/name": "y"},
	}))(t)
	want := map[string]string{"provisioning": "thick", "trimInterval": "0"}
	if d := cmp.Diff(want, got.Parameters); d != "" {
		t.Errorf("parameters (-want +got):\n%s", d)
	}
	if len(in) != 3 {
		t.Error("the request was changed")
	}
}

// Not all known parameters are mutable.
func TestMutableParametersOnly(t *testing.T) {
	_, err := everything().createRequest(&spec.CreateVolumeRequest{
		Name: "n", VolumeCapabilities: []*spec.VolumeCapability{mountCap()}, MutableParameters: map[string]string{"provisionin": "thin"},
	})
	if wantKind(t, err, errs.Invalid); err != nil && !strings.Contains(err.Error(), "did you mean provisioning?") {
		t.Errorf("no suggestion: %v", err)
	}
}

func TestDeletionPolicyIsForTheSnapshotter(t *testing.T) {
	group := func(policy string) (map[string]string, error) {
		return groupParameters(map[string]string{"deletionPolicy": policy, "consistency": "member"})
	}
	for _, policy := range []string{"Delete", "Retain"} {
		got, err := group(policy)
		if diff := cmp.Diff(map[string]string{"consistency": "member"}, got); err != nil || diff != "" {
			t.Errorf("%s: %v, and the engine gets %s", policy, err, diff)
		}
	}
	for _, policy := range []string{"", "delete", "Keep"} {
		_, err := group(policy)
		wantKind(t, err, errs.Invalid)
	}
}

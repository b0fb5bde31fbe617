package request

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

type mountVolume = csi.VolumeCapability_MountVolume

func withMode(c *csi.VolumeCapability, mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	c.AccessMode = &csi.VolumeCapability_AccessMode{Mode: mode}
	return c
}

func TestCapability(t *testing.T) {
	for name, c := range map[string]struct {
		in   *csi.VolumeCapability
		kind errs.Kind
	}{
		"mount":             {mountCap(), ""},
		"block":             {blockCap(), ""},
		"nil":               {nil, errs.Invalid},
		"no access type":    {&csi.VolumeCapability{AccessMode: mountCap().AccessMode}, errs.Invalid},
		"no access mode":    {&csi.VolumeCapability{AccessType: mountCap().AccessType}, errs.Invalid},
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
			_, err := parseCapability("volume_capability", c.in)
			wantKind(t, err, c.kind)
		})
	}
}

func TestMountFlagsAreNeverQuoted(t *testing.T) {
	_, err := parseCapability("volume_capability", mountCap(func(m *mountVolume) { m.MountFlags = []string{"password=hush\n"} }))
	if err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("error: %v", err)
	}
}

func TestCapabilityWords(t *testing.T) {
	reader := withMode(mountCap(func(m *mountVolume) { m.VolumeMountGroup = "5" }), csi.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY)
	c, err := parseCapability("c", reader)
	if gid, ok := c.GroupID(); err != nil || !c.ReadOnly() || c.MultiPublish() || gid != 5 || !ok {
		t.Errorf("reader: %+v, %v", c, err)
	}
	c, err = parseCapability("c", withMode(blockCap(), csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER))
	if _, ok := c.GroupID(); err != nil || c.ReadOnly() || !c.MultiPublish() || ok {
		t.Errorf("writers: %+v, %v", c, err)
	}
}

// One volume must have all the capabilities of a list.
func TestContentOfSeveralCapabilities(t *testing.T) {
	xfs := mountCap(func(m *mountVolume) { m.FsType = "xfs" })
	ext4 := mountCap(func(m *mountVolume) { m.FsType = "ext4" })
	for name, c := range map[string]struct {
		in      []*csi.VolumeCapability
		content volume.Content
		fsType  string
		kind    errs.Kind
	}{
		"none":         {nil, "", "", errs.Invalid},
		"block":        {[]*csi.VolumeCapability{blockCap(), blockCap()}, volume.Raw, "", ""},
		"mount":        {[]*csi.VolumeCapability{mountCap()}, volume.Filesystem, "", ""},
		"mixed":        {[]*csi.VolumeCapability{blockCap(), mountCap(), xfs}, volume.Filesystem, "xfs", ""},
		"two types":    {[]*csi.VolumeCapability{xfs, ext4}, "", "", errs.Invalid},
		"one is wrong": {[]*csi.VolumeCapability{mountCap(), withMode(mountCap(), 5)}, "", "", errs.Invalid},
		"one is nil":   {[]*csi.VolumeCapability{mountCap(), nil}, "", "", errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := CreateVolume(&csi.CreateVolumeRequest{Name: "n", VolumeCapabilities: c.in}, Offer{})
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
		capability *csi.VolumeCapability
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
			got, err := CreateVolume(&csi.CreateVolumeRequest{
				Name: "n", VolumeCapabilities: []*csi.VolumeCapability{c.capability}, Parameters: c.parameters,
			}, Offer{})
			wantKind(t, err, c.kind)
			if err == nil && (got.FSType != c.want || len(got.Parameters) != 0) {
				t.Errorf("got %q and parameters %v, want %q and none", got.FSType, got.Parameters, c.want)
			}
		})
	}
}

func TestParametersForTheEngine(t *testing.T) {
	in := map[string]string{"provisioning": "thin", "trimInterval": "0", "csi.storage.k8s.io/pvc/name": "x"}
	got, err := CreateVolume(&csi.CreateVolumeRequest{
		Name: "n", VolumeCapabilities: []*csi.VolumeCapability{mountCap()}, Parameters: in,
		MutableParameters: map[string]string{"provisioning": "thick", "csi.storage.k8s.io/pv/name": "y"},
	}, Offer{Modify: true})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"provisioning": "thick", "trimInterval": "0"}
	if d := cmp.Diff(want, got.Parameters); d != "" {
		t.Errorf("parameters (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"provisioning"}, got.Mutable); d != "" {
		t.Errorf("mutable (-want +got):\n%s", d)
	}
	if len(in) != 3 {
		t.Error("the request was changed")
	}
}

package request

import (
	"encoding/base64"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func TestTokens(t *testing.T) {
	id := string(volume.NewID(""))
	token := ListOfVolumes.Token(id)
	if len(token) > MaxString {
		t.Errorf("a token of %d bytes is more than the contract lets a string have", len(token))
	}
	page, err := ListVolumes(&csi.ListVolumesRequest{MaxEntries: 3, StartingToken: token})
	if err != nil || page != (Page{Limit: 3, After: id}) {
		t.Errorf("got %+v, %v", page, err)
	}
	encoded := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	for name, bad := range map[string]string{
		"word": "invalid-token", "plain id": id, "padded": token + "=", "cut": token[:len(token)-1], "of another list": ListOfSnapshots.Token(id),
		"no id": ListOfVolumes.Token(""), "evil id": ListOfVolumes.Token("../x"), "other version": encoded("0:volumes:" + id),
		"number": "5", "long": strings.Repeat("A", 5000), "NUL": "\x00",
	} {
		_, err := ListVolumes(&csi.ListVolumesRequest{StartingToken: bad})
		t.Run(name, func(t *testing.T) { wantKind(t, err, errs.BadToken) })
	}
	_, err = ListVolumes(&csi.ListVolumesRequest{MaxEntries: -1})
	wantKind(t, err, errs.Invalid)
}

func topology(pairs ...string) *csi.Topology {
	segments := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		segments[pairs[i]] = pairs[i+1]
	}
	return &csi.Topology{Segments: segments}
}

func TestAccessibility(t *testing.T) {
	ours := map[string]string{"csi.cleat.dev/node": "n1", "csi.cleat.dev/zone": "z1"}
	here, there := topology("csi.cleat.dev/node", "n1"), topology("csi.cleat.dev/node", "n2")
	list := func(all ...*csi.Topology) []*csi.Topology { return all }
	for name, c := range map[string]struct {
		in     *csi.TopologyRequirement
		kind   errs.Kind
		admits bool
	}{
		"none":                 {nil, "", true},
		"here":                 {&csi.TopologyRequirement{Requisite: list(here)}, "", true},
		"there":                {&csi.TopologyRequirement{Requisite: list(there)}, "", false},
		"one of two":           {&csi.TopologyRequirement{Requisite: list(there, here), Preferred: list(there)}, "", true},
		"wish only":            {&csi.TopologyRequirement{Preferred: list(there)}, "", true},
		"other case":           {&csi.TopologyRequirement{Requisite: list(topology("csi.cleat.dev/NODE", "n1"))}, "", true},
		"unknown key":          {&csi.TopologyRequirement{Requisite: list(topology("rack", "n1"))}, "", false},
		"half right":           {&csi.TopologyRequirement{Requisite: list(topology("csi.cleat.dev/node", "n1", "csi.cleat.dev/zone", "z2"))}, "", false},
		"empty":                {&csi.TopologyRequirement{}, errs.Invalid, false},
		"wish not requisite":   {&csi.TopologyRequirement{Requisite: list(here), Preferred: list(there)}, errs.Invalid, false},
		"key twice":            {&csi.TopologyRequirement{Requisite: list(topology("Zone", "a", "zone", "a"))}, errs.Invalid, false},
		"empty key":            {&csi.TopologyRequirement{Requisite: list(topology("", "a"))}, errs.Invalid, false},
		"empty name":           {&csi.TopologyRequirement{Requisite: list(topology("a.b/", "a"))}, errs.Invalid, false},
		"empty prefix":         {&csi.TopologyRequirement{Requisite: list(topology("/zone", "a"))}, errs.Invalid, false},
		"upper-case prefix":    {&csi.TopologyRequirement{Requisite: list(topology("A.b/zone", "a"))}, errs.Invalid, false},
		"two slashes":          {&csi.TopologyRequirement{Requisite: list(topology("a/b/zone", "a"))}, errs.Invalid, false},
		"long name":            {&csi.TopologyRequirement{Requisite: list(topology(strings.Repeat("k", 64), "a"))}, errs.Invalid, false},
		"long prefix":          {&csi.TopologyRequirement{Requisite: list(topology(strings.Repeat("k", 64)+"/zone", "a"))}, errs.Invalid, false},
		"long value":           {&csi.TopologyRequirement{Requisite: list(topology("zone", strings.Repeat("v", 64)))}, errs.Invalid, false},
		"empty value":          {&csi.TopologyRequirement{Requisite: list(topology("zone", ""))}, errs.Invalid, false},
		"value with a dash":    {&csi.TopologyRequirement{Requisite: list(topology("zone", "a-"))}, errs.Invalid, false},
		"value with newline":   {&csi.TopologyRequirement{Requisite: list(topology("zone", "a\n"))}, errs.Invalid, false},
		"preferred is checked": {&csi.TopologyRequirement{Preferred: list(topology("zone", "/"))}, errs.Invalid, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseAccessibility(c.in, true)
			wantKind(t, err, c.kind)
			if err == nil && got.Admits(ours) != c.admits {
				t.Errorf("admits: got %t, want %t", !c.admits, c.admits)
			}
		})
	}
	_, err := parseAccessibility(&csi.TopologyRequirement{Requisite: list(here)}, false)
	wantKind(t, err, errs.Invalid)
}

// Well-formed is not the same as possible: only the first is an error here.
func TestValidateTellsApart(t *testing.T) {
	valid := func(edit func(*csi.ValidateVolumeCapabilitiesRequest)) (Validation, error) {
		r := &csi.ValidateVolumeCapabilitiesRequest{VolumeId: "v", VolumeCapabilities: []*csi.VolumeCapability{mountCap()}, VolumeContext: locator()}
		edit(r)
		return ValidateVolumeCapabilities(r)
	}
	for name, edit := range map[string]func(*csi.ValidateVolumeCapabilitiesRequest){
		"many nodes":     func(r *csi.ValidateVolumeCapabilitiesRequest) { withMode(r.VolumeCapabilities[0], 5) },
		"future mode":    func(r *csi.ValidateVolumeCapabilitiesRequest) { withMode(r.VolumeCapabilities[0], 99) },
		"foreign fs":     func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeCapabilities[0].GetMount().FsType = "zfs" },
		"foreign fsType": func(r *csi.ValidateVolumeCapabilitiesRequest) { r.Parameters = map[string]string{"fsType": "zfs"} },
		"foreign access": func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeContext["targetType"] = "nfs" },
	} {
		if v, err := valid(edit); err != nil || v.Unsupported == "" || v.Volume != "v" {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
	}
	for name, edit := range map[string]func(*csi.ValidateVolumeCapabilitiesRequest){
		"no id":   func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeId = "" },
		"none":    func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeCapabilities = nil },
		"no mode": func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeCapabilities[0].AccessMode = nil },
		"no type": func(r *csi.ValidateVolumeCapabilitiesRequest) { r.VolumeCapabilities[0].AccessType = nil },
	} {
		_, err := valid(edit)
		t.Run(name, func(t *testing.T) { wantKind(t, err, errs.Invalid) })
	}
}

func TestFingerprint(t *testing.T) {
	base := func() *csi.CreateVolumeRequest {
		return &csi.CreateVolumeRequest{
			Name: "n", Parameters: map[string]string{"a": "1", "b": "2", "c": "3"}, Secrets: map[string]string{"key": "one"},
			VolumeCapabilities: []*csi.VolumeCapability{mountCap()},
		}
	}
	same := base()
	same.Secrets = map[string]string{"other": "two"}
	if Fingerprint(base()) != Fingerprint(same) {
		t.Error("secrets make a difference")
	}
	if same.Secrets["other"] != "two" {
		t.Error("the request was changed")
	}
	other := base()
	other.Parameters["a"] = "2"
	if Fingerprint(base()) == Fingerprint(other) {
		t.Error("parameters make no difference")
	}
	if Fingerprint(&csi.DeleteVolumeRequest{VolumeId: "x"}) == Fingerprint(&csi.ControllerGetVolumeRequest{VolumeId: "x"}) {
		t.Error("the type of the request makes no difference")
	}
}

func TestGroupsAreSets(t *testing.T) {
	r, err := CreateVolumeGroupSnapshot(&csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"b", "a"}})
	if err != nil || len(r.Sources) != 2 || r.Sources[0] != "a" {
		t.Errorf("%+v, %v", r, err)
	}
	_, err = CreateVolumeGroupSnapshot(&csi.CreateVolumeGroupSnapshotRequest{Name: "g", SourceVolumeIds: []string{"b", "a", "b"}})
	wantKind(t, err, errs.Invalid)
}

func TestDeletionPolicyIsTheSnapshotters(t *testing.T) {
	group := func(policy string) (volume.GroupRequest, error) {
		return CreateVolumeGroupSnapshot(&csi.CreateVolumeGroupSnapshotRequest{
			Name: "g", SourceVolumeIds: []string{"a"}, Parameters: map[string]string{"deletionPolicy": policy, "consistency": "member"},
		})
	}
	for _, policy := range []string{"Delete", "Retain"} {
		r, err := group(policy)
		if diff := cmp.Diff(map[string]string{"consistency": "member"}, r.Parameters); err != nil || diff != "" {
			t.Errorf("%s: %v, and the engine sees %s", policy, err, diff)
		}
	}
	for _, policy := range []string{"", "delete", "Keep"} {
		_, err := group(policy)
		wantKind(t, err, errs.Invalid)
	}
}

func TestMetadataOffsets(t *testing.T) {
	_, err := GetMetadataAllocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "s", StartingOffset: -1})
	wantKind(t, err, errs.OutOfRange)
	_, err = GetMetadataAllocated(&csi.GetMetadataAllocatedRequest{SnapshotId: "s", MaxResults: -1})
	wantKind(t, err, errs.Invalid)
	_, err = GetMetadataDelta(&csi.GetMetadataDeltaRequest{TargetSnapshotId: "s"})
	wantKind(t, err, errs.Invalid)
	_, err = GetMetadataDelta(&csi.GetMetadataDeltaRequest{BaseSnapshotId: "s", TargetSnapshotId: "s", StartingOffset: -1})
	wantKind(t, err, errs.OutOfRange)
}

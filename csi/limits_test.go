package csi

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// An empty kind wants no error.
func wantKind(t *testing.T, err error, kind errs.Kind) {
	t.Helper()
	switch {
	case kind == "" && err != nil:
		t.Errorf("got %v, want no error", err)
	case kind != "" && err == nil:
		t.Errorf("got no error, want %q", kind)
	case kind != "" && errs.KindOf(err) != kind:
		t.Errorf("got %q of kind %q, want kind %q", err, errs.KindOf(err), kind)
	}
}

func mountCap(edit ...func(*spec.VolumeCapability_MountVolume)) *spec.VolumeCapability {
	m := &spec.VolumeCapability_MountVolume{}
	for _, e := range edit {
		e(m)
	}
	return &spec.VolumeCapability{
		AccessType: &spec.VolumeCapability_Mount{Mount: m},
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func blockCap() *spec.VolumeCapability {
	return &spec.VolumeCapability{
		AccessType: &spec.VolumeCapability_Block{Block: &spec.VolumeCapability_BlockVolume{}},
		AccessMode: &spec.VolumeCapability_AccessMode{Mode: spec.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func TestPaths(t *testing.T) {
	long := "/" + strings.Repeat(strings.Repeat("d", 200)+"/", 30) + "x"
	for path, kind := range map[string]errs.Kind{
		"/var/lib/kubelet/plugins/x/globalmount": "",
		"/a b/ü\nc":                              "",
		"/..a/b..":                               "",
		"":                                       errs.Invalid,
		"/":                                      errs.Invalid,
		"some/path":                              errs.Invalid,
		"./a":                                    errs.Invalid,
		"/a/../b":                                errs.Invalid,
		"/../etc":                                errs.Invalid,
		"/a/./b":                                 errs.Invalid,
		"/a//b":                                  errs.Invalid,
		"/a/":                                    errs.Invalid,
		"/a\x00b":                                errs.Invalid,
		"/" + strings.Repeat("n", 255):           "",
		"/" + strings.Repeat("n", 256):           errs.Invalid,
		long:                                     errs.Invalid,
		long[:4095]:                              "",
	} {
		t.Run(errs.Quote(path), func(t *testing.T) { wantKind(t, checkPath("path", path), kind) })
	}
}

func TestNames(t *testing.T) {
	for name, kind := range map[string]errs.Kind{
		"pvc-1": "", "a/../../b": "", "tab\tnewline\ncr\r": "", "日本語": "", strings.Repeat("n", 128): "",
		"": errs.Invalid, strings.Repeat("n", 129): errs.Invalid, strings.Repeat("ü", 65): errs.Invalid,
		"nul\x00": errs.Invalid, "\x08": errs.Invalid, "\x0b": errs.Invalid, "\x0c": errs.Invalid, "\x0e": errs.Invalid,
		"\x1f": errs.Invalid, "\x7f": errs.Invalid, "\u0080": errs.Invalid, "\u009f": errs.Invalid, "\u00a0": "",
	} {
		t.Run(errs.Quote(name), func(t *testing.T) { wantKind(t, checkName("name", name), kind) })
	}
}

func TestMaps(t *testing.T) {
	half := strings.Repeat("v", 2047)
	wantKind(t, checkMap("m", map[string]string{"a": half, "b": half}), "")
	wantKind(t, checkMap("m", map[string]string{"a": half, "bb": half}), errs.Invalid)
}

func TestMessagesDoNotFlood(t *testing.T) {
	err := checkID("volume_id", strings.Repeat("x", 1<<20))
	if err == nil || len(err.Error()) > 300 {
		t.Errorf("the message has %d bytes", len(err.Error()))
	}
	err = checkName("name", "\x01"+strings.Repeat("x", 100))
	if err == nil || len(err.Error()) > 300 {
		t.Errorf("message: %v", err)
	}
}

func TestQuantities(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "512Mi": 512 << 20, "10Gi": 10 << 30, "5G": 5e9, "3k": 3000, "1Ki": 1024, "7Ei": 7 << 60, "9223372036854775807": 1<<63 - 1,
	} {
		if got, err := parseQuantity("size", text); err != nil || got != want {
			t.Errorf("%s: got %d, %v, want %d", text, got, err, want)
		}
	}
	for text, kind := range map[string]errs.Kind{
		"": errs.Invalid, "Gi": errs.Invalid, "0": errs.Invalid, "-1": errs.Invalid, "1.5Gi": errs.Invalid, "10 Gi": errs.Invalid,
		"1gi": errs.Invalid, "1iG": errs.Invalid, "1GiGi": errs.Invalid, "8Ei": errs.OutOfRange, "9223372036854775808": errs.Invalid,
	} {
		_, err := parseQuantity("size", text)
		t.Run(text, func(t *testing.T) { wantKind(t, err, kind) })
	}
}

func TestSizes(t *testing.T) {
	for name, c := range map[string]struct {
		in   *spec.CapacityRange
		want volume.SizeRange
		kind errs.Kind
	}{
		"absent":           {nil, volume.SizeRange{}, ""},
		"exact":            {&spec.CapacityRange{RequiredBytes: 5, LimitBytes: 5}, volume.SizeRange{Required: 5, Limit: 5}, ""},
		"limit only":       {&spec.CapacityRange{LimitBytes: 5}, volume.SizeRange{Limit: 5}, ""},
		"absurd":           {&spec.CapacityRange{RequiredBytes: 1<<63 - 1}, volume.SizeRange{Required: 1<<63 - 1}, ""},
		"neither":          {&spec.CapacityRange{}, volume.SizeRange{}, errs.Invalid},
		"negative":         {&spec.CapacityRange{RequiredBytes: -1}, volume.SizeRange{}, errs.Invalid},
		"negative limit":   {&spec.CapacityRange{RequiredBytes: 1, LimitBytes: -1}, volume.SizeRange{}, errs.Invalid},
		"limit < required": {&spec.CapacityRange{RequiredBytes: 2, LimitBytes: 1}, volume.SizeRange{}, errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseRange("capacity_range", c.in)
			wantKind(t, err, c.kind)
			if err == nil && got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// The message is kept; other errors are unchanged.
func TestRefused(t *testing.T) {
	full := fmt.Errorf("expand: %w", errs.Errorf(errs.Exhausted, "7 bytes are left"))
	for _, c := range []struct {
		err  error
		want codes.Code
	}{{full, codes.OutOfRange}, {errs.Precondition, codes.FailedPrecondition}, {errors.New("plain"), codes.Internal}, {nil, codes.OK}} {
		got := refused(c.err, errs.OutOfRange)
		if errs.Code(got) != c.want {
			t.Errorf("%v: got %v, want %v", c.err, errs.Code(got), c.want)
		}
		if c.err != nil && got.Error() != c.err.Error() {
			t.Errorf("%q became %q", c.err, got)
		}
	}
}

func TestFingerprint(t *testing.T) {
	base := func() *spec.CreateVolumeRequest {
		return &spec.CreateVolumeRequest{
			Name: "n", Parameters: map[string]string{"a": "1", "b": "2", "c": "3"}, Secrets: map[string]string{"key": "one"},
			VolumeCapabilities: []*spec.VolumeCapability{mountCap()},
		}
	}
	same := base()
	same.Secrets = map[string]string{"other": "two"}
	if fingerprint(base()) != fingerprint(same) {
		t.Error("secrets make a difference")
	}
	if same.Secrets["other"] != "two" {
		t.Error("the request was changed")
	}
	other := base()
	other.Parameters["a"] = "2"
	if fingerprint(base()) == fingerprint(other) {
		t.Error("parameters make no difference")
	}
	if fingerprint(&spec.DeleteVolumeRequest{VolumeId: "x"}) == fingerprint(&spec.ControllerGetVolumeRequest{VolumeId: "x"}) {
		t.Error("the type of the request makes no difference")
	}
}

func TestTokens(t *testing.T) {
	id := string(volume.NewID(""))
	token := listOfVolumes.token(id)
	if len(token) > maxString {
		t.Errorf("a token of %d bytes is more than the contract lets a string have", len(token))
	}
	if after, err := listOfVolumes.parseToken(token); err != nil || after != id {
		t.Errorf("got %q, %v", after, err)
	}
	encoded := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	for name, bad := range map[string]string{
		"word": "invalid-token", "plain id": id, "padded": token + "=", "truncated": token[:len(token)-1], "of another list": listOfSnapshots.token(id),
		"no id": listOfVolumes.token(""), "evil id": listOfVolumes.token("../x"), "other version": encoded("0:volumes:" + id),
		"number": "5", "long": strings.Repeat("A", 5000), "NUL": "\x00",
	} {
		_, err := listOfVolumes.parseToken(bad)
		t.Run(name, func(t *testing.T) { wantKind(t, err, errs.BadToken) })
	}
}

func topology(pairs ...string) *spec.Topology {
	segments := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		segments[pairs[i]] = pairs[i+1]
	}
	return &spec.Topology{Segments: segments}
}

func TestAccessibility(t *testing.T) {
	ours := map[string]string{"csi.cleat.dev/node": "n1", "csi.cleat.dev/zone": "z1"}
	here, there := topology("csi.cleat.dev/node", "n1"), topology("csi.cleat.dev/node", "n2")
	list := func(all ...*spec.Topology) []*spec.Topology { return all }
	for name, c := range map[string]struct {
		in   *spec.TopologyRequirement
		kind errs.Kind
	}{
		"none":                     {nil, ""},
		"here":                     {&spec.TopologyRequirement{Requisite: list(here)}, ""},
		"there":                    {&spec.TopologyRequirement{Requisite: list(there)}, errs.Exhausted},
		"one of two":               {&spec.TopologyRequirement{Requisite: list(there, here), Preferred: list(there)}, ""},
		"preferred only":           {&spec.TopologyRequirement{Preferred: list(there)}, ""},
		"other case":               {&spec.TopologyRequirement{Requisite: list(topology("csi.cleat.dev/NODE", "n1"))}, ""},
		"unknown key":              {&spec.TopologyRequirement{Requisite: list(topology("rack", "n1"))}, errs.Exhausted},
		"half right":               {&spec.TopologyRequirement{Requisite: list(topology("csi.cleat.dev/node", "n1", "csi.cleat.dev/zone", "z2"))}, errs.Exhausted},
		"empty":                    {&spec.TopologyRequirement{}, errs.Invalid},
		"preferred, not requisite": {&spec.TopologyRequirement{Requisite: list(here), Preferred: list(there)}, errs.Invalid},
		"key twice":                {&spec.TopologyRequirement{Requisite: list(topology("Zone", "a", "zone", "a"))}, errs.Invalid},
		"empty key":                {&spec.TopologyRequirement{Requisite: list(topology("", "a"))}, errs.Invalid},
		"empty name":               {&spec.TopologyRequirement{Requisite: list(topology("a.b/", "a"))}, errs.Invalid},
		"empty prefix":             {&spec.TopologyRequirement{Requisite: list(topology("/zone", "a"))}, errs.Invalid},
		"upper-case prefix":        {&spec.TopologyRequirement{Requisite: list(topology("A.b/zone", "a"))}, errs.Invalid},
		"two slashes":              {&spec.TopologyRequirement{Requisite: list(topology("a/b/zone", "a"))}, errs.Invalid},
		"long name":                {&spec.TopologyRequirement{Requisite: list(topology(strings.Repeat("k", 64), "a"))}, errs.Invalid},
		"long prefix":              {&spec.TopologyRequirement{Requisite: list(topology(strings.Repeat("k", 64)+"/zone", "a"))}, errs.Invalid},
		"long value":               {&spec.TopologyRequirement{Requisite: list(topology("zone", strings.Repeat("v", 64)))}, errs.Invalid},
		"empty value":              {&spec.TopologyRequirement{Requisite: list(topology("zone", ""))}, errs.Invalid},
		"value with a dash":        {&spec.TopologyRequirement{Requisite: list(topology("zone", "a-"))}, errs.Invalid},
		"value with newline":       {&spec.TopologyRequirement{Requisite: list(topology("zone", "a\n"))}, errs.Invalid},
		"preferred is checked":     {&spec.TopologyRequirement{Preferred: list(topology("zone", "/"))}, errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			wantKind(t, announcement{segments: ours}.checkAccessibility("volumes", c.in), c.kind)
		})
	}
	wantKind(t, announcement{}.checkAccessibility("volumes", &spec.TopologyRequirement{Requisite: list(here)}), errs.Invalid)
}

package request

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

// wantKind checks the kind of an error; an empty kind wants none.
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

func mountCap(edit ...func(*csi.VolumeCapability_MountVolume)) *csi.VolumeCapability {
	m := &csi.VolumeCapability_MountVolume{}
	for _, e := range edit {
		e(m)
	}
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: m},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func blockCap() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
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
	_, err := DeleteVolume(&csi.DeleteVolumeRequest{VolumeId: strings.Repeat("x", 1<<20)})
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
		in   *csi.CapacityRange
		want volume.SizeRange
		kind errs.Kind
	}{
		"absent":         {nil, volume.SizeRange{}, ""},
		"exact":          {&csi.CapacityRange{RequiredBytes: 5, LimitBytes: 5}, volume.SizeRange{Required: 5, Limit: 5}, ""},
		"limit only":     {&csi.CapacityRange{LimitBytes: 5}, volume.SizeRange{Limit: 5}, ""},
		"absurd":         {&csi.CapacityRange{RequiredBytes: 1<<63 - 1}, volume.SizeRange{Required: 1<<63 - 1}, ""},
		"neither":        {&csi.CapacityRange{}, volume.SizeRange{}, errs.Invalid},
		"negative":       {&csi.CapacityRange{RequiredBytes: -1}, volume.SizeRange{}, errs.Invalid},
		"negative limit": {&csi.CapacityRange{RequiredBytes: 1, LimitBytes: -1}, volume.SizeRange{}, errs.Invalid},
		"limit < wish":   {&csi.CapacityRange{RequiredBytes: 2, LimitBytes: 1}, volume.SizeRange{}, errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseRange("capacity_range", c.in)
			wantKind(t, err, c.kind)
			if got != c.want {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

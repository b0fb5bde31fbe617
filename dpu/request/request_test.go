package request_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

type kv = map[string]string

const (
	rwo  = storagev1.AccessMode_ACCESS_MODE_RWO
	rox  = storagev1.AccessMode_ACCESS_MODE_ROX
	rwx  = storagev1.AccessMode_ACCESS_MODE_RWX
	rwop = storagev1.AccessMode_ACCESS_MODE_RWOP
)

// names checks that an error is Invalid and holds the words.
func names(t *testing.T, err error, words ...string) {
	t.Helper()
	if errs.KindOf(err) != errs.Invalid || err == nil {
		t.Errorf("%v, want an error of kind %q", err, errs.Invalid)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q does not hold %q", err, w)
		}
	}
}

func TestParseCreate(t *testing.T) {
	r := &storagev1.CreateDeviceRequest{
		VolumeId: "pvc-1f0e", VolumeMode: "Block", AccessModes: []storagev1.AccessMode{rwx, rwo, rwx},
		PublishContext: kv{"nv-volumeName": "pv-1"}, VolumeContext: kv{"targetType": "tcp"}, StorageParameters: kv{"num_queues": "4"},
	}
	got := testkit.Value(request.ParseCreate(r))(t)
	want := request.Create{
		Volume: "pvc-1f0e", Mode: request.Block, Modes: []storagev1.AccessMode{rwo, rwx},
		Contexts: request.Contexts{Publish: kv{"nv-volumeName": "pv-1"}, Volume: kv{"targetType": "tcp"}, Storage: kv{"num_queues": "4"}},
	}
	testkit.Diff(t, "result", want, got)
	r.VolumeContext["targetType"], r.AccessModes[0] = "rdma", rox
	if got.Contexts.Volume["targetType"] != "tcp" || got.Modes[1] != rwx {
		t.Errorf("a change of the message changes what was read of it: %+v", got)
	}
}

func TestParseCreateRefuses(t *testing.T) {
	for _, c := range []struct {
		what  string
		r     *storagev1.CreateDeviceRequest
		words []string
	}{
		{"nothing", nil, []string{"volume_id is missing"}},
		{"volume", &storagev1.CreateDeviceRequest{VolumeId: "../x", VolumeMode: "Block"}, []string{`volume_id "../x"`, "pvc-1f0e"}},
		{"volume mode", &storagev1.CreateDeviceRequest{VolumeId: "v", VolumeMode: "block"}, []string{`volume_mode "block"`, "Block or Filesystem"}},
		{"access mode", &storagev1.CreateDeviceRequest{VolumeId: "v", AccessModes: []storagev1.AccessMode{rwo, 0}}, []string{"access mode 0", "ACCESS_MODE_RWO (1)"}},
		{"contexts", &storagev1.CreateDeviceRequest{VolumeId: "v", StorageParameters: kv{"psk": strings.Repeat("0f", 32)}}, []string{`storage_parameters: "psk"`, "not shown", "key directory"}},
		{"key outside", &storagev1.CreateDeviceRequest{VolumeId: "v", VolumeContext: kv{"dhchapKey": "../etc/shadow"}}, []string{`volume_context: "dhchapKey"`, "holds a path", "without slashes"}},
	} {
		t.Run(c.what, func(t *testing.T) {
			got, err := request.ParseCreate(c.r)
			names(t, err, c.words...)
			testkit.Diff(t, "something is returned beside the error", request.Create{}, got)
		})
	}
}

func TestCheckVolume(t *testing.T) {
	for _, id := range []string{"v", "7", "pvc-1f0e", "data.postgres-0", "A_b", "a--b", strings.Repeat("v", 253)} {
		if err := request.CheckVolume(id); err != nil {
			t.Errorf("%q: %v", id, err)
		}
	}
	for _, id := range []string{
		".", "..", "...", "/", "a/b", "../a", "a/..", "a..b", ".a", "a.", "-a", "a-", "_a", "a b", " a", "a\n", "a\x00", "a\\b", "a:b", "é", "a\xffb", "a%2fb", "~", "*",
	} {
		names(t, request.CheckVolume(id), "volume_id", "letters, digits")
	}
	names(t, request.CheckVolume(""), "volume_id is missing")
	names(t, request.CheckVolume(strings.Repeat("v", 254)), "volume_id has 254 bytes, at most 253 are allowed")
	if err := request.CheckVolume(strings.Repeat("/", 1<<20)); len(err.Error()) > 200 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
}

func TestParseMode(t *testing.T) {
	for word, want := range map[string]request.Mode{"": request.Filesystem, "Filesystem": request.Filesystem, "Block": request.Block} {
		if got, err := request.ParseMode(word); err != nil || got != want {
			t.Errorf("ParseMode(%q) = %q, %v, want %q", word, got, err, want)
		}
	}
	for _, word := range []string{"block", "FILESYSTEM", " Block", "Block\n", "Mount", "\xff"} {
		_, err := request.ParseMode(word)
		names(t, err, fmt.Sprintf("volume_mode %q", word), "Block or Filesystem")
	}
	if _, err := request.ParseMode(strings.Repeat("x", 1<<20)); len(err.Error()) > 400 {
		t.Errorf("the error has %d bytes", len(err.Error()))
	}
}

func TestParseModes(t *testing.T) {
	for _, c := range []struct{ in, want []storagev1.AccessMode }{
		{nil, nil},
		{[]storagev1.AccessMode{}, nil},
		{[]storagev1.AccessMode{rwop}, []storagev1.AccessMode{rwop}},
		{[]storagev1.AccessMode{rwx, rwo, rox, rwo, rwx}, []storagev1.AccessMode{rwo, rox, rwx}},
	} {
		got, err := request.ParseModes(c.in)
		if err != nil || !cmp.Equal(got, c.want) {
			t.Errorf("ParseModes(%v) = %v, %v, want %v", c.in, got, err, c.want)
		}
	}
	for _, m := range []storagev1.AccessMode{0, 5, 99, -1} {
		_, err := request.ParseModes([]storagev1.AccessMode{rwo, m})
		names(t, err, fmt.Sprintf("unknown access mode %d", m), "RWOP (4)")
	}
}

func TestReadOnly(t *testing.T) {
	for _, c := range []struct {
		modes []storagev1.AccessMode
		want  bool
	}{
		{nil, false}, {[]storagev1.AccessMode{rox}, true}, {[]storagev1.AccessMode{rwo}, false}, {[]storagev1.AccessMode{rox, rwx}, false}, {[]storagev1.AccessMode{rwop}, false},
	} {
		if got := (request.Create{Modes: c.modes}).ReadOnly(); got != c.want {
			t.Errorf("%v: ReadOnly = %t", c.modes, got)
		}
	}
}

func TestDeleteAndGet(t *testing.T) {
	for name, parse := range map[string]func(id, name string) (request.Device, error){
		"delete": func(id, name string) (request.Device, error) {
			return request.ParseDelete(&storagev1.DeleteDeviceRequest{VolumeId: id, DeviceName: name})
		},
		"get": func(id, name string) (request.Device, error) {
			return request.ParseGet(&storagev1.GetDeviceRequest{VolumeId: id, DeviceName: name})
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, device := range []string{"", "cleat_nvme_0123456789abcdefn1", "../x", "a b", strings.Repeat("d", 4096)} {
				got, err := parse("v", device)
				if want := (request.Device{Volume: "v", Name: device}); err != nil || got != want {
					t.Errorf("%q: %+v, %v", device, got, err)
				}
			}
			for _, c := range []struct{ id, device, words string }{
				{"", "d", "volume_id is missing"}, {"..", "d", `volume_id ".."`},
				{"v", strings.Repeat("d", 4097), "device_name has 4097 bytes"}, {"v", "DHHC-1:00:x:", "device_name looks like an NVMe or Ceph key"},
			} {
				got, err := parse(c.id, c.device)
				names(t, err, c.words)
				if got != (request.Device{}) {
					t.Errorf("%+v beside the error", got)
				}
			}
		})
	}
	if _, err := request.ParseDelete(nil); err == nil {
		t.Error("no message is a DeleteDevice")
	}
	if _, err := request.ParseGet(nil); err == nil {
		t.Error("no message is a GetDevice")
	}
}

func TestParsePage(t *testing.T) {
	for _, c := range []struct {
		max   int32
		token string
		want  request.Page
	}{
		{0, "", request.Page{Max: 4096}}, {1, "", request.Page{Max: 1}}, {4096, "", request.Page{Max: 4096}},
		{4097, "", request.Page{Max: 4096}}, {1<<31 - 1, "", request.Page{Max: 4096}},
		{2, request.Token("pvc-1"), request.Page{Max: 2, After: "pvc-1"}},
	} {
		got, err := request.ParsePage(&storagev1.ListDevicesRequest{MaxEntries: c.max, StartingToken: c.token})
		if err != nil || got != c.want {
			t.Errorf("%d, %q: %+v, %v, want %+v", c.max, c.token, got, err, c.want)
		}
	}
	if got, err := request.ParsePage(nil); err != nil || got.Max != 4096 {
		t.Errorf("no message: %+v, %v", got, err)
	}
	for _, max := range []int32{-1, -1 << 31} {
		_, err := request.ParsePage(&storagev1.ListDevicesRequest{MaxEntries: max})
		names(t, err, fmt.Sprintf("max_entries %d", max))
		if errors.Is(err, request.ErrToken) {
			t.Errorf("max_entries %d is called a bad token: %v", max, err)
		}
	}
}

// Tokens stay valid over restarts and releases.
func TestTokenNeverChanges(t *testing.T) {
	if got := request.Token("pvc-1f0e"); got != "F6i223B2Yy0xZjBl" {
		t.Errorf("Token = %q", got)
	}
}

func TestBadTokens(t *testing.T) {
	good := request.Token("pvc-1")
	for what, token := range map[string]string{
		"a volume": "pvc-1", "a blank": " ", "JSON": "{}", "NUL": "\x00", "not UTF-8": "\xff", "nothing but a checksum": request.Token(""),
		"truncated": good[:len(good)-1], "longer": good + "A", "padded": good + "=", "a line break behind": good + "\n", "a line break within": good[:3] + "\r\n" + good[3:],
		"another letter": "A" + good[1:], "of what is no volume": request.Token("../x"), "of a volume too long": request.Token(strings.Repeat("v", 254)),
		"long": strings.Repeat("9", 4096), "very long": strings.Repeat("A", 1<<22),
	} {
		t.Run(what, func(t *testing.T) {
			got, err := request.ParsePage(&storagev1.ListDevicesRequest{StartingToken: token})
			names(t, err, "start again without a token")
			if !errors.Is(err, request.ErrToken) || got != (request.Page{}) || len(err.Error()) > 400 {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	longest := strings.Repeat("v", 253)
	if got, err := request.ParsePage(&storagev1.ListDevicesRequest{StartingToken: request.Token(longest)}); err != nil || got.After != longest {
		t.Errorf("the longest name there is: %+v, %v", got, err)
	}
}

package request_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

// most is gRPC's default limit of a message.
const most = 4 << 20

func many(n int) kv {
	m := kv{}
	for i := range n {
		m[fmt.Sprint("k", i)] = "v"
	}
	return m
}

// TestBounds: the size of recorded contexts is bounded, and the error names the
// limit without the contents.
func TestBounds(t *testing.T) {
	for _, c := range []struct {
		what                     string
		publish, volume, storage kv
		words                    string // of the error; empty: accepted
	}{
		{"maximum number of keys", many(500), many(500), many(24), ""},
		{"one key more", many(500), many(500), many(25), "1025 keys in total, at most 1024"},
		{"ten thousand keys", nil, many(10000), nil, "10000 keys in total, at most 1024"},
		{"maximum size", kv{"abcd": strings.Repeat("x", 128<<10-4)}, nil, nil, ""},
		{"one byte more in a value", nil, nil, kv{"abcd": strings.Repeat("x", 128<<10-3)}, "131073 bytes in total, at most 131072"},
		{"one byte more in another map", kv{"abcd": strings.Repeat("x", 128<<10-4)}, kv{"a": ""}, nil, "131073 bytes"},
		{"a long key", nil, kv{strings.Repeat("k", most): ""}, nil, "4194304 bytes"},
		{"invalid UTF-8 in a value", nil, kv{"key": "a\xff"}, nil, `volume_context: key "key" or its value is not UTF-8`},
		{"invalid UTF-8 in a key", kv{"a\xc3": "v"}, nil, nil, `publish_context: key "a\xc3"`},
		{"half a surrogate", nil, nil, kv{"key": "\xed\xa0\x80"}, "storage_parameters: key"},
		{"NUL and marks", kv{"\x00": "\u202e\n"}, nil, nil, ""},
		{"an empty key", nil, kv{"": ""}, nil, ""},
	} {
		t.Run(c.what, func(t *testing.T) {
			_, err := request.ParseCreate(&storagev1.CreateDeviceRequest{VolumeId: "v", PublishContext: c.publish, VolumeContext: c.volume, StorageParameters: c.storage})
			if c.words == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			names(t, err, c.words)
			if len(err.Error()) > 500 {
				t.Errorf("the error has %d bytes", len(err.Error()))
			}
		})
	}
}

// The locator is found among the maximum number of keys.
func TestLocatorAmongManyKeys(t *testing.T) {
	context := many(900)
	for k, v := range dialects()[0].context {
		context[k] = v
	}
	if c, err := locate(request.Block, publish(), context, nil); err != nil || c.Access == nil {
		t.Errorf("%v, %v", c.Access, err)
	}
}

func TestManyAccessModes(t *testing.T) {
	var modes []storagev1.AccessMode
	for i := range 1 << 20 {
		modes = append(modes, storagev1.AccessMode(i%4+1))
	}
	c, err := request.ParseCreate(&storagev1.CreateDeviceRequest{VolumeId: "v", AccessModes: modes})
	if err != nil || !cmp.Equal(c.Modes, []storagev1.AccessMode{rwo, rox, rwx, rwop}) || cap(c.Modes) > 64 {
		t.Errorf("%v (capacity %d), %v", c.Modes, cap(c.Modes), err)
	}
}

// A full page fits the message limit, for any volume names.
func TestFullPageFitsAMessage(t *testing.T) {
	page := testkit.Value(request.ParsePage(&storagev1.ListDevicesRequest{MaxEntries: 1 << 30}))(t)
	if page.Max > most {
		t.Fatalf("%d entries in one page", page.Max)
	}
	longest := strings.Repeat("v", 253)
	r := &storagev1.ListDevicesResponse{NextToken: request.Token(longest)}
	for range page.Max {
		r.Entries = append(r.Entries, &storagev1.ListDevicesResponse_Entry{VolumeId: longest, DeviceName: strings.Repeat("d", 190)})
	}
	if size := proto.Size(r); size > most {
		t.Errorf("%d entries have %d bytes", page.Max, size)
	}
}

func TestDiffering(t *testing.T) {
	a := request.Contexts{Publish: kv{"a": "1", "b": ""}, Volume: kv{"same": "x"}, Storage: kv{"k": "1"}}
	b := request.Contexts{Publish: kv{"a": "2"}, Volume: kv{"same": "x", "new": ""}, Storage: kv{"k": "1"}}
	want := []string{"publish_context/a", "publish_context/b", "volume_context/new"}
	for _, two := range [][2]request.Contexts{{a, b}, {b, a}} {
		if diff := cmp.Diff(want, two[0].Differing(two[1])); diff != "" || two[0].Equal(two[1]) {
			t.Errorf("Equal is %t; (-want +got):\n%s", two[0].Equal(two[1]), diff)
		}
	}
	if !(request.Contexts{}).Equal(request.Contexts{Publish: kv{}, Volume: kv{}}) || !a.Equal(a) {
		t.Error("equal contexts differ")
	}
	// Equal keys of different maps differ.
	if (request.Contexts{Publish: kv{"a": "1"}}).Equal(request.Contexts{Volume: kv{"a": "1"}}) {
		t.Error("two maps are taken for one")
	}
	if strings.Contains(fmt.Sprint(a.Differing(request.Contexts{Publish: kv{"a": "hunter2"}})), "hunter2") {
		t.Error("a value is shown")
	}
}

// All invalid fields are errors of the same kind.
func TestEveryErrorIsInvalid(t *testing.T) {
	_, page := request.ParsePage(&storagev1.ListDevicesRequest{StartingToken: "x"})
	_, mode := request.ParseMode("x")
	_, modes := request.ParseModes([]storagev1.AccessMode{0})
	for _, err := range []error{page, mode, modes, request.CheckVolume("")} {
		if errs.KindOf(err) != errs.Invalid {
			t.Errorf("%v is of kind %q", err, errs.KindOf(err))
		}
	}
}

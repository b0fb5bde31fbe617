package storagev1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// The bytes are written by hand: a tag is field<<3 | type, where type 2 is
// something with a length and 0 a number.
var wire = []struct {
	message proto.Message
	bytes   string
}{
	{&GetPluginInfoRequest{}, ""},
	{&GetPluginInfoResponse{Name: "a.example", VendorVersion: "1.0", Manifest: map[string]string{"k": "v"}},
		"\x0a\x09a.example" + "\x12\x031.0" + "\x1a\x06\x0a\x01k\x12\x01v"},
	{&ProbeRequest{}, ""},
	{&ProbeResponse{}, ""},
	// Not ready is not the same as not said.
	{&ProbeResponse{Ready: wrapperspb.Bool(false)}, "\x0a\x00"},
	{&ProbeResponse{Ready: wrapperspb.Bool(true)}, "\x0a\x02\x08\x01"},
	{&StoragePluginGetCapabilitiesRequest{}, ""},
	{&StoragePluginGetCapabilitiesResponse{Capabilities: []*StoragePluginServiceCapability{
		capability(StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_BLOCK_DEVICE),
		capability(StoragePluginServiceCapability_RPC_TYPE_CREATE_DELETE_FS_DEVICE),
		capability(StoragePluginServiceCapability_RPC_TYPE_GET_DEVICE_STATS),
		capability(StoragePluginServiceCapability_RPC_TYPE_LIST_DEVICES),
	}}, "\x0a\x04\x0a\x02\x08\x01" + "\x0a\x04\x0a\x02\x08\x02" + "\x0a\x04\x0a\x02\x08\x03" + "\x0a\x04\x0a\x02\x08\x04"},
	{capability(StoragePluginServiceCapability_RPC_TYPE_UNSPECIFIED), "\x0a\x00"},
	{&StoragePluginServiceCapability{}, ""},
	{&StoragePluginServiceCapability_RPC{Type: 4}, "\x08\x04"},
	{&GetSNAPProviderRequest{}, ""},
	{&GetSNAPProviderResponse{}, ""},
	{&GetSNAPProviderResponse{ProviderName: "mine"}, "\x0a\x04mine"},
	{&CreateDeviceRequest{
		VolumeId:          "pvc-1",
		AccessModes:       []AccessMode{AccessMode_ACCESS_MODE_RWO, AccessMode_ACCESS_MODE_ROX, AccessMode_ACCESS_MODE_RWX, AccessMode_ACCESS_MODE_RWOP},
		VolumeMode:        "Block",
		PublishContext:    map[string]string{"p": "1"},
		VolumeContext:     map[string]string{"v": "2"},
		StorageParameters: map[string]string{"s": "3"},
	}, "\x0a\x05pvc-1" + "\x12\x04\x01\x02\x03\x04" + "\x1a\x05Block" +
		"\x22\x06\x0a\x01p\x12\x011" + "\x2a\x06\x0a\x01v\x12\x012" + "\x32\x06\x0a\x01s\x12\x013"},
	{&CreateDeviceRequest{}, ""},
	{&CreateDeviceResponse{DeviceName: "nvme0n1"}, "\x0a\x07nvme0n1"},
	{&DeleteDeviceRequest{VolumeId: "pvc-1", DeviceName: "d"}, "\x0a\x05pvc-1" + "\x12\x01d"},
	{&DeleteDeviceRequest{VolumeId: "pvc-1"}, "\x0a\x05pvc-1"},
	{&DeleteDeviceResponse{}, ""},
	{&GetDeviceRequest{VolumeId: "pvc-1", DeviceName: "d"}, "\x0a\x05pvc-1" + "\x12\x01d"},
	{&GetDeviceResponse{
		AccessModes:       []AccessMode{AccessMode_ACCESS_MODE_RWX},
		VolumeMode:        "Filesystem",
		PublishContext:    map[string]string{"p": ""},
		VolumeContext:     map[string]string{"v": "2"},
		StorageParameters: map[string]string{"s": "3"},
	}, "\x0a\x01\x03" + "\x12\x0aFilesystem" +
		"\x1a\x05\x0a\x01p\x12\x00" + "\x22\x06\x0a\x01v\x12\x012" + "\x2a\x06\x0a\x01s\x12\x013"},
	{&ListDevicesRequest{MaxEntries: 300, StartingToken: "t"}, "\x08\xac\x02" + "\x12\x01t"},
	{&ListDevicesRequest{MaxEntries: -1}, "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"},
	{&ListDevicesResponse{
		Entries:   []*ListDevicesResponse_Entry{{VolumeId: "a", DeviceName: "b"}, {VolumeId: "c"}},
		NextToken: "n",
	}, "\x0a\x06\x0a\x01a\x12\x01b" + "\x0a\x03\x0a\x01c" + "\x12\x01n"},
	{&ListDevicesResponse_Entry{DeviceName: "b"}, "\x12\x01b"},
}

func capability(t StoragePluginServiceCapability_RPC_Type) *StoragePluginServiceCapability {
	return &StoragePluginServiceCapability{Type: &StoragePluginServiceCapability_Rpc{Rpc: &StoragePluginServiceCapability_RPC{Type: t}}}
}

// Both ways, a message is the bytes that are published.
func TestWire(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range wire {
		name := string(c.message.ProtoReflect().Descriptor().Name())
		seen[name] = true
		got, err := proto.MarshalOptions{Deterministic: true}.Marshal(c.message)
		if err != nil || string(got) != c.bytes {
			t.Errorf("%s %v is written %q, %v, want %q", name, c.message, got, err, c.bytes)
		}
		read := c.message.ProtoReflect().New().Interface()
		if err := proto.Unmarshal([]byte(c.bytes), read); err != nil {
			t.Errorf("%s %q: %v", name, c.bytes, err)
		}
		if diff := cmp.Diff(c.message, read, protocmp.Transform()); diff != "" {
			t.Errorf("%s %q is read otherwise, want -, got +:\n%s", name, c.bytes, diff)
		}
	}
	all := File_dpf_storage_v1_storage_proto.Messages()
	for i := range all.Len() {
		if name := string(all.Get(i).Name()); !seen[name] {
			t.Errorf("%s is not in the table", name)
		}
	}
}

// Another writer may leave the list of modes unpacked, send its fields in any
// order, or know fields that came later.
func TestOtherWriters(t *testing.T) {
	bytes := "\x1a\x05Block" + "\x10\x01" + "\x0a\x01a" + "\x10\x04" + "\x3a\x03new" + "\x12\x01\x03"
	want := &CreateDeviceRequest{VolumeId: "a", VolumeMode: "Block", AccessModes: []AccessMode{1, 4, 3}}
	var got CreateDeviceRequest
	if err := proto.Unmarshal([]byte(bytes), &got); err != nil {
		t.Fatal(err)
	}
	unknown := protowire.AppendString(protowire.AppendTag(nil, 7, protowire.BytesType), "new")
	if string(got.ProtoReflect().GetUnknown()) != string(unknown) {
		t.Errorf("the field that is not known became %q, want %q", got.ProtoReflect().GetUnknown(), unknown)
	}
	got.ProtoReflect().SetUnknown(nil)
	if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
		t.Errorf("want -, got +:\n%s", diff)
	}
	// A mode that came later keeps its number.
	if err := proto.Unmarshal([]byte("\x12\x01\x09"), &got); err != nil || len(got.AccessModes) != 1 || got.AccessModes[0] != 9 {
		t.Errorf("mode 9 is read as %v, %v", got.AccessModes, err)
	}
}

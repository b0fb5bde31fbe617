package controlv1

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// The bytes are written by hand: a tag is field<<3 | type, where type 2 is
// something with a length and 0 a number. The first part is what is published.
var wire = []struct {
	message proto.Message
	bytes   string
}{
	{&EnableDevicesRequest{}, ""},
	{&EnableDevicesRequest{NodeStateGeneration: 5}, "\x08\x05"},
	{&EnableDevicesRequest{NodeStateGeneration: 300, NodeName: "worker-1"}, "\x08\xac\x02" + "\x12\x08worker-1"},
	{&EnableDevicesRequest{NodeStateGeneration: -1}, "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"},
	{&DevicePluginStatus{}, ""},
	{&DevicePluginStatus{State: DevicePluginStatus_INITIALIZING}, "\x08\x01"},
	{&DevicePluginStatus{State: DevicePluginStatus_SERVING, ResourcePoolCount: 2, DeviceCount: 200, ServingGeneration: 6},
		"\x08\x02" + "\x10\x02" + "\x18\xc8\x01" + "\x20\x06"},
	{&DevicePluginStatus{State: DevicePluginStatus_ERROR, ErrorMessage: "no"}, "\x08\x03" + "\x2a\x02no"},
	{&DevicePluginStatus{State: DevicePluginStatus_STOPPING}, "\x08\x04"},

	{&EnableDevicesRequest{NodeStateGeneration: 1, NodeStateUid: "u", ConfigHash: "h",
		LeaseDuration: durationpb.New(5 * time.Second), HoldTime: durationpb.New(time.Second)},
		"\x08\x01" + "\xa2\x06\x01u" + "\xaa\x06\x01h" + "\xb2\x06\x02\x08\x05" + "\xba\x06\x02\x08\x01"},
	{&DevicePluginStatus{State: DevicePluginStatus_SERVING, Session: "s", NodeStateUid: "u", ConfigHash: "h",
		Resources: []*ResourceStatus{{Name: "r"}}, Control: Control_CONTROL_HOLDING,
		LeaseExpires: &timestamppb.Timestamp{Seconds: 1}, HoldEnds: &timestamppb.Timestamp{Seconds: 2}},
		"\x08\x02" + "\xa2\x06\x01s" + "\xaa\x06\x01u" + "\xb2\x06\x01h" + "\xba\x06\x03\x0a\x01r" + "\xc0\x06\x04" +
			"\xca\x06\x02\x08\x01" + "\xd2\x06\x02\x08\x02"},
	{&ResourceStatus{Name: "r", State: ResourceState_RESOURCE_STATE_WITHDRAWN, DeviceCount: 8, OfferedCount: 7, Allocating: 1,
		KubeletConnected: true, ErrorMessage: "e"},
		"\x0a\x01r" + "\x10\x04" + "\x18\x08" + "\x20\x07" + "\x28\x01" + "\x30\x01" + "\x3a\x01e"},
	{&DisableDevicesRequest{Session: "s"}, "\x0a\x01s"},
	{&DisableDevicesResponse{KubeletConfirmed: true, InUse: []*DeviceInUse{{Id: "d"}}}, "\x08\x01" + "\x12\x03\x12\x01d"},
	{&DeviceInUse{ResourceName: "r", Id: "d", PodNamespace: "n", PodName: "p", ContainerName: "c"},
		"\x0a\x01r" + "\x12\x01d" + "\x1a\x01n" + "\x22\x01p" + "\x2a\x01c"},
	{&HeartbeatRequest{Session: "s"}, "\x0a\x01s"},
	{&HeartbeatResponse{LeaseDuration: durationpb.New(5 * time.Second)}, "\x0a\x02\x08\x05"},
	{&GetStatusRequest{}, ""},
	{&GetVersionRequest{}, ""},
	{&GetVersionResponse{Name: "cleat", Version: "1", Extensions: 1}, "\x0a\x05cleat" + "\x12\x011" + "\x18\x01"},
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
	all := File_sriovdp_control_v1_control_proto.Messages()
	for i := range all.Len() {
		if name := string(all.Get(i).Name()); !seen[name] {
			t.Errorf("%s is not in the table", name)
		}
	}
}

// A peer that knows a field which came later is understood in the rest.
func TestFieldsOfOthers(t *testing.T) {
	var got EnableDevicesRequest
	if err := proto.Unmarshal([]byte("\x1a\x03new"+"\x12\x01n"+"\x08\x07"), &got); err != nil {
		t.Fatal(err)
	}
	if got.NodeStateGeneration != 7 || got.NodeName != "n" || len(got.ProtoReflect().GetUnknown()) != 5 {
		t.Errorf("read as %v", &got)
	}
}

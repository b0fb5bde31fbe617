package server

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/cleatproject/cleat/test/testkit"
)

func csiSecrets() hidden { return hidden{options: []protoreflect.ExtensionType{csi.E_CsiSecret}} }

func shown(t *testing.T, h hidden, request any) string {
	t.Helper()
	var out strings.Builder
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "request", h.view(request))
	var line map[string]json.RawMessage
	testkit.Must(t, json.Unmarshal([]byte(out.String()), &line))
	return string(line["request"])
}

func TestViewOfACSIRequest(t *testing.T) {
	request := &csi.CreateVolumeRequest{
		Name:          "v",
		CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 60},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"noatime"}}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
		Parameters: map[string]string{"provisioning": "thin"},
		Secrets:    map[string]string{"hunter1": "hunter2"},
	}
	before := proto.Clone(request)
	want := `{"capacity_range":{"required_bytes":1152921504606846976},"name":"v","parameters":{"provisioning":"thin"},"secrets":"***stripped***",` +
		`"volume_capabilities":[{"access_mode":{"mode":"SINGLE_NODE_WRITER"},"mount":{"fs_type":"xfs","mount_flags":["noatime"]}}]}`
	if diff := cmp.Diff(want, shown(t, csiSecrets(), request)); diff != "" {
		t.Error(diff)
	}
	if !proto.Equal(before, request) {
		t.Error("the request was changed")
	}
	// Without the option it is shown.
	if got := shown(t, hidden{}, request); !strings.Contains(got, "hunter2") {
		t.Error("hidden without the option")
	}
}

// CSI calls mount flags sensitive, but does not mark them.
func TestPrivateFieldsAreHiddenByName(t *testing.T) {
	h := hidden{fields: []protoreflect.FullName{"csi.v1.VolumeCapability.MountVolume.mount_flags"}}
	text := shown(t, h, &csi.NodeStageVolumeRequest{VolumeId: "vol", VolumeCapability: &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"password=hunter2"}}}}})
	if strings.Contains(text, "hunter2") || !strings.Contains(text, "xfs") {
		t.Errorf("the log shows %s", text)
	}
}

// All fields of CSI with the option are hidden.
func TestEverySecretOfCSIIsHidden(t *testing.T) {
	found := 0
	messages := csi.File_csi_proto.Messages()
	for i := range messages.Len() {
		d := messages.Get(i)
		for j := range d.Fields().Len() {
			f := d.Fields().Get(j)
			if !csiSecrets().marks(f) {
				if strings.Contains(string(f.Name()), "secret") {
					t.Errorf("%s is not marked", f.FullName())
				}
				continue
			}
			found++
			m := dynamicpb.NewMessage(d)
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("hunter1").MapKey(), protoreflect.ValueOfString("hunter2"))
			if got := shown(t, csiSecrets(), m); strings.Contains(got, "hunter") || !strings.Contains(got, stripped) {
				t.Errorf("%s: %s", f.FullName(), got)
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d fields have the option", found)
	}
}

// contract has secrets in nested messages, lists and maps.
func contract(t *testing.T) protoreflect.MessageDescriptor {
	t.Helper()
	secret := &descriptorpb.FieldOptions{}
	proto.SetExtension(secret, csi.E_CsiSecret, true)
	field := func(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type, label descriptorpb.FieldDescriptorProto_Label, of string, o *descriptorpb.FieldOptions) *descriptorpb.FieldDescriptorProto {
		f := &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Type: &kind, Label: &label, Options: o}
		if of != "" {
			f.TypeName = &of
		}
		return f
	}
	const (
		text     = descriptorpb.FieldDescriptorProto_TYPE_STRING
		raw      = descriptorpb.FieldDescriptorProto_TYPE_BYTES
		message  = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
		one      = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL
		repeated = descriptorpb.FieldDescriptorProto_LABEL_REPEATED
	)
	file := testkit.Value(protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: proto.String("t.proto"), Package: proto.String("t"), Syntax: proto.String("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: proto.String("Inner"), Field: []*descriptorpb.FieldDescriptorProto{
				field("key", 1, text, one, "", secret), field("keys", 2, text, repeated, "", secret),
				field("raw", 3, raw, one, "", secret), field("sub", 4, message, one, ".t.Inner", secret), field("name", 5, text, one, "", nil),
			}},
			{Name: proto.String("Outer"), Field: []*descriptorpb.FieldDescriptorProto{
				field("inner", 1, message, one, ".t.Inner", nil), field("list", 2, message, repeated, ".t.Inner", nil),
				field("map", 3, message, repeated, ".t.Outer.MapEntry", nil), field("outer", 4, message, one, ".t.Outer", nil),
			}, NestedType: []*descriptorpb.DescriptorProto{{
				Name: proto.String("MapEntry"), Options: &descriptorpb.MessageOptions{MapEntry: proto.Bool(true)},
				Field: []*descriptorpb.FieldDescriptorProto{field("key", 1, text, one, "", nil), field("value", 2, message, one, ".t.Inner", nil)},
			}}},
		},
	}, protoregistry.GlobalFiles))(t)
	return file.Messages().ByName("Outer")
}

func TestNestedSecrets(t *testing.T) {
	d := contract(t)
	innerOf := d.Fields().ByName("inner").Message()
	inner := func() protoreflect.Value {
		m, sub := dynamicpb.NewMessage(innerOf), dynamicpb.NewMessage(innerOf)
		set := func(m *dynamicpb.Message, name protoreflect.Name, v any) {
			m.Set(innerOf.Fields().ByName(name), protoreflect.ValueOf(v))
		}
		set(sub, "name", "hunter")
		set(m, "key", "hunter")
		set(m, "raw", []byte("hunter"))
		set(m, "name", "shown")
		m.Mutable(innerOf.Fields().ByName("keys")).List().Append(protoreflect.ValueOfString("hunter"))
		m.Set(innerOf.Fields().ByName("sub"), protoreflect.ValueOfMessage(sub))
		return protoreflect.ValueOfMessage(m)
	}
	outer := dynamicpb.NewMessage(d)
	outer.Set(d.Fields().ByName("inner"), inner())
	outer.Mutable(d.Fields().ByName("list")).List().Append(inner())
	outer.Mutable(d.Fields().ByName("map")).Map().Set(protoreflect.ValueOfString("k").MapKey(), inner())
	got := shown(t, csiSecrets(), outer)
	if strings.Contains(got, "hunter") || strings.Count(got, stripped) != 12 || strings.Count(got, `"name":"shown"`) != 3 {
		t.Errorf("got %s", got)
	}
	// Depth is bounded.
	deep := dynamicpb.NewMessage(d)
	for range 1000 {
		next := dynamicpb.NewMessage(d)
		next.Set(d.Fields().ByName("outer"), protoreflect.ValueOfMessage(deep))
		deep = next
	}
	if got := shown(t, csiSecrets(), deep); len(got) > 1000 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestLongRequestsAreTruncated(t *testing.T) {
	many := map[string]string{}
	for i := range 100 {
		many[fmt.Sprint(i)] = strings.Repeat("x", 1000)
	}
	request := &csi.CreateVolumeRequest{
		Name: strings.Repeat("n", 100000), Parameters: many,
		VolumeCapabilities: make([]*csi.VolumeCapability, 100),
	}
	for i := range request.VolumeCapabilities {
		request.VolumeCapabilities[i] = &csi.VolumeCapability{}
	}
	got := shown(t, csiSecrets(), request)
	for _, want := range []string{"(100000 bytes)", "68 more", "… 68 more"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q", want)
		}
	}
	if len(got) > 20000 {
		t.Errorf("%d bytes", len(got))
	}
}

func TestWhatCannotBeJudgedIsNotShown(t *testing.T) {
	packed := testkit.Value(anypb.New(&csi.CreateVolumeRequest{Secrets: map[string]string{"k": "hunter2"}}))(t)
	if got := shown(t, csiSecrets(), packed); strings.Contains(got, "hunter2") || !strings.Contains(got, "CreateVolumeRequest") {
		t.Errorf("got %s", got)
	}
	if got := shown(t, csiSecrets(), struct{ Secret string }{"hunter2"}); strings.Contains(got, "hunter2") {
		t.Errorf("got %s", got)
	}
}

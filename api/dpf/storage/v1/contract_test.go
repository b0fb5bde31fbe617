package storagev1

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What the guide publishes: every name, number and type, written down by hand.
//
//go:embed testdata/contract.txt
var published string

// The generated code holds what is published, and nothing else.
func TestContract(t *testing.T) {
	f := File_dpf_storage_v1_storage_proto
	if f.Syntax() != protoreflect.Proto3 {
		t.Errorf("syntax %s, published is proto3", f.Syntax())
	}
	d := describer{pkg: string(f.Package()) + "."}
	fmt.Fprintf(&d, "package %s\n", f.Package())
	for i := range f.Services().Len() {
		d.service(f.Services().Get(i))
	}
	d.messages(f.Messages())
	d.enums(f.Enums())
	// Order of declaration means nothing; that of the fields is in their numbers.
	if diff := cmp.Diff(blocks(published), blocks(d.String())); diff != "" {
		t.Errorf("published -, generated +:\n%s", diff)
	}
}

func blocks(text string) map[string]string {
	out := map[string]string{}
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		head, rest, _ := strings.Cut(block, "\n")
		out[head] = strings.TrimSpace(rest)
	}
	return out
}

type describer struct {
	strings.Builder
	pkg string
}

func (d *describer) name(n protoreflect.FullName) string { return strings.TrimPrefix(string(n), d.pkg) }

func (d *describer) service(s protoreflect.ServiceDescriptor) {
	fmt.Fprintf(d, "\nservice %s\n", d.name(s.FullName()))
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		fmt.Fprintf(d, "  %s(%s) %s", m.Name(), d.name(m.Input().FullName()), d.name(m.Output().FullName()))
		if m.IsStreamingClient() || m.IsStreamingServer() {
			d.WriteString(" stream")
		}
		d.WriteString("\n")
	}
}

func (d *describer) messages(all protoreflect.MessageDescriptors) {
	for i := range all.Len() {
		m := all.Get(i)
		if m.IsMapEntry() {
			continue
		}
		fmt.Fprintf(d, "\nmessage %s\n", d.name(m.FullName()))
		for j := range m.Fields().Len() {
			d.field(m.Fields().Get(j))
		}
		d.messages(m.Messages())
		d.enums(m.Enums())
	}
}

func (d *describer) field(f protoreflect.FieldDescriptor) {
	fmt.Fprintf(d, "  %d %s ", f.Number(), f.Name())
	switch {
	case f.IsMap():
		fmt.Fprintf(d, "map<%s, %s>", f.MapKey().Kind(), f.MapValue().Kind())
	case f.IsList():
		d.WriteString("repeated " + d.typeName(f))
	default:
		d.WriteString(d.typeName(f))
	}
	if o := f.ContainingOneof(); o != nil {
		fmt.Fprintf(d, " oneof %s", o.Name())
	}
	d.WriteString("\n")
}

func (d *describer) typeName(f protoreflect.FieldDescriptor) string {
	switch {
	case f.Message() != nil:
		return d.name(f.Message().FullName())
	case f.Enum() != nil:
		return d.name(f.Enum().FullName())
	default:
		return f.Kind().String()
	}
}

func (d *describer) enums(all protoreflect.EnumDescriptors) {
	for i := range all.Len() {
		e := all.Get(i)
		fmt.Fprintf(d, "\nenum %s\n", d.name(e.FullName()))
		for j := range e.Values().Len() {
			fmt.Fprintf(d, "  %d %s\n", e.Values().Get(j).Number(), e.Values().Get(j).Name())
		}
	}
}

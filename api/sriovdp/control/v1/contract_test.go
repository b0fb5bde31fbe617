package controlv1

import (
	_ "embed"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// What the proposal publishes: every name, number and type, written down by hand.
//
//go:embed testdata/published.txt
var published string

// firstOurs is the number from which on fields are ours; those below are left
// to the proposal.
const firstOurs = 100

// Without our fields, calls and types the generated code holds what is
// published, and nothing else.
func TestContract(t *testing.T) {
	f := File_sriovdp_control_v1_control_proto
	if f.Syntax() != protoreflect.Proto3 {
		t.Errorf("syntax %s, published is proto3", f.Syntax())
	}
	want := blocks(published)
	d := describer{pkg: string(f.Package()) + "."}
	fmt.Fprintf(&d, "package %s\n", f.Package())
	for i := range f.Services().Len() {
		d.service(f.Services().Get(i))
	}
	for i := range f.Messages().Len() {
		d.message(f.Messages().Get(i))
	}
	got := blocks(d.String())
	for head := range got {
		if _, known := want[head]; !known {
			delete(got, head) // a message of ours
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("published -, generated +:\n%s", diff)
	}
	// Our enums are types of their own: no peer meets a state it does not know.
	for i := range f.Enums().Len() {
		if e := f.Enums().Get(i); e.Values().ByNumber(0) == nil || !strings.HasSuffix(string(e.Values().ByNumber(0).Name()), "_UNSPECIFIED") {
			t.Errorf("enum %s has no UNSPECIFIED", e.Name())
		}
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
		if m.Name() != "EnableDevices" {
			continue
		}
		fmt.Fprintf(d, "  %s(%s) %s", m.Name(), d.name(m.Input().FullName()), d.name(m.Output().FullName()))
		if m.IsStreamingServer() {
			d.WriteString(" stream")
		}
		if m.IsStreamingClient() {
			d.WriteString(", of a stream")
		}
		d.WriteString("\n")
	}
}

func (d *describer) message(m protoreflect.MessageDescriptor) {
	fmt.Fprintf(d, "\nmessage %s\n", d.name(m.FullName()))
	for i := range m.Fields().Len() {
		if f := m.Fields().Get(i); f.Number() < firstOurs {
			fmt.Fprintf(d, "  %d %s %s\n", f.Number(), f.Name(), d.typeName(f))
		}
	}
	for i := range m.Enums().Len() {
		e := m.Enums().Get(i)
		fmt.Fprintf(d, "\nenum %s\n", d.name(e.FullName()))
		for j := range e.Values().Len() {
			fmt.Fprintf(d, "  %d %s\n", e.Values().Get(j).Number(), e.Values().Get(j).Name())
		}
	}
}

func (d *describer) typeName(f protoreflect.FieldDescriptor) string {
	switch {
	case f.IsList():
		return "repeated " + f.Kind().String()
	case f.Message() != nil:
		return d.name(f.Message().FullName())
	case f.Enum() != nil:
		return d.name(f.Enum().FullName())
	}
	return f.Kind().String()
}

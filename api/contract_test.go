// Package api tests that the generated code holds the published contracts.
package api

import (
	"embed"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
)

// published has every name, number and type of a contract, written by hand from
// its publication. They determine the bytes of messages and the names of calls.
//
//go:embed testdata
var published embed.FS

// TestContract compares the descriptors with the publications. What cleat adds
// to sriovdp.control.v1 is not compared: other calls, messages and enums, and
// fields from 100 on, which leaves the lower numbers to the publication.
func TestContract(t *testing.T) {
	for _, c := range []struct {
		published string
		generated protoreflect.FileDescriptor
		extended  bool
	}{
		{"dpf-storage.txt", storagev1.File_dpf_storage_v1_storage_proto, false},
		{"sriovdp-control.txt", controlv1.File_sriovdp_control_v1_control_proto, true},
	} {
		t.Run(c.published, func(t *testing.T) {
			text, err := published.ReadFile("testdata/" + c.published)
			if err != nil {
				t.Fatal(err)
			}
			f := c.generated
			d := describer{pkg: string(f.Package()) + ".", extended: c.extended}
			fmt.Fprintf(&d, "package %s\n\nsyntax %s\n", f.Package(), f.Syntax())
			for i := range f.Services().Len() {
				d.service(f.Services().Get(i))
			}
			d.messages(f.Messages())
			d.enums(f.Enums())
			want, got := blocks(string(text)), blocks(d.String())
			for head := range got {
				if _, known := want[head]; !known && c.extended {
					if strings.HasPrefix(head, "enum ") && !strings.HasSuffix(strings.Split(got[head], "\n")[0], "_UNSPECIFIED") {
						t.Errorf("%s has no value UNSPECIFIED", head)
					}
					delete(got, head)
				}
			}
			// The order of declarations has no meaning; that of fields is in their numbers.
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("published -, generated +:\n%s", diff)
			}
		})
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

// describer writes a descriptor as the publications are written.
type describer struct {
	strings.Builder
	pkg      string
	extended bool // with additions of cleat, which are left out
}

func (d *describer) name(n protoreflect.FullName) string { return strings.TrimPrefix(string(n), d.pkg) }

func (d *describer) service(s protoreflect.ServiceDescriptor) {
	fmt.Fprintf(d, "\nservice %s\n", d.name(s.FullName()))
	for i := range s.Methods().Len() {
		m := s.Methods().Get(i)
		if d.extended && m.Name() != "EnableDevices" {
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

func (d *describer) messages(all protoreflect.MessageDescriptors) {
	for i := range all.Len() {
		m := all.Get(i)
		if m.IsMapEntry() {
			continue
		}
		fmt.Fprintf(d, "\nmessage %s\n", d.name(m.FullName()))
		for j := range m.Fields().Len() {
			if f := m.Fields().Get(j); !d.extended || f.Number() < 100 {
				d.field(f)
			}
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

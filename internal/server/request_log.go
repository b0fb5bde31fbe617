package server

import (
	"fmt"
	"log/slog"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cleatproject/cleat/errs"
)

const (
	maxText    = 256 // bytes of a string
	maxEntries = 32  // of a list or map
	maxDepth   = 16
	// stripped replaces a secret field, including its keys.
	stripped = "***stripped***"
)

// hidden selects fields that are never logged, by option or name.
type hidden struct {
	options []protoreflect.ExtensionType
	fields  []protoreflect.FullName
}

// view is formatted only if the line is written.
func (h hidden) view(request any) slog.LogValuer { return view{h, request} }

type view struct {
	hidden
	request any
}

func (v view) LogValue() slog.Value {
	m, ok := v.request.(proto.Message)
	if !ok {
		return slog.StringValue(fmt.Sprintf("a %T", v.request)) // its secret fields are unknown
	}
	return slog.AnyValue(v.message(m.ProtoReflect(), 0))
}

// message formats the set fields, with the contract's names.
func (h hidden) message(m protoreflect.Message, depth int) any {
	d := m.Descriptor()
	if depth > maxDepth {
		return "…"
	}
	if d.FullName() == "google.protobuf.Any" { // bytes of unknown meaning
		return fmt.Sprintf("a %s", errs.Clip(m.Get(d.Fields().ByName("type_url")).String(), maxText))
	}
	fields := map[string]any{}
	for f, value := range m.Range {
		fields[string(f.Name())] = h.field(f, value, depth)
	}
	return fields
}

func (h hidden) field(f protoreflect.FieldDescriptor, value protoreflect.Value, depth int) any {
	switch {
	case h.marks(f):
		return stripped
	case f.IsMap():
		shown, left := map[string]any{}, 0
		for key, v := range value.Map().Range {
			if len(shown) == maxEntries {
				left++
				continue
			}
			shown[errs.Clip(key.String(), maxText)] = h.single(f.MapValue(), v, depth)
		}
		if left > 0 {
			shown["…"] = fmt.Sprintf("%d more", left)
		}
		return shown
	case f.IsList():
		list := value.List()
		shown := make([]any, 0, min(list.Len(), maxEntries+1))
		for i := range min(list.Len(), maxEntries) {
			shown = append(shown, h.single(f, list.Get(i), depth))
		}
		if left := list.Len() - maxEntries; left > 0 {
			shown = append(shown, fmt.Sprintf("… %d more", left))
		}
		return shown
	}
	return h.single(f, value, depth)
}

// single formats a value; f describes it or its list.
func (h hidden) single(f protoreflect.FieldDescriptor, value protoreflect.Value, depth int) any {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		return h.message(value.Message(), depth+1)
	case protoreflect.EnumKind:
		if v := f.Enum().Values().ByNumber(value.Enum()); v != nil {
			return string(v.Name())
		}
		return int32(value.Enum())
	case protoreflect.BytesKind:
		return fmt.Sprintf("%d bytes", len(value.Bytes()))
	case protoreflect.StringKind:
		if text := value.String(); len(text) > maxText {
			return fmt.Sprintf("%s (%d bytes)", errs.Clip(text, maxText), len(text))
		}
		return value.String()
	}
	return value.Interface()
}

func (h hidden) marks(f protoreflect.FieldDescriptor) bool {
	if slices.Contains(h.fields, f.FullName()) {
		return true
	}
	for _, x := range h.options {
		if marked, ok := proto.GetExtension(f.Options(), x).(bool); ok && marked {
			return true
		}
	}
	return false
}

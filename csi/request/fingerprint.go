package request

import (
	"crypto/sha256"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// Fingerprint is equal for requests that ask for the same: same type, same
// fields, whatever their secrets, which are used nowhere here.
func Fingerprint(m proto.Message) string {
	m = proto.Clone(m)
	clearSecrets(m.ProtoReflect())
	// An error is possible for text that is not UTF-8 only, which grpc lets
	// nobody send; what was encoded until then still tells requests apart.
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		encoded = fmt.Append(encoded, err)
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%s", m.ProtoReflect().Descriptor().FullName(), encoded)
	return string(hash.Sum(nil))
}

// clearSecrets removes every field with the csi_secret option.
func clearSecrets(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		secret, _ := proto.GetExtension(field.Options(), csi.E_CsiSecret).(bool)
		switch {
		case secret:
			m.Clear(field)
		case field.Message() == nil || field.IsMap():
		case field.IsList():
			for i := range value.List().Len() {
				clearSecrets(value.List().Get(i).Message())
			}
		default:
			clearSecrets(value.Message())
		}
		return true
	})
}

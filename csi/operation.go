package csi

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/volume"
)

// Keys name the objects of operations. An object that is being created has no
// id yet, so its name is the key. Revoking a grant cancels only its creation.
// The node service has other keys than the controller: both can work on one
// volume.
func volumeNameKey(name string) string        { return "volume-name:" + name }
func volumeKey(id volume.ID) string           { return "volume:" + string(id) }
func grantKey(id volume.ID) string            { return "grant:" + string(id) }
func snapshotNameKey(name string) string      { return "snapshot-name:" + name }
func snapshotKey(id volume.SnapshotID) string { return "snapshot:" + string(id) }
func groupNameKey(name string) string         { return "group-name:" + name }
func groupKey(id volume.GroupID) string       { return "group:" + string(id) }
func nodeVolumeKey(id volume.ID) string       { return "node-volume:" + string(id) }
func targetKey(path string) string            { return "target:" + path }

// do runs fn as the operation of request r on the objects of keys. An equal
// request joins it, and it continues without its callers.
func do[T any](ctx context.Context, o *op.Operations, r proto.Message, keys []string, fn func(ctx context.Context) (T, error)) (T, error) {
	return op.Do(ctx, o, op.Request{What: callName(r), Keys: keys, Fingerprint: fingerprint(r)}, fn)
}

// run is do for an operation without a result.
func run(ctx context.Context, o *op.Operations, r proto.Message, keys []string, fn func(ctx context.Context) error) error {
	_, err := do(ctx, o, r, keys, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) })
	return err
}

// undo is run for a request that undoes others: it first cancels the operations
// on objects and waits for their rollback. For operations on alsoOn it only
// waits.
func undo(ctx context.Context, o *op.Operations, r proto.Message, objects, alsoOn []string, fn func(ctx context.Context) error) error {
	request := op.Request{What: callName(r), Keys: slices.Concat(objects, alsoOn), Fingerprint: fingerprint(r), Cancels: objects}
	_, err := op.Do(ctx, o, request, func(ctx context.Context) (struct{}, error) { return struct{}{}, fn(ctx) })
	return err
}

func callName(r proto.Message) string {
	return strings.TrimSuffix(string(r.ProtoReflect().Descriptor().Name()), "Request")
}

// fingerprint excludes secrets.
func fingerprint(r proto.Message) string {
	r = proto.Clone(r)
	clearSecrets(r.ProtoReflect())
	// Marshal fails only for invalid UTF-8, which gRPC does not deliver.
	encoded, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		encoded = fmt.Append(encoded, err)
	}
	hash := sha256.New()
	fmt.Fprintf(hash, "%s\n%s", r.ProtoReflect().Descriptor().FullName(), encoded)
	return string(hash.Sum(nil))
}

// clearSecrets removes every field with the csi_secret option.
func clearSecrets(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		secret, _ := proto.GetExtension(field.Options(), spec.E_CsiSecret).(bool)
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

// refused replaces errs.Exhausted for calls on existing volumes: sidecars treat
// RESOURCE_EXHAUSTED as "in progress" and repeat the old request for ever,
// although its user asks for other parameters by now.
func refused(err error, kind errs.Kind) error {
	if err == nil || errs.KindOf(err) != errs.Exhausted {
		return err
	}
	return errs.Errorf(kind, "%w", err)
}

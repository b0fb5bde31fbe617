package csi_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/cleatproject/cleat/test/testkit"
)

const (
	// marker is a secret: no message, log or file of the driver is allowed to
	// contain it.
	marker    = "hush-hush-7351"
	traversal = "../../../etc/passwd"
)

var (
	long = strings.Repeat("x", 129)
	huge = map[string]string{"k": strings.Repeat("v", 4097)}
)

// badCase is one bad request. Some succeed, as the specification demands for
// deleting absent objects.
type badCase struct {
	name string
	want codes.Code
	call func(ctx context.Context) error
}

// bad derives cases from a valid request, each by one edit. All secrets of the
// contract are filled in.
func bad[Q proto.Message, A any](call func(context.Context, Q, ...grpc.CallOption) (A, error), sound Q) func(string, codes.Code, func(Q)) badCase {
	return func(name string, want codes.Code, edit func(Q)) badCase {
		return badCase{string(sound.ProtoReflect().Descriptor().Name()) + " " + name, want, func(ctx context.Context) error {
			q := proto.Clone(sound).(Q)
			addSecrets(q)
			edit(q)
			_, err := call(ctx, q)
			return err
		}}
	}
}

// addSecrets sets every field that the contract marks as a secret.
func addSecrets(m proto.Message) {
	fields := m.ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if secret, _ := proto.GetExtension(f.Options(), csi.E_CsiSecret).(bool); secret {
			secrets := m.ProtoReflect().Mutable(f).Map()
			secrets.Set(protoreflect.ValueOfString("password").MapKey(), protoreflect.ValueOfString(marker))
			secrets.Set(protoreflect.ValueOfString("key-"+marker).MapKey(), protoreflect.ValueOfString("x"))
		}
	}
}

// world is the set of objects that exist during the bad requests.
type world struct {
	*rig
	used           *disk // staged and published
	granted        *disk // granted to this node only
	raw, loose     *disk // not granted
	snap, foreign  *csi.Snapshot
	group          *csi.VolumeGroupSnapshot
	nowhere, other string // a missing path, and a directory
}

func newWorld(t *testing.T) *world {
	r := newRig(t, append([]string{"--controller-publish"}, reflinkPool...)...)
	w := &world{rig: r}
	w.used, w.granted = r.create("used", mounted("ext4")), r.create("granted", mounted("ext4"))
	w.raw, w.loose = r.create("raw", block()), r.create("loose", mounted("ext4"))
	w.used.publishTo(nodeID)
	w.granted.publishTo(nodeID)
	w.used.attach()
	w.used.writeFile("x", 1, 4096)
	w.snap, w.foreign = w.used.snapshot("snap"), w.loose.snapshot("foreign")
	g := testkit.Value(r.groups().CreateVolumeGroupSnapshot(t.Context(), &csi.CreateVolumeGroupSnapshotRequest{
		Name: "group", SourceVolumeIds: []string{w.used.id, w.raw.id}}))(r)
	w.group = g.GetGroupSnapshot()
	w.nowhere, w.other = r.dir+"/volumes/nowhere/deep", r.dir+"/volumes"
	return w
}

// publishTo grants the volume to a node.
func (d *disk) publishTo(node string) {
	d.Helper()
	answer := testkit.Value(d.controller().ControllerPublishVolume(d.Context(), &csi.ControllerPublishVolumeRequest{
		VolumeId: d.id, NodeId: node, VolumeCapability: d.capability, VolumeContext: d.context}))(d)
	d.grant = answer.GetPublishContext()
}

func (d *disk) unpublishFromAll() {
	d.Helper()
	testkit.Value(d.controller().ControllerUnpublishVolume(d.Context(), &csi.ControllerUnpublishVolumeRequest{VolumeId: d.id}))(d)
}

// TestBadInput: each answer has the contract's code, a message without secrets
// and no details, and changes nothing on disk or in the kernel.
func TestBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	watch := watchArguments(t, w.process.PID())
	bytes, before := treeHash(t, w.dir), w.state(t)
	for _, c := range append(w.controllerCases(), w.nodeCases()...) {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			err := c.call(t.Context())
			s := status.Convert(err)
			if s.Code() != c.want {
				t.Errorf("got %v, want code %v", err, c.want)
			}
			if err != nil && (s.Message() == "" || len(s.Message()) > 1500 || len(s.Details()) != 0 || strings.Contains(s.Message(), marker)) {
				t.Errorf("message %q, details %v", s.Message(), s.Details())
			}
			if took := time.Since(began); took > time.Minute {
				t.Errorf("it took %v", took)
			}
			if after := w.state(t); after != before {
				t.Errorf("something changed (-before +after):\n%s", cmp.Diff(strings.Split(before, "\n"), strings.Split(after, "\n")))
				before = after // each case is judged by itself
			}
		})
	}
	w.used.holdsFile("x", 1, 4096)
	if after := treeHash(t, w.dir); after != bytes {
		t.Errorf("files changed:\n%s\nwas\n%s", after, bytes)
	}
	if found := watch(); found != "" {
		t.Errorf("a process was started with the secret in its arguments: %s", found)
	}
	w.checkEveryCall(t)
	w.takeDown()
	checkNoSecret(t, w.rig)
}

// takeDown deletes everything.
func (w *world) takeDown() {
	w.dropGroup(w.group)
	w.dropSnapshots(w.snap.GetSnapshotId(), w.foreign.GetSnapshotId())
	w.used.detach()
	for _, d := range []*disk{w.used, w.granted, w.raw, w.loose} {
		d.unpublishFromAll()
		testkit.Must(w, d.remove())
	}
	w.stop()
}

// checkEveryCall checks that the tables cover every call of the contract.
func (w *world) checkEveryCall(t *testing.T) {
	t.Helper()
	log := w.process.Log.String()
	for _, service := range []grpc.ServiceDesc{
		csi.Controller_ServiceDesc, csi.GroupController_ServiceDesc, csi.SnapshotMetadata_ServiceDesc, csi.Node_ServiceDesc,
	} {
		var names []string
		for _, m := range service.Methods {
			names = append(names, m.MethodName)
		}
		for _, s := range service.Streams {
			names = append(names, s.StreamName)
		}
		for _, name := range names {
			if takesNothing := strings.HasSuffix(name, "GetCapabilities") || name == "NodeGetInfo" || name == "NodeGetStorageHealth"; takesNothing {
				continue
			}
			if !strings.Contains(log, fmt.Sprintf(`"method":"/%s/%s","code":"InvalidArgument"`, service.ServiceName, name)) {
				t.Errorf("no bad request of %s/%s was refused", service.ServiceName, name)
			}
		}
	}
}

// TestBadProtocol: invalid gRPC does not disturb the driver.
func TestBadProtocol(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for _, text := range []string{"", "GET / HTTP/1.1\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\xff\xff", strings.Repeat("\x00", 1<<16)} {
		c := testkit.Value(net.Dial("unix", r.process.Socket))(r)
		_, _ = c.Write([]byte(text)) // the driver can hang up meanwhile
		testkit.Must(r, c.Close())
	}
	q := ask("large", block())
	q.Parameters = map[string]string{"k": strings.Repeat("x", 5*mib)}
	_, err := r.controller().CreateVolume(r.Context(), q)
	r.refused(err, codes.ResourceExhausted)
	err = r.process.Conn.Invoke(r.Context(), "/csi.v1.Controller/NoSuchCall", &csi.ProbeRequest{}, &csi.ProbeResponse{})
	r.refused(err, codes.Unimplemented)
	err = r.process.Conn.Invoke(r.Context(), "/csi.v1.Controller/CreateVolume", &csi.ListVolumesRequest{MaxEntries: 7, StartingToken: "\x01"}, &csi.CreateVolumeResponse{})
	if err == nil {
		t.Error("a message of another call was accepted")
	}
	for range 200 { // clients that send nothing, or disconnect
		c := testkit.Value(net.Dial("unix", r.process.Socket))(r)
		defer c.Close()
	}
	info, err := r.identity().GetPluginInfo(r.Context(), &csi.GetPluginInfoRequest{})
	if err != nil || info.GetName() != "csi.cleat.dev" || info.GetVendorVersion() == "" {
		t.Errorf("plugin info: %v, %v", info, err)
	}
}

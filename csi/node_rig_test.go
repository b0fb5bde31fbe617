package csi_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/internal/linux/mkfs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/internal/op"
	"github.com/cleatproject/cleat/node"
	"github.com/cleatproject/cleat/node/file"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

const (
	pool = "0f0e0d0c-0b0a-4908-8706-050403020100"
	size = 64 << 20
)

func (s *slow) Detach(ctx context.Context, t node.Target) error {
	if s.answers != nil {
		<-s.answers
	}
	return s.Attacher.Detach(ctx, t)
}

func (s *slow) Inspect(ctx context.Context, t node.Target) (node.Info, error) {
	info, err := s.Attacher.Inspect(ctx, t)
	if s.answers != nil {
		info.Presence, info.Problem = node.Unreachable, errs.Errorf(errs.Unavailable, "path 1 is inaccessible")
	}
	return info, err
}

// nodeRig is the node service over gRPC, with its own pool.
type nodeRig struct {
	spec.NodeClient
	t       *testing.T
	dir     string
	manager *node.Manager
	service *csi.Node
	slow    *slow
	log     testkit.Log
}

// slow is an attacher whose calls can wait.
type slow struct {
	node.Attacher
	began chan struct{} // nil: Attach does not wait
	// answers ends the wait of Detach, for storage that cannot be reached; nil: it
	// does not wait.
	answers chan struct{}
}

func (s *slow) Attach(ctx context.Context, t node.Target, u node.Use) (*node.Attachment, error) {
	if s.began != nil {
		s.began <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Attacher.Attach(ctx, t, u)
}

func newNodeRig(t *testing.T, began chan struct{}, adjust ...func(*csi.NodeConfig)) *nodeRig {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	r := &nodeRig{t: t, dir: dir}
	testkit.Must(r.t, err)
	testkit.Must(r.t, os.MkdirAll(filepath.Join(dir, "pool/volumes"), 0o700))
	testkit.Must(r.t, os.WriteFile(filepath.Join(dir, "pool/pool.json"), []byte(`{"version":1,"uuid":"`+pool+`"}`), 0o600))
	r.slow = &slow{Attacher: file.New(filepath.Join(dir, "pool")), began: began}
	r.manager = testkit.Value(node.Open(t.Context(), node.Config{
		Store: filepath.Join(dir, "node.db"),
		Attachers: map[string]node.Attacher{
			file.Protocol(): r.slow,
		},
	}))(r.t)
	t.Cleanup(r.cleanUp)
	operations := op.New(context.WithoutCancel(t.Context()), 100*time.Millisecond)
	t.Cleanup(func() { testkit.Must(r.t, operations.Close(context.Background())) })
	deployment := fullDeployment()
	deployment.ControllerPublish, deployment.MaxVolumes = false, 7
	config := csi.NodeConfig{
		Manager: r.manager, Operations: operations, NodeID: nodeID, Deployment: deployment,
		Admission: newLedger(t), Client: func() (volume.Client, error) { return volume.Client{Node: nodeID}, nil },
	}
	for _, a := range adjust {
		a(&config)
	}
	r.service = csi.NewNode(config)
	conn := serve(t, &r.log, func(s grpc.ServiceRegistrar) { spec.RegisterNodeServer(s, r.service) })
	r.NodeClient = spec.NewNodeClient(conn)
	return r
}

func (r *nodeRig) cleanUp() {
	ctx := context.Background()
	testkit.Must(r.t, r.manager.Close())
	table := testkit.Value(mount.Table(ctx))(r.t)
	for i := len(table) - 1; i >= 0; i-- {
		if strings.HasPrefix(table[i].Target, r.dir+"/") {
			r.left(table[i].Target)
			_ = mount.Unmount(ctx, table[i].Target)
		}
	}
	all := testkit.Value(loop.List(ctx))(r.t)
	for _, d := range all {
		if name, _, err := loop.BackingName(d); err == nil && strings.HasPrefix(name, r.dir+"/") {
			r.left(d.Path)
			_ = loop.Detach(ctx, d)
		}
	}
}

func (r *nodeRig) left(what string) {
	if !r.t.Failed() {
		r.t.Errorf("left over: %s", what)
	}
}

func (r *nodeRig) code(err error, want codes.Code, words ...string) {
	r.t.Helper()
	s := status.Convert(err)
	if s.Code() != want {
		r.t.Errorf("got %v, want code %v", err, want)
	}
	if len(s.Details()) != 0 {
		r.t.Errorf("status.details must be empty: %v", s.Details())
	}
	for _, w := range words {
		if !strings.Contains(s.Message(), w) {
			r.t.Errorf("%q should say %q", s.Message(), w)
		}
	}
}

func (r *nodeRig) path(name string) string { return filepath.Join(r.dir, name) }

// stage is a request for a new volume.
func (r *nodeRig) stage(id string, c *spec.VolumeCapability) *spec.NodeStageVolumeRequest {
	r.t.Helper()
	path := filepath.Join(r.dir, "pool/volumes", id)
	testkit.Must(r.t, os.WriteFile(path, nil, 0o600))
	testkit.Must(r.t, os.Truncate(path, size))
	if c.GetMount() != nil {
		testkit.Must(r.t, mkfs.Make(r.t.Context(), mkfs.Request{Path: path, Type: mkfs.Ext4}))
	}
	staging := r.path("staging-" + id)
	testkit.Must(r.t, os.Mkdir(staging, 0o750))
	return &spec.NodeStageVolumeRequest{
		VolumeId: id, StagingTargetPath: staging, VolumeCapability: c,
		VolumeContext: access.Encode(access.File{Pool: pool, Name: "volumes/" + id}),
	}
}

func (r *nodeRig) publish(s *spec.NodeStageVolumeRequest, target string) *spec.NodePublishVolumeRequest {
	return &spec.NodePublishVolumeRequest{
		VolumeId: s.VolumeId, StagingTargetPath: s.StagingTargetPath, TargetPath: r.path(target),
		VolumeCapability: s.VolumeCapability, VolumeContext: s.VolumeContext, PublishContext: s.PublishContext,
	}
}

func (r *nodeRig) undo(s *spec.NodeStageVolumeRequest, targets ...string) {
	r.t.Helper()
	for _, target := range targets {
		testkit.Value(r.NodeUnpublishVolume(r.t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: s.VolumeId, TargetPath: r.path(target)}))(r.t)
	}
	testkit.Value(r.NodeUnstageVolume(r.t.Context(), &spec.NodeUnstageVolumeRequest{VolumeId: s.VolumeId, StagingTargetPath: s.StagingTargetPath}))(r.t)
}

package csi_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/internal/linux/xattr"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestLife(t *testing.T) {
	for name, c := range map[string]*spec.VolumeCapability{"mount": mountCap(), "block": blockCap()} {
		t.Run(name, func(t *testing.T) {
			r := newNodeRig(t, nil)
			s := r.stage("vol-1", c)
			p := r.publish(s, "target")
			for range 2 {
				testkit.Value(r.NodeStageVolume(t.Context(), s))(r.t)
				testkit.Value(r.NodePublishVolume(t.Context(), p))(r.t)
			}
			stats := testkit.Value(r.NodeGetVolumeStats(t.Context(), &spec.NodeGetVolumeStatsRequest{VolumeId: s.VolumeId, VolumePath: p.TargetPath}))(r.t)
			want := map[string]int{"mount": 2, "block": 1}[name]
			if len(stats.Usage) != want || stats.Usage[0].Total <= 0 || stats.Usage[0].Total > size {
				t.Errorf("stats: %v", stats)
			}
			grown := testkit.Value(r.NodeExpandVolume(t.Context(), &spec.NodeExpandVolumeRequest{VolumeId: s.VolumeId, VolumePath: p.TargetPath, CapacityRange: &spec.CapacityRange{RequiredBytes: size}}))(r.t)
			if grown.CapacityBytes != size {
				t.Errorf("expand to the size that it has: %v", grown)
			}
			health := testkit.Value(r.NodeGetVolumeHealth(t.Context(), &spec.NodeGetVolumeHealthRequest{VolumeId: s.VolumeId}))(r.t)
			if h := health.VolumeHealth; h.GetVolumeId() != s.VolumeId || len(h.HealthStatuses) != 0 {
				t.Errorf("health: %v", health)
			}
			r.undo(s, "target")
			r.undo(s, "target")
			if _, err := os.Lstat(p.TargetPath); !os.IsNotExist(err) {
				t.Errorf("the target is left: %v", err)
			}
		})
	}
}

func TestHealthInTheWordsOfTheContract(t *testing.T) {
	r := newNodeRig(t, nil)
	s := r.stage("vol-1", mountCap())
	testkit.Value(r.NodeStageVolume(t.Context(), s))(r.t)
	testkit.Must(r.t, os.Remove(filepath.Join(r.dir, "pool/volumes/vol-1")))
	health := testkit.Value(r.NodeGetVolumeHealth(t.Context(), &spec.NodeGetVolumeHealthRequest{VolumeId: s.VolumeId, StagingTargetPath: s.StagingTargetPath}))(r.t)
	all := health.VolumeHealth.HealthStatuses
	if len(all) != 1 || all[0].Status != spec.VolumeHealthErrorType_DATA_LOSS || all[0].Reason != "BackingFileDeleted" || len(all[0].Message) > 128 {
		t.Errorf("health: %v", health)
	}
	r.undo(s)
	testkit.Must(r.t, os.Rename(r.path("pool"), r.path("away")))
	storage, err := r.NodeGetStorageHealth(t.Context(), &spec.NodeGetStorageHealthRequest{})
	testkit.Must(r.t, err)
	if b := storage.BackendHealth; len(b) != 1 || b[0].Status != spec.StorageHealthErrorType_STORAGE_UNREACHABLE || b[0].Reason == "" {
		t.Errorf("storage health: %v", storage)
	}
	_, err = r.NodeGetVolumeHealth(t.Context(), &spec.NodeGetVolumeHealthRequest{VolumeId: "vol-none"})
	r.code(err, codes.NotFound)
}

// Reads of unknown volumes return NOT_FOUND for any path; undoing calls
// succeed.
func TestUnknown(t *testing.T) {
	r := newNodeRig(t, nil)
	s := r.stage("vol-1", mountCap())
	_, err := r.NodeStageVolume(t.Context(), s)
	testkit.Must(r.t, err)
	for _, path := range []string{"relative", "/", "/tmp/../tmp", r.dir, strings.Repeat("/x", 300)} {
		for _, id := range []string{"vol-none", s.VolumeId, "../../etc"} {
			_, err := r.NodeGetVolumeStats(t.Context(), &spec.NodeGetVolumeStatsRequest{VolumeId: id, VolumePath: path})
			r.code(err, codes.NotFound)
			_, err = r.NodeExpandVolume(t.Context(), &spec.NodeExpandVolumeRequest{VolumeId: id, VolumePath: path})
			r.code(err, codes.NotFound)
		}
		testkit.Value(r.NodeUnpublishVolume(t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: "vol-none", TargetPath: path}))(r.t)
		testkit.Value(r.NodeUnstageVolume(t.Context(), &spec.NodeUnstageVolumeRequest{VolumeId: "vol-none", StagingTargetPath: path}))(r.t)
	}
	_, err = r.NodeUnpublishVolume(t.Context(), &spec.NodeUnpublishVolumeRequest{VolumeId: s.VolumeId, TargetPath: "relative"})
	r.code(err, codes.InvalidArgument, "relative")
	_, err = r.NodeUnstageVolume(t.Context(), &spec.NodeUnstageVolumeRequest{VolumeId: s.VolumeId, StagingTargetPath: "/a/../b"})
	r.code(err, codes.InvalidArgument, "clean")
	r.undo(s)
}

func TestCodes(t *testing.T) {
	r := newNodeRig(t, nil)
	s := r.stage("vol-1", mountCap())
	p := r.publish(s, "target")
	_, err := r.NodePublishVolume(t.Context(), p)
	r.code(err, codes.FailedPrecondition, "not staged")
	testkit.Value(r.NodeStageVolume(t.Context(), s))(r.t)
	other := r.publish(s, "target")
	other.VolumeCapability = blockCap()
	_, err = r.NodePublishVolume(t.Context(), other)
	r.code(err, codes.FailedPrecondition)
	testkit.Value(r.NodePublishVolume(t.Context(), p))(r.t)
	other = r.publish(s, "target")
	other.Readonly = true
	_, err = r.NodePublishVolume(t.Context(), other)
	r.code(err, codes.AlreadyExists, "readonly")
	_, err = r.NodePublishVolume(t.Context(), r.publish(s, "second"))
	r.code(err, codes.FailedPrecondition, "target")
	ephemeral := r.publish(s, "inline")
	ephemeral.VolumeId, ephemeral.VolumeContext = "csi-1", map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "1Gi"}
	_, err = r.NodePublishVolume(t.Context(), ephemeral)
	r.code(err, codes.Unimplemented, "ephemeral")
	missing := r.publish(s, "third")
	missing.StagingTargetPath = ""
	_, err = r.NodePublishVolume(t.Context(), missing)
	r.code(err, codes.FailedPrecondition, "staging_target_path")
	_, err = r.NodeUnstageVolume(t.Context(), &spec.NodeUnstageVolumeRequest{VolumeId: s.VolumeId, StagingTargetPath: s.StagingTargetPath})
	r.code(err, codes.FailedPrecondition, "published")
	r.undo(s, "target")
}

// The kubelet folds equal events; each attempt has another device.
func TestErrorsOfEventsNameNoDevice(t *testing.T) {
	var log testkit.Log
	r := newNodeRig(t, nil, func(c *csi.NodeConfig) { c.Logger = log.Logger() })
	s := r.stage("vol-1", mountCap())
	s.VolumeCapability.GetMount().MountFlags = []string{"turbo=9"}
	_, err := r.NodeStageVolume(t.Context(), s)
	r.code(err, codes.InvalidArgument, "mount its device", "turbo", "Unknown parameter")
	if strings.Contains(err.Error(), "loop") {
		t.Errorf("the error names a loop device: %v", err)
	}
	if !strings.Contains(log.String(), "mount /dev/loop") {
		t.Errorf("the log does not name the device: %s", log.String())
	}
	r.undo(s)
}

// With controller publish a volume is used only where and as it is granted.
func TestGrant(t *testing.T) {
	r := newNodeRig(t, nil, func(c *csi.NodeConfig) { c.Deployment.ControllerPublish = true })
	s := r.stage("vol-1", mountCap())
	for _, c := range []struct {
		context map[string]string
		word    string
	}{{nil, "no grant"}, {map[string]string{"grantedTo": "node-2"}, "node-2"}} {
		s.PublishContext = c.context
		_, err := r.NodeStageVolume(t.Context(), s)
		r.code(err, codes.FailedPrecondition, c.word)
		_, err = r.NodePublishVolume(t.Context(), r.publish(s, "target"))
		r.code(err, codes.FailedPrecondition, c.word)
	}
	s.PublishContext = map[string]string{"grantedTo": nodeID, "grantedReadOnly": "true"}
	testkit.Value(r.NodeStageVolume(t.Context(), s))(r.t)
	p := r.publish(s, "target")
	testkit.Value(r.NodePublishVolume(t.Context(), p))(r.t)
	if err := os.WriteFile(filepath.Join(p.TargetPath, "a"), nil, 0o600); err == nil {
		t.Error("written through a grant for reading")
	}
	r.undo(s, "target")
}

func TestInfo(t *testing.T) {
	r := newNodeRig(t, nil)
	info := testkit.Value(r.NodeGetInfo(t.Context(), &spec.NodeGetInfoRequest{}))(r.t)
	if info.NodeId != nodeID || info.MaxVolumesPerNode != 7 || info.AccessibleTopology.GetSegments()["topology.csi.cleat.dev/node"] != nodeID {
		t.Errorf("info: %v", info)
	}
	capabilities := testkit.Value(r.NodeGetCapabilities(t.Context(), &spec.NodeGetCapabilitiesRequest{}))(r.t)
	served := map[spec.NodeServiceCapability_RPC_Type]bool{}
	for _, c := range capabilities.Capabilities {
		served[c.GetRpc().GetType()] = true
	}
	for number, name := range spec.NodeServiceCapability_RPC_Type_name {
		if t2 := spec.NodeServiceCapability_RPC_Type(number); t2 != spec.NodeServiceCapability_RPC_UNKNOWN && !served[t2] {
			t.Errorf("%s is not announced", name)
		}
	}
}

// Another stage must wait.
func TestUnstageCancelsStage(t *testing.T) {
	began := make(chan struct{})
	r := newNodeRig(t, began)
	s := r.stage("vol-1", mountCap())
	staged := make(chan error, 1)
	go func() {
		_, err := r.NodeStageVolume(t.Context(), s)
		staged <- err
	}()
	<-began
	other := r.stage("vol-2", blockCap())
	other.VolumeId = s.VolumeId
	_, err := r.NodeStageVolume(t.Context(), other)
	r.code(err, codes.Aborted, "NodeStageVolume")
	r.undo(s)
	r.code(<-staged, codes.Aborted)
	if known, err := r.manager.IsRecorded(t.Context(), "vol-1"); err != nil || known {
		t.Errorf("the cancelled stage is on record: %t, %v", known, err)
	}
}

// A call that waits for storage answers before its deadline, with what it waits
// for; a repeat joins it.
func TestWaitingCallAnswersInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newNodeRig(t, nil)
		s := r.stage("vol-1", blockCap())
		testkit.Value(r.NodeStageVolume(t.Context(), s))(t)
		r.slow.answers = make(chan struct{})
		unstage := &spec.NodeUnstageVolumeRequest{VolumeId: s.VolumeId, StagingTargetPath: s.StagingTargetPath}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := r.NodeUnstageVolume(ctx, unstage)
		r.code(err, codes.Unavailable, "NodeUnstageVolume is still in progress", "path 1 is inaccessible", "repeat")
		close(r.slow.answers)
		testkit.Value(r.NodeUnstageVolume(t.Context(), unstage))(t)
	})
}

// Trims yield to calls, and end with their context.
func TestRunTrims(t *testing.T) {
	r := newNodeRig(t, nil, func(c *csi.NodeConfig) { c.TrimCheck = time.Millisecond })
	s := r.stage("vol-1", mountCap())
	f := testkit.Value(os.OpenFile(r.path("pool/volumes/vol-1"), os.O_RDWR, 0))(t)
	testkit.Must(t, xattr.Set(f, xattr.Prefix+"trim-interval", "1ns"), f.Close())
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- r.service.RunTrims(ctx) }()
	for range 5 {
		testkit.Value(r.NodeStageVolume(t.Context(), s))(t)
		r.undo(s)
	}
	cancel()
	testkit.Must(t, <-done)
	if log := r.log.String(); strings.Contains(log, "trim") {
		t.Error(log)
	}
}

// Not in the log, and they do not make requests differ.
func TestSecretsAreNowhere(t *testing.T) {
	r := newNodeRig(t, nil)
	s := r.stage("vol-1", mountCap())
	for _, secret := range []string{"hunter-one", "hunter-two"} {
		s.Secrets = map[string]string{"key": secret}
		testkit.Value(r.NodeStageVolume(t.Context(), s))(r.t)
	}
	r.undo(s)
	store := testkit.Value(os.ReadFile(r.path("node.db")))(r.t)
	for _, text := range []string{r.log.String(), string(store)} {
		if strings.Contains(text, "hunter") {
			t.Error("a secret is in the log or in the store")
		}
	}
}

// invalid requires INVALID_ARGUMENT for each request.
func invalid[R proto.Message, A any](t *testing.T, method func(context.Context, R, ...grpc.CallOption) (A, error), requests ...R) {
	t.Helper()
	for _, r := range requests {
		if _, err := method(t.Context(), r); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%T %v: got %v, want code %v", r, r, err, codes.InvalidArgument)
		}
	}
}

func TestMalformedRequests(t *testing.T) {
	r := newNodeRig(t, nil)
	long := "/" + strings.Repeat("p/", 2100)
	multiNode := mountCap()
	multiNode.AccessMode.Mode = spec.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	invalid(t, r.NodeUnstageVolume, &spec.NodeUnstageVolumeRequest{StagingTargetPath: "/s"}, &spec.NodeUnstageVolumeRequest{VolumeId: "v"})
	invalid(t, r.NodeUnpublishVolume, &spec.NodeUnpublishVolumeRequest{TargetPath: "/s"}, &spec.NodeUnpublishVolumeRequest{VolumeId: "v"})
	invalid(t, r.NodeGetVolumeStats, &spec.NodeGetVolumeStatsRequest{VolumePath: "/s"}, &spec.NodeGetVolumeStatsRequest{VolumeId: "v"},
		&spec.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: long})
	invalid(t, r.NodeExpandVolume, &spec.NodeExpandVolumeRequest{VolumePath: "/s"}, &spec.NodeExpandVolumeRequest{VolumeId: "v"},
		&spec.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: "/s", CapacityRange: &spec.CapacityRange{RequiredBytes: 2, LimitBytes: 1}},
		&spec.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: "/s", VolumeCapability: multiNode})
	invalid(t, r.NodeGetVolumeHealth, &spec.NodeGetVolumeHealthRequest{}, &spec.NodeGetVolumeHealthRequest{VolumeId: "v", VolumePublishPath: long})
}

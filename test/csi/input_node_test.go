package csi_test

import (
	"maps"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// nodeCases has the bad requests of the node whose answers depend on what only a
// process has: its pool, its records, volumes in use, grants of its controller,
// and flags that hold a secret. The others are in csi (TestPaths, TestCapability,
// TestNodeStageVolume, TestNodePublishVolume, TestUnknown, TestMalformedRequests)
// and in node (TestStageRefuses, TestForbiddenPaths, TestSecondPublish).
func (w *world) nodeCases() []badCase {
	type (
		staging    = *csi.NodeStageVolumeRequest
		publishing = *csi.NodePublishVolumeRequest
		expansion  = *csi.NodeExpandVolumeRequest
	)
	stage := bad(w.node().NodeStageVolume, w.granted.stageRequest())
	sound := w.used.publishRequest()
	sound.TargetPath += "-2"
	publish := bad(w.node().NodePublishVolume, sound)
	unstage := bad(w.node().NodeUnstageVolume, &csi.NodeUnstageVolumeRequest{VolumeId: w.used.id, StagingTargetPath: w.used.staging})
	unpublish := bad(w.node().NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{VolumeId: w.used.id, TargetPath: w.used.target})
	expand := bad(w.node().NodeExpandVolume, &csi.NodeExpandVolumeRequest{VolumeId: w.used.id, VolumePath: w.used.target, StagingTargetPath: w.used.staging})
	stats := bad(w.node().NodeGetVolumeStats, &csi.NodeGetVolumeStatsRequest{VolumeId: w.used.id, VolumePath: w.used.target})
	ask := bad(w.node().NodeGetVolumeHealth, &csi.NodeGetVolumeHealthRequest{VolumeId: "none"})
	flags := func(flags ...string) func(staging) {
		return func(q staging) { q.VolumeCapability = mounted("ext4", flags...) }
	}
	return []badCase{
		stage("with a path that climbs", codes.InvalidArgument, func(q staging) { q.StagingTargetPath = w.other + "/../../etc" }),
		stage("over another volume", codes.FailedPrecondition, func(q staging) { q.StagingTargetPath = w.used.staging }),
		stage("in the pool", codes.InvalidArgument, func(q staging) { q.StagingTargetPath = w.pool + "/volumes" }),
		stage("over the state", codes.InvalidArgument, func(q staging) { q.StagingTargetPath = w.dir + "/csi-state" }),
		stage("with a newline in a flag", codes.InvalidArgument, flags("noatime\npassword="+marker)),
		stage("with an unknown flag", codes.InvalidArgument, flags("password="+marker)),
		stage("with a bad value of a flag", codes.InvalidArgument, flags("data="+marker)),
		stage("out of the pool", codes.InvalidArgument, func(q staging) { q.VolumeContext = w.located(traversal) }),
		stage("of the records", codes.InvalidArgument, func(q staging) { q.VolumeContext = w.located("engine.db") }),
		stage("of another volume", codes.InvalidArgument, func(q staging) { q.VolumeContext = w.loose.context }),
		stage("without grant", codes.FailedPrecondition, func(q staging) { q.PublishContext = nil }),
		stage("at a second path", codes.FailedPrecondition, func(q staging) { q.VolumeId, q.VolumeContext = w.used.id, w.used.context }),
		stage("as block beside", codes.AlreadyExists, func(q staging) {
			q.VolumeId, q.VolumeContext, q.StagingTargetPath, q.VolumeCapability = w.used.id, w.used.context, w.used.staging, block()
		}),
		publish("with a path that climbs", codes.InvalidArgument, func(q publishing) { q.TargetPath = w.other + "/../../etc" }),
		publish("of what is not staged", codes.FailedPrecondition, func(q publishing) { q.VolumeId, q.StagingTargetPath = w.granted.id, w.granted.staging }),
		publish("where no directory is", codes.FailedPrecondition, func(q publishing) { q.TargetPath = w.nowhere }),
		publish("in the pool", codes.InvalidArgument, func(q publishing) { q.TargetPath = w.pool + "/volumes/x" }),
		publish("with other flags of the file system", codes.FailedPrecondition, func(q publishing) { q.VolumeCapability = mounted("ext4", "data="+marker) }),
		publish("with another's grant", codes.FailedPrecondition, func(q publishing) { q.PublishContext["grantedTo"] = "node-2" }),
		publish("again read-only", codes.AlreadyExists, func(q publishing) { q.TargetPath, q.Readonly = w.used.target, true }),
		w.inline("with an unknown key", codes.InvalidArgument, map[string]string{"path": "/etc"}),
		w.inline("larger than the pool", codes.ResourceExhausted, map[string]string{"size": "1Pi"}),
		w.inline("of an existing volume's file", codes.InvalidArgument, w.used.context),
		unstage("with a path that climbs", codes.InvalidArgument, func(q *csi.NodeUnstageVolumeRequest) { q.StagingTargetPath = w.other + "/../../etc" }),
		unstage("from the pool", codes.OK, func(q *csi.NodeUnstageVolumeRequest) { q.StagingTargetPath = w.pool }),
		unstage("while it is published", codes.FailedPrecondition, func(*csi.NodeUnstageVolumeRequest) {}),
		unpublish("with a path that climbs", codes.InvalidArgument, func(q *csi.NodeUnpublishVolumeRequest) { q.TargetPath = w.other + "/../../etc" }),
		unpublish("from its staging path", codes.OK, func(q *csi.NodeUnpublishVolumeRequest) { q.TargetPath = w.used.staging }),
		unpublish("of a file of the pool", codes.OK, func(q *csi.NodeUnpublishVolumeRequest) { q.TargetPath = w.pool + "/engine.db" }),
		expand("without id", codes.InvalidArgument, func(q expansion) { q.VolumeId = "" }),
		expand("of what is not staged", codes.NotFound, func(q expansion) { q.VolumeId, q.VolumePath = w.granted.id, w.granted.staging }),
		expand("beyond the pool", codes.OutOfRange, func(q expansion) { q.CapacityRange = sizes(1<<40, 0) }),
		stats("without id", codes.InvalidArgument, func(q *csi.NodeGetVolumeStatsRequest) { q.VolumeId = "" }),
		stats("of another volume", codes.NotFound, func(q *csi.NodeGetVolumeStatsRequest) { q.VolumeId = w.granted.id }),
		ask("without id", codes.InvalidArgument, func(q *csi.NodeGetVolumeHealthRequest) { q.VolumeId = "" }),
	}
}

// inline is a case of an inline volume, whose attributes a pod's author writes.
func (w *world) inline(name string, want codes.Code, attributes map[string]string) badCase {
	publish := bad(w.node().NodePublishVolume, &csi.NodePublishVolumeRequest{
		VolumeId: "csi-1", TargetPath: w.other + "/inline", VolumeCapability: mounted("ext4"),
		VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "16Mi"},
	})
	return publish("inline "+name, want, func(q *csi.NodePublishVolumeRequest) { maps.Copy(q.VolumeContext, attributes) })
}

package csi_test

import (
	"maps"
	"math"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

// badPaths are paths that every call refuses.
func (w *world) badPaths() map[string]string {
	return map[string]string{
		"with no path":                 "",
		"with a relative path":         "volumes/granted/staging",
		"with a path that climbs":      w.dir + "/volumes/../../../etc",
		"with a path with a dot":       w.dir + "/./volumes",
		"with a path with two slashes": w.dir + "//volumes",
		"with a path with a slash":     w.dir + "/volumes/",
		"with a NUL in a path":         w.dir + "/volumes\x00/etc",
		"with the root":                "/",
		"with a long path":             "/" + strings.Repeat("x/", 2047) + "xx",
		"with a long name in a path":   w.dir + "/" + strings.Repeat("x", 256),
	}
}

func (w *world) stageCases() []badCase {
	type request = *csi.NodeStageVolumeRequest
	stage := bad(w.node().NodeStageVolume, w.granted.stageRequest())
	mount := func(c *csi.VolumeCapability) func(request) { return func(q request) { q.VolumeCapability = c } }
	locate := func(context map[string]string) func(request) { return func(q request) { q.VolumeContext = context } }
	elsewhere := map[string]string{"targetType": "file", "pool": "11111111-1111-4111-8111-111111111111", "file": "volumes/x"}
	cases := []badCase{
		stage("without id", codes.InvalidArgument, func(q request) { q.VolumeId = "" }),
		stage("with a long id", codes.InvalidArgument, func(q request) { q.VolumeId = long }),
		stage("where nothing is", codes.FailedPrecondition, func(q request) { q.StagingTargetPath = w.nowhere }),
		stage("on a file", codes.FailedPrecondition, func(q request) { q.StagingTargetPath = w.pool + ".img" }),
		stage("below a file", codes.FailedPrecondition, func(q request) { q.StagingTargetPath = w.pool + ".img/x" }),
		stage("over another volume", codes.FailedPrecondition, func(q request) { q.StagingTargetPath = w.used.staging }),
		stage("over the pool", codes.InvalidArgument, func(q request) { q.StagingTargetPath = w.pool }),
		stage("in the pool", codes.InvalidArgument, func(q request) { q.StagingTargetPath = w.pool + "/volumes" }),
		stage("over the state", codes.InvalidArgument, func(q request) { q.StagingTargetPath = w.dir + "/csi-state" }),
		stage("over the system", codes.InvalidArgument, func(q request) { q.StagingTargetPath = "/usr/share" }),
		stage("of what never was", codes.NotFound, func(q request) { q.VolumeId, q.VolumeContext = traversal, nil }),
		stage("as another file system", codes.FailedPrecondition, mount(mounted("xfs"))),
		stage("of raw bytes as a mount", codes.FailedPrecondition, func(q request) { q.VolumeId, q.VolumeContext = w.raw.id, w.raw.context }),
		stage("with a bind", codes.InvalidArgument, mount(mounted("ext4", "bind"))),
		stage("with a remount", codes.InvalidArgument, mount(mounted("ext4", "noatime,remount"))),
		stage("with another device", codes.InvalidArgument, mount(mounted("ext4", "journal_path=/dev/vda"))),
		stage("with a flag that halts the machine", codes.InvalidArgument, mount(mounted("ext4", "noatime,errors=panic"))),
		stage("with a flag that skips the journal", codes.InvalidArgument, mount(mounted("ext4", "ro,noload"))),
		stage("with an unknown flag", codes.InvalidArgument, mount(mounted("ext4", "password="+marker))),
		stage("with a bad value of a flag", codes.InvalidArgument, mount(mounted("ext4", "data="+marker))),
		stage("with a quote in a flag", codes.InvalidArgument, mount(mounted("ext4", `x="`+marker))),
		stage("with a bad name of a flag", codes.InvalidArgument, mount(mounted("ext4", "pass/word="+marker))),
		stage("with a long value of a flag", codes.InvalidArgument, mount(mounted("ext4", "data="+strings.Repeat(marker, 30)))),
		stage("with large contexts", codes.InvalidArgument, locate(huge)),
		stage("with a large grant", codes.InvalidArgument, func(q request) { q.PublishContext = huge }),
		stage("by an unknown protocol", codes.InvalidArgument, locate(map[string]string{"targetType": "floppy"})),
		stage("out of the pool", codes.InvalidArgument, locate(w.located(traversal))),
		stage("by an absolute name", codes.InvalidArgument, locate(w.located("/etc/passwd"))),
		stage("of the records", codes.InvalidArgument, locate(w.located("engine.db"))),
		stage("of the pool's identity", codes.InvalidArgument, locate(w.located("pool.json"))),
		stage("of a snapshot, to be written", codes.InvalidArgument, locate(w.located("snapshots/"+w.snap.GetSnapshotId()))),
		stage("of what is being made", codes.InvalidArgument, locate(w.located("incoming/x"))),
		stage("of another volume", codes.InvalidArgument, locate(w.loose.context)),
		stage("of another pool's volume", codes.InvalidArgument, locate(elsewhere)),
		stage("of another pool", codes.FailedPrecondition, func(q request) { q.VolumeId, q.VolumeContext = "x", elsewhere }),
		stage("without grant", codes.FailedPrecondition, func(q request) { q.PublishContext = nil }),
		stage("with another's grant", codes.FailedPrecondition, func(q request) { q.PublishContext["grantedTo"] = "node-2" }),
		stage("at a second path", codes.FailedPrecondition, func(q request) { q.VolumeId, q.VolumeContext = w.used.id, w.used.context }),
		stage("in another way", codes.AlreadyExists, func(q request) {
			q.VolumeId, q.VolumeContext, q.StagingTargetPath = w.used.id, w.used.context, w.used.staging
			withMode(q.VolumeCapability, multiWriter)
		}),
		stage("as block beside", codes.AlreadyExists, func(q request) {
			q.VolumeId, q.VolumeContext, q.StagingTargetPath, q.VolumeCapability = w.used.id, w.used.context, w.used.staging, block()
		}),
	}
	for name, c := range badCapabilities() {
		cases = append(cases, stage(name, codes.InvalidArgument, mount(c)))
	}
	for name, path := range w.badPaths() {
		cases = append(cases, stage(name, codes.InvalidArgument, func(q request) { q.StagingTargetPath = path }))
	}
	return cases
}

func (w *world) publishCases() []badCase {
	type request = *csi.NodePublishVolumeRequest
	sound := w.used.publishRequest()
	sound.TargetPath += "-2"
	publish := bad(w.node().NodePublishVolume, sound)
	mount := func(c *csi.VolumeCapability) func(request) { return func(q request) { q.VolumeCapability = c } }
	target := func(path string) func(request) { return func(q request) { q.TargetPath = path } }
	cases := []badCase{
		publish("without id", codes.InvalidArgument, func(q request) { q.VolumeId = "" }),
		publish("with a long id", codes.InvalidArgument, func(q request) { q.VolumeId = long }),
		publish("of what never was", codes.FailedPrecondition, func(q request) { q.VolumeId = traversal }),
		publish("without staging path", codes.FailedPrecondition, func(q request) { q.StagingTargetPath = "" }),
		publish("with another staging path", codes.FailedPrecondition, func(q request) { q.StagingTargetPath = w.granted.staging }),
		publish("with a relative staging path", codes.InvalidArgument, func(q request) { q.StagingTargetPath = "staging" }),
		publish("of what is not staged", codes.FailedPrecondition, func(q request) { q.VolumeId, q.StagingTargetPath = w.granted.id, w.granted.staging }),
		publish("onto its staging path", codes.InvalidArgument, target(w.used.staging)),
		publish("above its staging path", codes.InvalidArgument, target(w.other+"/used")),
		publish("where no directory is", codes.FailedPrecondition, target(w.nowhere)),
		publish("below a file", codes.FailedPrecondition, target(w.pool+".img/x")),
		publish("on a file", codes.FailedPrecondition, target(w.pool+".img")),
		publish("over the pool", codes.InvalidArgument, target(w.pool)),
		publish("in the pool", codes.InvalidArgument, target(w.pool+"/volumes/x")),
		publish("in the state", codes.InvalidArgument, target(w.dir+"/csi-state/x")),
		publish("in the system", codes.InvalidArgument, target("/etc/x")),
		publish("in its staging path", codes.InvalidArgument, target(w.used.staging+"/x")),
		publish("a second time", codes.FailedPrecondition, target(w.used.target+"-2")),
		publish("as block", codes.FailedPrecondition, mount(block())),
		publish("as another file system", codes.FailedPrecondition, mount(mounted("xfs"))),
		publish("with other flags of the file system", codes.FailedPrecondition, mount(mounted("ext4", "data="+marker))),
		publish("with a bind", codes.InvalidArgument, mount(mounted("ext4", "rbind"))),
		publish("with a bad flag", codes.InvalidArgument, mount(mounted("ext4", "pass/word="+marker))),
		publish("with a large context", codes.InvalidArgument, func(q request) { q.VolumeContext = huge }),
		publish("with a large grant", codes.InvalidArgument, func(q request) { q.PublishContext = huge }),
		publish("out of the pool", codes.InvalidArgument, func(q request) { q.VolumeContext = w.located(traversal) }),
		publish("without grant", codes.FailedPrecondition, func(q request) { q.PublishContext = nil }),
		publish("with another's grant", codes.FailedPrecondition, func(q request) { q.PublishContext["grantedTo"] = "node-2" }),
		publish("again read-only", codes.AlreadyExists, func(q request) { q.TargetPath, q.Readonly = w.used.target, true }),
		publish("again in another mode", codes.AlreadyExists, func(q request) {
			q.TargetPath = w.used.target
			withMode(q.VolumeCapability, multiWriter)
		}),
	}
	for name, path := range w.badPaths() {
		cases = append(cases, publish(name, codes.InvalidArgument, target(path)))
	}
	return cases
}

// inlineCases: volume attributes written by a pod's author reach the driver
// unchecked.
func (w *world) inlineCases() []badCase {
	type request = *csi.NodePublishVolumeRequest
	inline := bad(w.node().NodePublishVolume, &csi.NodePublishVolumeRequest{
		VolumeId: "csi-1", TargetPath: w.other + "/inline", VolumeCapability: mounted("ext4"),
		VolumeContext: map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "16Mi"},
	})
	with := func(more map[string]string) func(request) {
		return func(q request) { maps.Copy(q.VolumeContext, more) }
	}
	return []badCase{
		inline("perhaps inline", codes.InvalidArgument, with(map[string]string{"csi.storage.k8s.io/ephemeral": "perhaps"})),
		inline("inline as block", codes.InvalidArgument, func(q request) { q.VolumeCapability = block() }),
		inline("inline of no size", codes.InvalidArgument, with(map[string]string{"size": "large"})),
		inline("inline of negative size", codes.InvalidArgument, with(map[string]string{"size": "-1Gi"})),
		inline("inline of absurd size", codes.OutOfRange, with(map[string]string{"size": "9999999999Gi"})),
		inline("inline larger than the pool", codes.ResourceExhausted, with(map[string]string{"size": "1Pi"})),
		inline("inline with an unknown key", codes.InvalidArgument, with(map[string]string{"path": "/etc"})),
		inline("inline of an existing volume's file", codes.InvalidArgument, with(w.used.context)),
		inline("inline with two file systems", codes.InvalidArgument, with(map[string]string{"fsType": "xfs"})),
		inline("inline with a bad flag", codes.InvalidArgument, func(q request) { q.VolumeCapability = mounted("ext4", "password="+marker) }),
		inline("inline over another volume", codes.FailedPrecondition, func(q request) { q.TargetPath = w.used.target }),
		inline("inline of what is staged", codes.FailedPrecondition, func(q request) { q.VolumeId = w.used.id }),
		inline("inline where no directory is", codes.FailedPrecondition, func(q request) { q.TargetPath = w.nowhere }),
	}
}

func (w *world) undoCases() []badCase {
	type (
		unstage   = *csi.NodeUnstageVolumeRequest
		unpublish = *csi.NodeUnpublishVolumeRequest
	)
	unstaged := bad(w.node().NodeUnstageVolume, &csi.NodeUnstageVolumeRequest{VolumeId: w.used.id, StagingTargetPath: w.used.staging})
	unpublished := bad(w.node().NodeUnpublishVolume, &csi.NodeUnpublishVolumeRequest{VolumeId: w.used.id, TargetPath: w.used.target})
	cases := []badCase{
		unstaged("without id", codes.InvalidArgument, func(q unstage) { q.VolumeId = "" }),
		unstaged("with a long id", codes.InvalidArgument, func(q unstage) { q.VolumeId = long }),
		unstaged("of what never was", codes.OK, func(q unstage) { q.VolumeId = traversal }),
		unstaged("from where it is not", codes.OK, func(q unstage) { q.StagingTargetPath = w.nowhere }),
		unstaged("from the pool", codes.OK, func(q unstage) { q.StagingTargetPath = w.pool }),
		unstaged("of another from here", codes.OK, func(q unstage) { q.VolumeId = w.granted.id }),
		unstaged("while it is published", codes.FailedPrecondition, func(unstage) {}),
		unpublished("without id", codes.InvalidArgument, func(q unpublish) { q.VolumeId = "" }),
		unpublished("with a long id", codes.InvalidArgument, func(q unpublish) { q.VolumeId = long }),
		unpublished("of what never was", codes.OK, func(q unpublish) { q.VolumeId = traversal }),
		unpublished("from where it is not", codes.OK, func(q unpublish) { q.TargetPath = w.nowhere }),
		unpublished("from its staging path", codes.OK, func(q unpublish) { q.TargetPath = w.used.staging }),
		unpublished("from the pool", codes.OK, func(q unpublish) { q.TargetPath = w.pool }),
		unpublished("of a file of the pool", codes.OK, func(q unpublish) { q.TargetPath = w.pool + "/engine.db" }),
		unpublished("of another from here", codes.OK, func(q unpublish) { q.VolumeId = w.granted.id }),
	}
	for name, path := range w.badPaths() {
		cases = append(cases,
			unstaged(name, codes.InvalidArgument, func(q unstage) { q.StagingTargetPath = path }),
			unpublished(name, codes.InvalidArgument, func(q unpublish) { q.TargetPath = path }))
	}
	return cases
}

func (w *world) useCases() []badCase {
	type (
		expansion = *csi.NodeExpandVolumeRequest
		usage     = *csi.NodeGetVolumeStatsRequest
		health    = *csi.NodeGetVolumeHealthRequest
	)
	expand := bad(w.node().NodeExpandVolume, &csi.NodeExpandVolumeRequest{
		VolumeId: w.used.id, VolumePath: w.used.target, StagingTargetPath: w.used.staging, CapacityRange: sizes(32*mib, 0)})
	stats := bad(w.node().NodeGetVolumeStats, &csi.NodeGetVolumeStatsRequest{VolumeId: w.used.id, VolumePath: w.used.target})
	ask := bad(w.node().NodeGetVolumeHealth, &csi.NodeGetVolumeHealthRequest{VolumeId: "none"})
	tooLong := "/" + strings.Repeat("x", 5000)
	return []badCase{
		expand("without id", codes.InvalidArgument, func(q expansion) { q.VolumeId = "" }),
		expand("without path", codes.InvalidArgument, func(q expansion) { q.VolumePath = "" }),
		expand("with a long path", codes.InvalidArgument, func(q expansion) { q.VolumePath = tooLong }),
		expand("with a long staging path", codes.InvalidArgument, func(q expansion) { q.StagingTargetPath = tooLong }),
		expand("of what never was", codes.NotFound, func(q expansion) { q.VolumeId = traversal }),
		expand("where it is not", codes.NotFound, func(q expansion) { q.VolumePath = w.pool }),
		expand("by a relative path", codes.NotFound, func(q expansion) { q.VolumePath = "target" }),
		expand("of what is not staged", codes.NotFound, func(q expansion) { q.VolumeId, q.VolumePath = w.granted.id, w.granted.staging }),
		expand("to less than nothing", codes.InvalidArgument, func(q expansion) { q.CapacityRange = sizes(-1, 0) }),
		expand("with limit < required", codes.InvalidArgument, func(q expansion) { q.CapacityRange = sizes(32*mib, 1) }),
		expand("to an empty range", codes.InvalidArgument, func(q expansion) { q.CapacityRange = sizes(0, 0) }),
		expand("below its size", codes.OutOfRange, func(q expansion) { q.CapacityRange = sizes(0, 1*mib) }),
		expand("to an absurd size", codes.OutOfRange, func(q expansion) { q.CapacityRange = sizes(math.MaxInt64, 0) }),
		expand("beyond the pool", codes.OutOfRange, func(q expansion) { q.CapacityRange = sizes(1<<40, 0) }),
		expand("as block", codes.InvalidArgument, func(q expansion) { q.VolumeCapability = block() }),
		expand("for many nodes", codes.InvalidArgument, func(q expansion) { q.VolumeCapability = withMode(mounted("ext4"), 5) }),
		stats("without id", codes.InvalidArgument, func(q usage) { q.VolumeId = "" }),
		stats("without path", codes.InvalidArgument, func(q usage) { q.VolumePath = "" }),
		stats("with a long path", codes.InvalidArgument, func(q usage) { q.VolumePath = tooLong }),
		stats("of what never was", codes.NotFound, func(q usage) { q.VolumeId = traversal }),
		stats("where it is not", codes.NotFound, func(q usage) { q.VolumePath = w.other }),
		stats("of another volume", codes.NotFound, func(q usage) { q.VolumeId = w.granted.id }),
		stats("by a path that climbs", codes.NotFound, func(q usage) { q.VolumePath = w.used.target + "/../target" }),
		stats("with a NUL", codes.NotFound, func(q usage) { q.VolumePath = w.used.target + "\x00" }),
		ask("without id", codes.InvalidArgument, func(q health) { q.VolumeId = "" }),
		ask("with a long id", codes.InvalidArgument, func(q health) { q.VolumeId = long }),
		ask("with a long path", codes.InvalidArgument, func(q health) { q.VolumePublishPath = tooLong }),
		ask("of what never was", codes.NotFound, func(q health) { q.VolumeId = traversal }),
	}
}

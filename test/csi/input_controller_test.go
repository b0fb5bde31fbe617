package csi_test

import (
	"math"
	"strings"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
)

func sizes(required, limit int64) *csi.CapacityRange {
	return &csi.CapacityRange{RequiredBytes: required, LimitBytes: limit}
}

// badCapabilities are capabilities that every call refuses.
func badCapabilities() map[string]*csi.VolumeCapability {
	group := func(g string) *csi.VolumeCapability {
		c := mounted("ext4")
		c.GetMount().VolumeMountGroup = g
		return c
	}
	return map[string]*csi.VolumeCapability{
		"without capability":                nil,
		"with an empty capability":          {},
		"without access type":               withMode(&csi.VolumeCapability{}, writer),
		"without access mode":               {AccessType: block().AccessType},
		"with the unknown access mode":      withMode(mounted("ext4"), csi.VolumeCapability_AccessMode_UNKNOWN),
		"with an access mode of the future": withMode(mounted("ext4"), 77),
		"with a negative access mode":       withMode(mounted("ext4"), -1),
		"for many nodes":                    withMode(mounted("ext4"), csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER),
		"with ntfs":                         mounted("ntfs"),
		"with a path as file system":        mounted(traversal),
		"with a long file system":           mounted(long),
		"with a named group":                group("root"),
		"with a negative group":             group("-1"),
		"with no group there is":            group("4294967295"),
		"with a group too large":            group("4294967296"),
		"with large mount flags":            mounted("ext4", strings.Repeat("x", 4097)),
		"with a newline in a mount flag":    mounted("ext4", "noatime\npassword="+marker),
		"with an empty mount flag":          mounted("ext4", ""),
	}
}

func (w *world) createCases() []badCase {
	sound := ask("new", mounted("ext4"))
	c := bad(w.controller().CreateVolume, sound)
	type request = *csi.CreateVolumeRequest
	cases := []badCase{
		c("without name", codes.InvalidArgument, func(q request) { q.Name = "" }),
		c("with a long name", codes.InvalidArgument, func(q request) { q.Name = long }),
		c("with a NUL in the name", codes.InvalidArgument, func(q request) { q.Name = "a\x00b" }),
		c("with an escape in the name", codes.InvalidArgument, func(q request) { q.Name = "a\x1b[2J" }),
		c("without capabilities", codes.InvalidArgument, func(q request) { q.VolumeCapabilities = nil }),
		c("of negative size", codes.InvalidArgument, func(q request) { q.CapacityRange = sizes(-1, 0) }),
		c("of the least size", codes.InvalidArgument, func(q request) { q.CapacityRange = sizes(math.MinInt64, math.MinInt64) }),
		c("with a negative limit", codes.InvalidArgument, func(q request) { q.CapacityRange = sizes(16*mib, -1) }),
		c("with limit < required", codes.InvalidArgument, func(q request) { q.CapacityRange = sizes(32*mib, 16*mib) }),
		c("with an empty range", codes.InvalidArgument, func(q request) { q.CapacityRange = sizes(0, 0) }),
		c("of absurd size", codes.OutOfRange, func(q request) { q.CapacityRange = sizes(math.MaxInt64, 0) }),
		c("of a size between two blocks", codes.OutOfRange, func(q request) { q.CapacityRange = sizes(16*mib+1, 16*mib+2) }),
		c("too small", codes.OutOfRange, func(q request) { q.CapacityRange = sizes(1, 4096) }),
		c("larger than the pool", codes.ResourceExhausted, func(q request) { q.CapacityRange = sizes(1<<40, 0) }),
		c("with large parameters", codes.InvalidArgument, func(q request) { q.Parameters = huge }),
		c("with large mutable parameters", codes.InvalidArgument, func(q request) { q.MutableParameters = huge }),
		c("with a misspelt parameter", codes.InvalidArgument, func(q request) { q.Parameters = map[string]string{"provisoning": "thin"} }),
		c("with a bad value", codes.InvalidArgument, func(q request) { q.Parameters = map[string]string{"provisioning": traversal} }),
		c("with a negative read-ahead", codes.InvalidArgument, func(q request) { q.Parameters = map[string]string{"readAheadKiB": "-1"} }),
		c("with an unknown mutable parameter", codes.InvalidArgument, func(q request) { q.MutableParameters = map[string]string{"fsType": "xfs"} }),
		c("with two file systems", codes.InvalidArgument, func(q request) { q.Parameters = map[string]string{"fsType": "xfs"} }),
		c("from nothing", codes.InvalidArgument, func(q request) { q.VolumeContentSource = &csi.VolumeContentSource{} }),
		c("from no snapshot", codes.InvalidArgument, func(q request) { q.VolumeContentSource = fromSnapshot("") }),
		c("from a long snapshot", codes.InvalidArgument, func(q request) { q.VolumeContentSource = fromSnapshot(long) }),
		c("from a snapshot that never was", codes.NotFound, func(q request) { q.VolumeContentSource = fromSnapshot(traversal) }),
		c("from a volume that never was", codes.NotFound, func(q request) { q.VolumeContentSource = fromVolume("../" + w.used.id) }),
		c("from a volume taken for a snapshot", codes.NotFound, func(q request) { q.VolumeContentSource = fromSnapshot(w.used.id) }),
		c("smaller than its source", codes.OutOfRange, func(q request) {
			q.VolumeContentSource, q.CapacityRange = fromVolume(w.used.id), sizes(0, 4*mib)
		}),
		c("of another file system than its source", codes.InvalidArgument, func(q request) {
			q.VolumeContentSource, q.VolumeCapabilities[0] = fromVolume(w.used.id), mounted("xfs")
		}),
		c("with a file system from raw bytes", codes.InvalidArgument, func(q request) { q.VolumeContentSource = fromVolume(w.raw.id) }),
		c("elsewhere", codes.ResourceExhausted, func(q request) { q.AccessibilityRequirements = elsewhere() }),
		c("nowhere", codes.InvalidArgument, func(q request) { q.AccessibilityRequirements = &csi.TopologyRequirement{} }),
		c("at a bad place", codes.InvalidArgument, func(q request) {
			q.AccessibilityRequirements = elsewhere()
			q.AccessibilityRequirements.Requisite[0].Segments = map[string]string{"a b": "c"}
		}),
		c("of another size again", codes.AlreadyExists, func(q request) { q.Name, q.CapacityRange = "used", sizes(99*mib, 0) }),
		c("as block again", codes.AlreadyExists, func(q request) { q.Name, q.VolumeCapabilities[0] = "used", block() }),
		c("with other parameters again", codes.AlreadyExists, func(q request) { q.Name, q.Parameters = "used", map[string]string{"provisioning": "thick"} }),
		c("from a source again", codes.AlreadyExists, func(q request) { q.Name, q.VolumeContentSource = "used", fromVolume(w.loose.id) }),
	}
	for name, capability := range badCapabilities() {
		cases = append(cases, c(name, codes.InvalidArgument, func(q request) { q.VolumeCapabilities[0] = capability }))
	}
	return cases
}

func elsewhere() *csi.TopologyRequirement {
	return &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"topology.cleat.dev/node": "elsewhere"}}}}
}

func (w *world) changeCases() []badCase {
	type (
		deletion   = *csi.DeleteVolumeRequest
		get        = *csi.ControllerGetVolumeRequest
		validation = *csi.ValidateVolumeCapabilitiesRequest
		expansion  = *csi.ControllerExpandVolumeRequest
		change     = *csi.ControllerModifyVolumeRequest
	)
	remove := bad(w.controller().DeleteVolume, &csi.DeleteVolumeRequest{VolumeId: "none"})
	show := bad(w.controller().ControllerGetVolume, &csi.ControllerGetVolumeRequest{VolumeId: "none"})
	validate := bad(w.controller().ValidateVolumeCapabilities, &csi.ValidateVolumeCapabilitiesRequest{
		VolumeId: w.used.id, VolumeCapabilities: []*csi.VolumeCapability{mounted("ext4")}})
	expand := bad(w.controller().ControllerExpandVolume, &csi.ControllerExpandVolumeRequest{VolumeId: w.raw.id, CapacityRange: sizes(32*mib, 0)})
	modify := bad(w.controller().ControllerModifyVolume, &csi.ControllerModifyVolumeRequest{
		VolumeId: w.raw.id, MutableParameters: map[string]string{"readAheadKiB": "64"}})
	return []badCase{
		remove("without id", codes.InvalidArgument, func(q deletion) { q.VolumeId = "" }),
		remove("with a long id", codes.InvalidArgument, func(q deletion) { q.VolumeId = long }),
		remove("of what never was", codes.OK, func(q deletion) { q.VolumeId = traversal }),
		remove("of a file in the pool", codes.OK, func(q deletion) { q.VolumeId = "../engine.db" }),
		remove("of a snapshot", codes.OK, func(q deletion) { q.VolumeId = w.snap.GetSnapshotId() }),
		remove("of what is in use", codes.FailedPrecondition, func(q deletion) { q.VolumeId = w.used.id }),
		remove("of what is granted", codes.FailedPrecondition, func(q deletion) { q.VolumeId = w.granted.id }),
		show("without id", codes.InvalidArgument, func(q get) { q.VolumeId = "" }),
		show("with a long id", codes.InvalidArgument, func(q get) { q.VolumeId = long }),
		show("of what never was", codes.NotFound, func(q get) { q.VolumeId = traversal }),
		validate("without id", codes.InvalidArgument, func(q validation) { q.VolumeId = "" }),
		validate("without capabilities", codes.InvalidArgument, func(q validation) { q.VolumeCapabilities = nil }),
		validate("with nothing as capability", codes.InvalidArgument, func(q validation) { q.VolumeCapabilities[0] = nil }),
		validate("with a large context", codes.InvalidArgument, func(q validation) { q.VolumeContext = huge }),
		validate("of what never was", codes.NotFound, func(q validation) { q.VolumeId = traversal }),
		expand("without id", codes.InvalidArgument, func(q expansion) { q.VolumeId = "" }),
		expand("with a long id", codes.InvalidArgument, func(q expansion) { q.VolumeId = long }),
		expand("of what never was", codes.NotFound, func(q expansion) { q.VolumeId = traversal }),
		expand("without range", codes.InvalidArgument, func(q expansion) { q.CapacityRange = nil }),
		expand("to an empty range", codes.InvalidArgument, func(q expansion) { q.CapacityRange = sizes(0, 0) }),
		expand("to less than nothing", codes.InvalidArgument, func(q expansion) { q.CapacityRange = sizes(-5, 0) }),
		expand("with limit < required", codes.InvalidArgument, func(q expansion) { q.CapacityRange = sizes(32*mib, 1) }),
		expand("to an absurd size", codes.OutOfRange, func(q expansion) { q.CapacityRange = sizes(math.MaxInt64, 0) }),
		expand("beyond the pool", codes.OutOfRange, func(q expansion) { q.CapacityRange = sizes(1<<40, 0) }),
		expand("below the size", codes.OutOfRange, func(q expansion) { q.CapacityRange = sizes(0, 4*mib) }),
		expand("of a block volume as a mount", codes.InvalidArgument, func(q expansion) { q.VolumeCapability = mounted("ext4") }),
		expand("for many nodes", codes.InvalidArgument, func(q expansion) { q.VolumeCapability = withMode(block(), 5) }),
		modify("without id", codes.InvalidArgument, func(q change) { q.VolumeId = "" }),
		modify("of nothing", codes.InvalidArgument, func(q change) { q.MutableParameters = nil }),
		modify("of what never was", codes.NotFound, func(q change) { q.VolumeId = traversal }),
		modify("with one right and one wrong", codes.InvalidArgument, func(q change) { q.MutableParameters["color"] = "red" }),
		modify("with an absurd value", codes.InvalidArgument, func(q change) { q.MutableParameters["readAheadKiB"] = "99999999999999999999" }),
		modify("with too much", codes.InvalidArgument, func(q change) { q.MutableParameters = huge }),
	}
}

func (w *world) grantCases() []badCase {
	type (
		grant  = *csi.ControllerPublishVolumeRequest
		revoke = *csi.ControllerUnpublishVolumeRequest
	)
	publish := bad(w.controller().ControllerPublishVolume, &csi.ControllerPublishVolumeRequest{
		VolumeId: w.loose.id, NodeId: nodeID, VolumeCapability: mounted("ext4")})
	unpublish := bad(w.controller().ControllerUnpublishVolume, &csi.ControllerUnpublishVolumeRequest{VolumeId: "none", NodeId: nodeID})
	cases := []badCase{
		publish("without id", codes.InvalidArgument, func(q grant) { q.VolumeId = "" }),
		publish("with a long id", codes.InvalidArgument, func(q grant) { q.VolumeId = long }),
		publish("without node", codes.InvalidArgument, func(q grant) { q.NodeId = "" }),
		publish("to a long node", codes.InvalidArgument, func(q grant) { q.NodeId = strings.Repeat("n", 257) }),
		publish("of what never was", codes.NotFound, func(q grant) { q.VolumeId = traversal }),
		publish("to a node that never was", codes.NotFound, func(q grant) { q.NodeId = traversal }),
		publish("of another file system", codes.InvalidArgument, func(q grant) { q.VolumeCapability = mounted("btrfs") }),
		publish("of raw bytes as a mount", codes.InvalidArgument, func(q grant) { q.VolumeId = w.raw.id }),
		publish("with another's context", codes.InvalidArgument, func(q grant) { q.VolumeContext = w.raw.context }),
		publish("with an evil context", codes.InvalidArgument, func(q grant) { q.VolumeContext = w.located(traversal) }),
		publish("with a large context", codes.InvalidArgument, func(q grant) { q.VolumeContext = huge }),
		publish("read-only beside", codes.AlreadyExists, func(q grant) { q.VolumeId, q.Readonly = w.used.id, true }),
		publish("in another mode beside", codes.AlreadyExists, func(q grant) { q.VolumeId = w.used.id; withMode(q.VolumeCapability, singleWriter) }),
		unpublish("without id", codes.InvalidArgument, func(q revoke) { q.VolumeId = "" }),
		unpublish("with a long id", codes.InvalidArgument, func(q revoke) { q.VolumeId = long }),
		unpublish("from a long node", codes.InvalidArgument, func(q revoke) { q.NodeId = strings.Repeat("n", 257) }),
		unpublish("of what never was", codes.OK, func(q revoke) { q.VolumeId = traversal }),
		unpublish("from where it is not", codes.OK, func(q revoke) { q.VolumeId, q.NodeId = w.used.id, "node-2" }),
	}
	for name, capability := range badCapabilities() {
		cases = append(cases, publish(name, codes.InvalidArgument, func(q grant) { q.VolumeCapability = capability }))
	}
	return cases
}

// located is a volume context that leads to a name in the pool.
func (w *world) located(name string) map[string]string {
	return map[string]string{"targetType": "file", "pool": w.used.context["pool"], "file": name}
}

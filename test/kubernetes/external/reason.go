package external

import (
	"regexp"
	"strings"
)

// Reason is a reason why specs skip themselves.
type Reason struct {
	says *regexp.Regexp // matches the spec's message
	Text string         // the explanation
}

// stopsTheKubelet is the reason of specs that need SSH. Some skip themselves
// without a key, since Kubernetes 1.37 others fail.
const stopsTheKubelet = "[Disruptive]: it stops the kubelet through SSH to the node. `test/kubernetes` restarts, stops and reboots under volumes in use itself"

// reasons lists all accepted reasons: a spec that skips itself with another
// message fails a full run.
func reasons() []Reason {
	var all []Reason
	for _, r := range [][2]string{
		{`volume type "(PreprovisionedPV|InlineVolume)"`, "the volume would be made before the test by code in the suite itself, which it has for its own drivers only, not for one that a file describes (`SkipUnsupportedTest` in test/e2e/storage/external)"},
		{`volume type "CSIInlineVolume"`, "inline volumes need a process with all services: `csi.mode: perNode`"},
		{`doesn't support ntfs`, "a file system of Windows"},
		{`doesn't support ext3`, "cleat makes ext4, XFS and btrfs"},
		{`only supports singleNodeVolume`, "a pod on another node cannot see a volume that is local to one"},
		{`doesn't support RWX`, "ReadWriteMany is of several nodes; a local volume is on one"},
		{`does not support ROX access mode`, "ReadOnlyMany is of several nodes; a local volume is on one"},
		{`^No SSH Key for provider local`, stopsTheKubelet},
		{`VolumeAttributesClass|volume modify stress test options`, "VolumeAttributesClass needs one controller for the cluster: `csi.mode: controller`"},
		{`group snapshot`, "group snapshots need one snapshotter for the cluster: `csi.mode: controller`"},
		{`does not support snapshot metadata`, "the suite runs without its sidecar, external-snapshot-metadata, an option of the chart for `controller`"},
		{`does not support SELinuxMount`, "the suite's nodes have no SELinux"},
		{`supports VolumeMountGroup, which is incompatible`, "the driver gives the files to the group itself; the spec wants to see the kubelet do it"},
		{`^VolumeBindingMode immediate is not compatible|^Multiple generic ephemeral volumes with immediate binding`, "immediate binding does not go with topology, which the driver has"},
		{`does not support volume limits`, "there is no limit unless `csi.maxVolumes` is set: see limited"},
		{`^Not enough topologies in cluster`, "it wants a second node"},
		{`doesn't specify performance test options`, "a measurement, against figures that the definition would have to name, for classes with immediate binding"},
		{`^Filesystem volume case should be covered by block volume case|^Block volumes do not support|(?i)skipping multiple PV mount test for block mode|^Test (for|is not valid for) Block volume|^raw block volumes cannot be read-only|is (not )?ephemeral$|test for expansion$|^Suite "[A-Za-z-]+" does not support|^Test does not support non-filesystem`, "the suite itself has it for another kind of volume only"},
		{`does not support snapshots - skipping$`, "the suite's pattern of volumes is one without snapshots"},
	} {
		all = append(all, Reason{regexp.MustCompile(r[0]), r[1]})
	}
	return all
}

// ReasonOf returns why a spec that was not run does not apply, or false if the
// reason is unknown.
func ReasonOf(r Result) (string, bool) {
	if r.State == LeftOut {
		return r.Message, true
	}
	for _, known := range reasons() {
		if known.says.MatchString(strings.TrimSpace(r.Message)) {
			return known.Text, true
		}
	}
	return "", false
}

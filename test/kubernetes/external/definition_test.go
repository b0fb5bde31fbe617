package external

import (
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestLeftOutSpecs(t *testing.T) {
	definitions := testkit.Value(Definitions(".", Releases()...))(t)
	const (
		byHand = "[Testpattern: Pre-provisioned Snapshot (retain policy)] snapshottable [Feature:VolumeSnapshotDataSource] volume snapshot controller should check snapshot fields, check deletion (persistent)"
		any    = "[Testpattern: Dynamic PV (default fs)] provisioning should provision storage with any volume data source [Serial]"
		stress = "[Testpattern: Dynamic PV (xfs)] [Slow] volume-modify-stress [Feature:VolumeAttributesClass] multiple pods should modify volumes with a different volumeAttributesClass [Slow]"
		group  = "[Testpattern: (delete policy)] volumegroupsnapshottable [Feature:volumegroupsnapshot] VolumeGroupSnapshottable should create snapshots for StatefulSet volumes and verify data consistency after restore"
		groups = "[Testpattern: (delete policy)] volumegroupsnapshottable-stress [Feature:volumegroupsnapshot] should support volume group snapshotting of StatefulSet volumes repeatedly [Slow] [Serial]"
		kill   = "[Testpattern: Dynamic PV (block volmode)] disruptive [LinuxOnly] [Provider:gce,aws,local,azure] Should test that pv written before kubelet restart is readable after restart. [Disruptive]"
		stale  = "[Testpattern: Dynamic PV (default fs)] subPath should remount stale subpath bind mount after network filesystem disruption [LinuxOnly] [Disruptive] [Slow]"
		skips  = "[Testpattern: Dynamic PV (default fs)] subPath should unmount if pod is gracefully deleted while kubelet is down [Disruptive] [Slow] [LinuxOnly]"
		limit  = "[Testpattern: Dynamic PV (default fs)] volumeLimits should support volume limits [Serial]"
	)
	for i, want := range []struct {
		release            string
		left, run, foreign []string
	}{
		{"local", []string{byHand, any, kill, stale}, []string{stress, limit, skips}, nil},
		{"single", []string{stress, any, group, kill, stale}, []string{byHand, limit, groups, skips}, nil},
		{"limited", nil, []string{limit}, []string{byHand, stress}},
	} {
		d := definitions[i]
		if d.Release != want.release {
			t.Fatalf("definition %d is of %s", i, d.Release)
		}
		for _, name := range want.left {
			if d.LeftOut(Spec{d.Driver, name}) == "" {
				t.Errorf("%s: %s is not left out", d.Release, name)
			}
		}
		for _, name := range want.run {
			if s := (Spec{d.Driver, name}); d.LeftOut(s) != "" || !d.Covers(s) {
				t.Errorf("%s: %s is not run", d.Release, name)
			}
			if d.Covers(Spec{"other", name}) {
				t.Errorf("%s has the specs of another driver", d.Release)
			}
		}
		for _, name := range want.foreign {
			if d.Covers(Spec{d.Driver, name}) {
				t.Errorf("%s: %s is run", d.Release, name)
			}
		}
	}
}

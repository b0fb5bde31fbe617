package csi_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/ledger"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// guarded is a rig with a ledger, whose node has an address of each family.
func guarded(t *testing.T, began chan struct{}) (*nodeRig, *ledger.Ledger) {
	t.Helper()
	l := newLedger(t)
	return newNodeRig(t, began, func(c *csi.NodeConfig) {
		c.Admission = l
		c.Client = func() (volume.Client, error) {
			return volume.Client{Node: nodeID, Addrs: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}, nil
		}
	}), l
}

// listing includes modes and times of change.
func listing(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	testkit.Must(t, filepath.Walk(dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			lines = append(lines, path+" "+info.Mode().String()+" "+info.ModTime().Format(time.RFC3339Nano))
		}
		return err
	}))
	return strings.Join(lines, "\n")
}

func TestFencedNode(t *testing.T) {
	for _, block := range []string{"192.0.2.0/24", "2001:db8::1/128"} {
		t.Run(block, func(t *testing.T) {
			r, l := guarded(t, nil)
			used := r.stage("vol-used", mountCap())
			_, err := r.NodeStageVolume(t.Context(), used)
			testkit.Must(r.t, err)
			target := r.publish(used, "target")
			testkit.Value(r.NodePublishVolume(t.Context(), target))(r.t)
			if c, ok, err := l.Client(t.Context(), nodeID); err != nil || !ok || len(c.Addrs) != 2 {
				t.Errorf("who staged is not on record: %v, %t, %v", c, ok, err)
			}
			next := r.stage("vol-next", blockCap())
			fence(t, l, block)
			before := listing(t, r.dir)
			inline := r.publish(used, "inline")
			inline.VolumeId, inline.VolumeContext = "csi-1", map[string]string{"csi.storage.k8s.io/ephemeral": "true", "size": "1Gi"}
			for _, s := range []*spec.NodeStageVolumeRequest{used, next} {
				_, err = r.NodeStageVolume(t.Context(), s)
				r.code(err, codes.FailedPrecondition, nodeID, block, "UnfenceClusterNetwork")
			}
			for _, p := range []*spec.NodePublishVolumeRequest{target, r.publish(used, "second"), inline} {
				_, err = r.NodePublishVolume(t.Context(), p)
				r.code(err, codes.FailedPrecondition, nodeID, block, "UnfenceClusterNetwork")
			}
			if after := listing(t, r.dir); after != before {
				t.Errorf("refused, and changed:\n%s\n\n%s", before, after)
			}
			// A volume in use can be maintained and unpublished.
			testkit.Value(r.NodeGetVolumeStats(t.Context(), &spec.NodeGetVolumeStatsRequest{VolumeId: used.VolumeId, VolumePath: target.TargetPath}))(r.t)
			testkit.Value(r.NodeExpandVolume(t.Context(), &spec.NodeExpandVolumeRequest{VolumeId: used.VolumeId, VolumePath: target.TargetPath}))(r.t)
			r.undo(used, "target")
			r.undo(used, "target")
			fence(t, l)
			testkit.Value(r.NodeStageVolume(t.Context(), next))(r.t)
			r.undo(next)
		})
	}
}

// Also for a stage whose caller has gone.
func TestFenceWaitsForStage(t *testing.T) {
	began := make(chan struct{})
	r, l := guarded(t, began)
	s := r.stage("vol-1", mountCap())
	ctx, cancel := context.WithCancel(t.Context())
	staged := make(chan error, 1)
	go func() {
		_, err := r.NodeStageVolume(ctx, s)
		staged <- err
	}()
	<-began
	cancel()
	r.code(<-staged, codes.Canceled)
	fence(t, l, "192.0.2.1/32")
	blocks := []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}
	if err := l.Quiet(ctx, blocks); !errors.Is(err, errs.Unavailable) || !strings.Contains(err.Error(), nodeID) {
		t.Errorf("quiet while a stage runs: %v", err)
	}
	r.undo(s) // cancels the stage
	testkit.Must(r.t, l.Quiet(t.Context(), blocks))
}

// A client without addresses has the recorded ones.
func TestFencedByName(t *testing.T) {
	r, l := guarded(t, nil)
	testkit.Must(r.t, l.RecordClient(t.Context(), volume.Client{Node: nodeID, Addrs: []netip.Addr{netip.MustParseAddr("198.51.100.1")}}))
	named := newNodeRig(t, nil, func(c *csi.NodeConfig) { c.Admission = l })
	s := named.stage("vol-1", blockCap())
	fence(t, l, "198.51.100.1/32")
	_, err := named.NodeStageVolume(t.Context(), s)
	named.code(err, codes.FailedPrecondition, "198.51.100.1")
}

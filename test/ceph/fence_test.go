//go:build ceph

package ceph

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/test/testkit"
)

// cannotFence fences a block, which fails, as the user lacks a capability.
func (r *rig) cannotFence(machine, block string) {
	r.Helper()
	out, err := exec.CommandContext(r.Context(), shared.cleat, "fence", "add", block, "--timeout", "5s", "--endpoint", "unix://"+r.addons(machine)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), `allow command "osd blocklist"`) {
		r.Fatalf("cleat fence add %s: %v\n%s", block, err, out)
	}
}

// A controller whose fences failed starts, serves other nodes, and reports the
// fences. Each can be lifted, although others still fail.
func TestStartsWithFencesThatFailed(t *testing.T) {
	r := newRig(t)
	user := "cannot-fence"
	r.useKey(user, testkit.Value(shared.User(user, "mon", "profile rbd", "mgr", "profile rbd pool="+r.pool, "osd", "allow *"))(t))
	ctx := testkit.Context(t)
	first := r.controller("one")
	c := spec.NewControllerClient(first.Conn)
	v := testkit.Value(c.CreateVolume(ctx, create("a", 16*mib)))(t).GetVolume()
	r.cannotFence("one", "192.0.2.1")
	r.cannotFence("one", "192.0.2.3")
	first.Process.Kill()

	second := r.controller("two")
	c = spec.NewControllerClient(second.Conn)
	for _, node := range []string{nodeOne, "another-name@192.0.2.1"} {
		_, err := c.ControllerPublishVolume(ctx, publish(v, node))
		r.refused(err, codes.FailedPrecondition, "is being fenced", "192.0.2.1")
	}
	testkit.Value(c.CreateVolume(ctx, create("b", 16*mib)))(t)
	testkit.Value(c.ControllerPublishVolume(ctx, publish(v, nodeTwo)))(t)
	testkit.Value(c.ControllerUnpublishVolume(ctx, &spec.ControllerUnpublishVolumeRequest{VolumeId: v.GetVolumeId(), NodeId: nodeTwo}))(t)
	testkit.Eventually(t, "/readyz reports the fences", func() bool {
		var ready struct{ Checks map[string]string }
		err := server.Ask(ctx, filepath.Join(r.dir, "two-state", "status.sock"), "/readyz", &ready)
		return err == nil && strings.Contains(ready.Checks["fences"], "osd blocklist")
	})
	r.fence("two", "rm", "192.0.2.1")
	testkit.Value(c.ControllerPublishVolume(ctx, publish(v, nodeOne)))(t)
}

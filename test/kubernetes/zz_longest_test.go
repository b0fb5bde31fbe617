package kubernetes

import (
	"os/exec"
	"strings"
	"testing"
)

// Go starts parallel tests from the last to the first. The longest are in the
// last file, so that none runs alone at the end.

// The chart with the real sidecar and manager of CSI-Addons.
func TestAddons(t *testing.T) {
	t.Parallel()
	s := &addons{newSpace(t)}
	s.manager()
	s.certificates("fencing", "storage", "10.99.0.1")
	t.Cleanup(func() {
		together(t, directRelease.remove, eachRelease.remove, storageRelease.remove)
		if out, err := exec.Command("nft", "list", "tables").CombinedOutput(); err != nil || strings.Contains(string(out), "cleat_fence") {
			t.Errorf("with nothing fenced the packet filter has (%v)\n%s", err, out)
		}
	})
	disk := s.nbdServer() // without a storage server the fence is not ready
	together(t, directRelease.add, eachRelease.add, storageRelease.add)
	if t.Failed() {
		return
	}
	s.fenceClass("direct", "direct.cleat.dev", "direct-cleat-csi-addons")
	s.fenceClass("each", "each.cleat.dev", "each-cleat-csi-addons")
	s.fenceClass("server", "fence.cleat.dev", "storage-cleat-fence-addons")
	t.Run("Nodes", testAddonsNodes)
	t.Run("Rights", testAddonsRights)
	t.Run("Processes", testAddonsProcesses)
	t.Run("Tokens", testAddonsTokens)
	t.Run("Side by side", func(t *testing.T) {
		t.Run("Driver", testFencedNode)
		t.Run("Server", func(t *testing.T) { testFencedClient(t, disk) })
		t.Run("Ceph", testCeph)
	})
	t.Run("Complaints", testAddonsComplaints)
}

// A driver on each of two nodes. The cases share the nodes.
func TestTwoNodes(t *testing.T) {
	t.Parallel()
	s := newTwoNodes(t, pairRelease, farRelease)
	t.Run("Drained", func(t *testing.T) { s.with(t).drained() })
	t.Run("Restores", func(t *testing.T) { s.with(t).restores() })
	t.Run("NamespaceDeleted", func(t *testing.T) { s.with(t).namespaceDeleted() })
	t.Run("FullPool", func(t *testing.T) { s.with(t).fullPool() })
	t.Run("TopologyChanged", func(t *testing.T) { s.with(t).topologyChanged() })
	t.Run("Lost", func(t *testing.T) { s.with(t).lost() })
}

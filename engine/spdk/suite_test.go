package spdk

import (
	"encoding/json"
	"io"
	"os"
	"testing"

	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/enginetest"
)

// TestTarget runs over the process behind CLEAT_SPDK_SOCKET (make test-spdk), over
// those that it starts with CLEAT_SPDK_PROGRAM, or over the double.
func TestTarget(t *testing.T) {
	if socket := os.Getenv(socketEnvironment); socket != "" {
		var version json.RawMessage
		testkit.Must(t, (&rig{t: t, endpoints: []endpoint{{socket: socket}}}).client(0).Call(testkit.Context(t), "spdk_get_version", nil, &version))
		t.Logf("the target is the process behind %s: %s", socket, version)
	} else if !isReal() {
		t.Logf("%s is not set: a double stands in for SPDK", socketEnvironment)
	}
	t.Run("Conformance", testConformance)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *rig)
	}{
		{"Grant", testGrant},
		{"Adopt", testAdopt},
		{"UnknownExports", testUnknownExports},
		{"AnyHost", testAnyHost},
		{"FenceAddress", testFenceAddress},
		{"FenceOfManyVolumes", testFenceOfManyVolumes},
		{"SetLimits", testSetLimits},
		{"SnapshotWithClones", testSnapshotWithClones},
		{"RotationOfTLS", testRotationOfTLS},
		{"ListenerWithoutTLS", testListenerWithoutTLS},
		{"SocketWithoutTLS", testSocketWithoutTLS},
		{"TwoReleases", testTwoReleases},
		{"KeyOfAHost", testKeyOfAHost},
		{"RotatedKey", testRotation},
		{"KeysAfterARestart", testKeysAfterARestart},
		{"FenceWithoutKeys", testFenceWithoutKeys},
		{"HostWithoutItsKey", testHostWithoutItsKey},
		{"TargetKilled", testTargetKilled},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, newTargetRig(t, false)) })
	}
	t.Run("OldData", func(t *testing.T) { testOldData(t, newTargetRig(t, true)) })
	t.Run("TargetKilledWithoutUnmap", func(t *testing.T) { testTargetKilled(t, newTargetRig(t, true)) })
}

func testConformance(t *testing.T) {
	rigs := map[volume.Engine]*rig{}
	open := func(t *testing.T, b volume.Backend, id string) *spdktest.Disk {
		_, uuid, _ := parseID(id)
		return testkit.Value(rigs[b.Engine].targets[0].OpenLvol(uuid))(t)
	}
	start := func(r *rig) volume.Backend {
		e := r.engine()
		rigs[e] = r
		return e.Backend()
	}
	h := enginetest.Harness{
		New: func(t *testing.T) volume.Backend { return start(newTargetRig(t, false)) },
		Open: func(t *testing.T, b volume.Backend, v volume.Volume) enginetest.Device {
			if r := rigs[b.Engine]; r.network == nil {
				return r.openReal(b.Engine.(*Engine), v)
			}
			return open(t, b, string(v.ID))
		},
		OpenSnapshot: func(t *testing.T, b volume.Backend, s volume.Snapshot) io.ReaderAt {
			return open(t, b, string(s.ID))
		},
		Hold: func(t *testing.T, b volume.Backend, v volume.Volume) func() {
			e := b.Engine.(*Engine)
			publish(t, e, v.ID, node("holder", "127.0.1.1"))
			s := rigs[e].mustConnect(v, e.config.HostNQN("holder"), "127.0.1.1")
			return func() {
				s.Close()
				unpublish(t, e, v.ID, "holder")
			}
		},
		Reopen: func(t *testing.T, b volume.Backend) volume.Backend {
			return start(rigs[b.Engine])
		},
		FSTypes:    []string{"ext4", "xfs"}, // of btrfs there are no copies
		Parameters: map[string]string{keyIOPS: "1000"},
		Changes:    []map[string]string{{keyIOPS: "10000"}, {keyIOPS: "20000", keyReadMB: "5"}},
	}
	if isReal() {
		h.OpenSnapshot = nil // a host reads snapshots by volumes made from them
	}
	enginetest.Run(t, h)
}

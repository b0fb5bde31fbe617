package docs

import (
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/test/markdown"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

// The PersistentVolume of the page has a locator that the driver understands,
// and the table has every key of a locator.
func TestNVMeVolume(t *testing.T) {
	text, count := page(t, "docs/nvme.md"), 0
	for _, block := range markdown.Blocks(text, "yaml") {
		for _, part := range separator.Split(block, -1) {
			var pv corev1.PersistentVolume
			if !strings.Contains(part, "kind: PersistentVolume\n") {
				continue
			}
			testkit.Must(t, yaml.Unmarshal([]byte(part), &pv))
			count++
			l, ok := testkit.Value(access.Decode(pv.Spec.CSI.VolumeAttributes))(t).(access.NVMe)
			if !ok || len(l.Paths) < 2 || l.UUID == "" {
				t.Errorf("%s has the locator %+v, want an NVMe namespace with two paths and a uuid", pv.Name, l)
			}
		}
	}
	if count == 0 {
		t.Error("the page has no PersistentVolume")
	}
	one := access.NVMe{
		Transport: "tcp", Paths: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:4420")}, NQN: "nqn.2024-01.com.example:a",
		NSID: 1, UUID: "u", NGUID: "n", HostNQN: "h", IOQueues: 1, HeaderDigest: true, DataDigest: true,
		Timeouts:         access.Timeouts{Loss: access.Sec(1), Delay: access.Sec(1), FastFail: access.Sec(1)},
		AcceptUUIDChange: true, AcceptFlushLoss: true, DHChapKey: "k", DHChapCtrlrKey: "c", TLSKey: "t",
	}
	several := one
	several.Paths = append(several.Paths, netip.MustParseAddrPort("192.0.2.11:4420"))
	keys := map[string]string{access.KeyFormat: ""}
	for _, l := range []access.NVMe{one, several} {
		for key := range access.Encode(l) {
			keys[key] = ""
		}
	}
	for key := range keys {
		if !strings.Contains(text, "`"+key+"`") {
			t.Errorf("docs/nvme.md does not document the key %s", key)
		}
	}
}

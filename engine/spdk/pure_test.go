package spdk

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	rpc "github.com/cleatproject/cleat/spdk"
	"github.com/cleatproject/cleat/volume"
)

const someUUID = "0c5b9f0e-8b7a-4d52-9d1e-3a1f2b3c4d5e"

// An id has one form: what is accepted is what is written, and passes the rules
// for all ids.
func FuzzParseID(f *testing.F) {
	for _, id := range []string{"target:" + someUUID, "a.b-c_d:" + someUUID, ":" + someUUID, "target:" + strings.ToUpper(someUUID), "target:", "../x:" + someUUID} {
		f.Add(id)
	}
	f.Fuzz(func(t *testing.T, id string) {
		target, uuid, ok := parseID(id)
		if !ok {
			return
		}
		if formatID(target, uuid) != id || checkTargetName(target) != nil || volume.CheckID(id) != nil {
			t.Errorf("%q is parsed as %q and %q", id, target, uuid)
		}
	})
}

// SPDK accepts names of 1 to 63 bytes.
func TestLvolNames(t *testing.T) {
	seen := map[string]string{}
	for _, name := range []string{
		"pvc-1", strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("b", 128), "with/slash", "with space", "ü", ".hidden",
		"cleat-volume-x", record{Name: "v"}.source(), lvolName("with/slash"),
	} {
		lvol := lvolName(name)
		if lvol == "" || len(lvol) > 63 || strings.Contains(lvol, "/") {
			t.Errorf("volume %q has lvol %q", name, lvol)
		}
		if isSource(lvol) {
			t.Errorf("volume %q has lvol %q, which would be removed", name, lvol)
		}
		if other, twice := seen[lvol]; twice {
			t.Errorf("volumes %q and %q have lvol %q", name, other, lvol)
		}
		seen[lvol] = name
	}
	for _, name := range []string{snapRecord{Name: "s"}.lvol(), record{Name: "v"}.source()} {
		if len(name) > 63 || lvolName(name) == name {
			t.Errorf("%q is too long, or also the name of a volume's lvol", name)
		}
	}
}

func TestParameters(t *testing.T) {
	s, err := parseSettings(map[string]string{keyTarget: "a", keyStore: "lvs0", keyThin: "false", keyClear: "write_zeroes", keyIOPS: "10", keyWriteMB: "3"})
	if err != nil || s.target != "a" || s.store != "lvs0" || s.thin || s.clear != "write_zeroes" {
		t.Errorf("%+v, %v", s, err)
	}
	if q := qosOf(s.attributes); q != (rpc.QoS{IOPS: 10, WriteMBytes: 3}) {
		t.Errorf("limits: %+v", q)
	}
	if s, err := parseSettings(nil); err != nil || !s.thin || s.clear != defaultClear {
		t.Errorf("without parameters: %+v, %v", s, err)
	}
	for key, value := range map[string]string{
		keyThin: "maybe", keyClear: "none", keyIOPS: "-1", keyMBytes: "x", keyReadMB: "2000000000000", "qos_rw_iop": "1", "other": "1",
	} {
		_, err := parseSettings(map[string]string{key: value})
		if errs.KindOf(err) != errs.Invalid || !strings.Contains(err.Error(), key) {
			t.Errorf("%s=%s: %v", key, value, err)
		}
	}
	if _, err := parseAttributes(map[string]string{keyThin: "true"}); errs.KindOf(err) != errs.Invalid {
		t.Errorf("a change of %s: %v", keyThin, err)
	}
}

func TestConfig(t *testing.T) {
	good := Target{Name: "a", Addresses: []netip.AddrPort{targetAddr(0)}}
	for name, targets := range map[string][]Target{
		"none": nil, "twice": {good, good}, "no address": {{Name: "a"}}, "a bad name": {{Name: "a:b", Addresses: []netip.AddrPort{targetAddr(0)}}},
	} {
		if _, err := New(Config{Targets: targets}); errs.KindOf(err) != errs.Invalid {
			t.Errorf("targets %s: %v", name, err)
		}
	}
}

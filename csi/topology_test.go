package csi

import (
	"encoding/base64"
	"strings"
	"testing"

	spec "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/volume"
)

func TestTokens(t *testing.T) {
	id := string(volume.NewID(""))
	token := listOfVolumes.token(id)
	if len(token) > maxString {
		t.Errorf("a token of %d bytes is more than the contract lets a string have", len(token))
	}
	if after, err := listOfVolumes.parseToken(token); err != nil || after != id {
		t.Errorf("got %q, %v", after, err)
	}
	encoded := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	for name, bad := range map[string]string{
		"word": "invalid-token", "plain id": id, "padded": token + "=", "cut": token[:len(token)-1], "of another list": listOfSnapshots.token(id),
		"no id": listOfVolumes.token(""), "evil id": listOfVolumes.token("../x"), "other version": encoded("0:volumes:" + id),
		"number": "5", "long": strings.Repeat("A", 5000), "NUL": "\x00",
	} {
		_, err := listOfVolumes.parseToken(bad)
		t.Run(name, func(t *testing.T) { wantKind(t, err, errs.BadToken) })
	}
}

func topology(pairs ...string) *spec.Topology {
	segments := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		segments[pairs[i]] = pairs[i+1]
	}
	return &spec.Topology{Segments: segments}
}

func TestAccessibility(t *testing.T) {
	ours := map[string]string{"csi.cleat.dev/node": "n1", "csi.cleat.dev/zone": "z1"}
	here, there := topology("csi.cleat.dev/node", "n1"), topology("csi.cleat.dev/node", "n2")
	list := func(all ...*spec.Topology) []*spec.Topology { return all }
	for name, c := range map[string]struct {
		in   *spec.TopologyRequirement
		kind errs.Kind
	}{
		"none":                 {nil, ""},
		"here":                 {&spec.TopologyRequirement{Requisite: list(here)}, ""},
		"there":                {&spec.TopologyRequirement{Requisite: list(there)}, errs.Exhausted},
		"one of two":           {&spec.TopologyRequirement{Requisite: list(there, here), Preferred: list(there)}, ""},
		"wish only":            {&spec.TopologyRequirement{Preferred: list(there)}, ""},
		"other case":           {&spec.TopologyRequirement{Requisite: list(topology("csi.cleat.dev/NODE", "n1"))}, ""},
		"unknown key":          {&spec.TopologyRequirement{Requisite: list(topology("rack", "n1"))}, errs.Exhausted},
		"half right":           {&spec.TopologyRequirement{Requisite: list(topology("csi.cleat.dev/node", "n1", "csi.cleat.dev/zone", "z2"))}, errs.Exhausted},
		"empty":                {&spec.TopologyRequirement{}, errs.Invalid},
		"wish not requisite":   {&spec.TopologyRequirement{Requisite: list(here), Preferred: list(there)}, errs.Invalid},
		"key twice":            {&spec.TopologyRequirement{Requisite: list(topology("Zone", "a", "zone", "a"))}, errs.Invalid},
		"empty key":            {&spec.TopologyRequirement{Requisite: list(topology("", "a"))}, errs.Invalid},
		"empty name":           {&spec.TopologyRequirement{Requisite: list(topology("a.b/", "a"))}, errs.Invalid},
		"empty prefix":         {&spec.TopologyRequirement{Requisite: list(topology("/zone", "a"))}, errs.Invalid},
		"upper-case prefix":    {&spec.TopologyRequirement{Requisite: list(topology("A.b/zone", "a"))}, errs.Invalid},
		"two slashes":          {&spec.TopologyRequirement{Requisite: list(topology("a/b/zone", "a"))}, errs.Invalid},
		"long name":            {&spec.TopologyRequirement{Requisite: list(topology(strings.Repeat("k", 64), "a"))}, errs.Invalid},
		"long prefix":          {&spec.TopologyRequirement{Requisite: list(topology(strings.Repeat("k", 64)+"/zone", "a"))}, errs.Invalid},
		"long value":           {&spec.TopologyRequirement{Requisite: list(topology("zone", strings.Repeat("v", 64)))}, errs.Invalid},
		"empty value":          {&spec.TopologyRequirement{Requisite: list(topology("zone", ""))}, errs.Invalid},
		"value with a dash":    {&spec.TopologyRequirement{Requisite: list(topology("zone", "a-"))}, errs.Invalid},
		"value with newline":   {&spec.TopologyRequirement{Requisite: list(topology("zone", "a\n"))}, errs.Invalid},
		"preferred is checked": {&spec.TopologyRequirement{Preferred: list(topology("zone", "/"))}, errs.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			wantKind(t, announcement{segments: ours}.checkAccessibility("volumes", c.in), c.kind)
		})
	}
	wantKind(t, announcement{}.checkAccessibility("volumes", &spec.TopologyRequirement{Requisite: list(here)}), errs.Invalid)
}

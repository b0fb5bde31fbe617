package pool

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/cleatproject/cleat/sriov/discovery"
)

// Of several items with a PF's name, in any letter case, only the first is
// asked.
func TestFirstItemOfAName(t *testing.T) {
	for _, c := range []struct {
		fields string
		want   []string
	}{
		{`"pfNames":["ens1#0","ENS1#1-2"]`, []string{"0000:06:00.2"}},
		{`"pfNames":["ENS1#1-2","ens1"]`, []string{"0000:06:00.3", "0000:06:00.4"}},
		{`"pfNames":["ens1#","ens1"]`, nil},
		{`"rootDevices":["0000:06:00.0#2","0000:06:00.0"]`, []string{"0000:06:00.4"}},
		{`"rootDevices":["0000:06:00.0#9","0000:02:00.0#1"]`, []string{"0000:02:02.1"}},
	} {
		a := Assign(parsed(t, `{"resourceName":"a","selectors":[{`+c.fields+`}]}`), host(), Options{})
		if diff := cmp.Diff(c.want, ids(a.Pools[0], false)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.fields, diff)
		}
	}
}

func TestRootInAnyLetterCase(t *testing.T) {
	s := &discovery.Snapshot{Functions: []discovery.Function{{Address: "0000:af:00.2", Kind: discovery.Network, Driver: "iavf", PF: "0000:af:00.0"}}}
	a := Assign(parsed(t, `{"resourceName":"a","selectors":[{"rootDevices":["0000:AF:00.0"]}]}`), s, Options{})
	if diff := cmp.Diff([]string{"0000:af:00.2"}, ids(a.Pools[0], false)); diff != "" {
		t.Errorf("pool (-want +got):\n%s", diff)
	}
}

// A scalable function of a VF is below that VF's address and its PF's name.
func TestAuxiliaryOfVF(t *testing.T) {
	parent := discovery.Function{Address: "0000:06:00.2", Kind: discovery.Network, Driver: "mlx5_core", PF: "0000:06:00.0", PFNames: []string{"ens1"}}
	s := &discovery.Snapshot{Functions: []discovery.Function{parent}, Auxiliary: []discovery.Auxiliary{{Name: "mlx5_core.sf.9", Type: "sf", Index: 7, Parent: parent}}}
	for fields, want := range map[string][]string{
		`"rootDevices":["0000:06:00.2#7"]`: {"mlx5_core.sf.9"},
		`"rootDevices":["0000:06:00.0#7"]`: nil,
		`"pfNames":["ens1#7"]`:             {"mlx5_core.sf.9"},
	} {
		a := Assign(parsed(t, `{"resourceName":"a","deviceType":"auxNetDevice","selectors":[{"auxTypes":["sf"],`+fields+`}]}`), s, Options{})
		if diff := cmp.Diff(want, ids(a.Pools[0], false)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", fields, diff)
		}
	}
}

func TestFoldIsEqualFold(t *testing.T) {
	letters := "aAbkK\u212asS\u017fzZ@[`{_0\u00e9\u00c9\u03c3\u03c2\u03a3\u0130\u0131i"
	for _, a := range letters {
		for _, b := range letters {
			x, y := "eth"+string(a), "eTH"+string(b)
			if (fold(x) == fold(y)) != strings.EqualFold(x, y) {
				t.Errorf("fold(%q) = %q, fold(%q) = %q, EqualFold: %v", x, fold(x), y, fold(y), strings.EqualFold(x, y))
			}
		}
	}
}

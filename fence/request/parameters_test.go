package request

import (
	"slices"
	"strings"
	"testing"

	addons "github.com/csi-addons/spec/lib/go/fence"
	"pgregory.net/rapid"
)

func TestParameters(t *testing.T) {
	digest := Owner(nil).Digest
	for _, c := range []struct {
		parameters map[string]string
		want       string // in the error; empty: none
	}{
		{nil, ""},
		{map[string]string{"clusterID": "x", "": "y", "force": "what it means there"}, ""},
		{map[string]string{ForceParameter: "true"}, ""},
		{map[string]string{ForceParameter: "false"}, ""},
		{map[string]string{ForceParameter: "yes"}, `parameters[fence.cleat.dev/force] is "yes": it takes true or false`},
		{map[string]string{ForceParameter: ""}, "it takes true or false"},
		{map[string]string{ForceParameter: "True"}, "it takes true or false"},
		{map[string]string{"fence.cleat.dev/forec": "true"}, `there is no parameter "fence.cleat.dev/forec"; did you mean fence.cleat.dev/force?`},
		{map[string]string{"Fence.cleat.dev/Force": "true"}, "did you mean fence.cleat.dev/force?"},
		{map[string]string{"fence.cleat.dev/ownr": "true"}, "did you mean fence.cleat.dev/owner?"},
		{map[string]string{"fence.cleat.dev/something-else": "true"}, "those that begin with fence.cleat.dev/ are"},
		{map[string]string{OwnerParameter: digest, ViaParameter: "cleat"}, ""},
		{map[string]string{OwnerParameter: strings.ToUpper(digest)}, "SHA-256 in lower-case hex, 64 digits"},
		{map[string]string{OwnerParameter: digest[:62]}, "SHA-256"},
		{map[string]string{OwnerParameter: "anna"}, "SHA-256"},
		{map[string]string{ViaParameter: ""}, "parameters[fence.cleat.dev/via] is empty"},
		{map[string]string{ForceParameter: "1", ViaParameter: ""}, "true or false; parameters[fence.cleat.dev/via]"},
		{map[string]string{"k": strings.Repeat("v", maxMap-1)}, ""},
		{map[string]string{"k": strings.Repeat("v", maxMap)}, "parameters holds 4097 bytes"},
	} {
		// All four calls take the same parameters.
		cidrs := []*addons.CIDR{{Cidr: "192.0.2.7"}}
		ask, err := Fence(&addons.FenceClusterNetworkRequest{Parameters: c.parameters, Cidrs: cidrs})
		_, err2 := Unfence(&addons.UnfenceClusterNetworkRequest{Parameters: c.parameters, Cidrs: cidrs})
		_, err3 := List(&addons.ListClusterFenceRequest{Parameters: c.parameters})
		err4 := Clients(&addons.GetFenceClientsRequest{Parameters: c.parameters})
		for i, err := range []error{err, err2, err3, err4} {
			checkError(t, err, c.want, "call %d, %.60q", i, c.parameters)
		}
		if err == nil && ask.Force != (c.parameters[ForceParameter] == "true") {
			t.Errorf("%v: force is %v", c.parameters, ask.Force)
		}
	}
}

func TestOwner(t *testing.T) {
	base := Owner(map[string]string{"b": "2", "a": "1"})
	if !slices.Equal(base.Keys, []string{"a", "b"}) || len(base.Digest) != 64 {
		t.Errorf("%+v", base)
	}
	if forced := Owner(map[string]string{"a": "1", "b": "2", ForceParameter: "true"}); forced.Digest != base.Digest || !slices.Equal(forced.Keys, base.Keys) {
		t.Errorf("force makes another owner: %+v", forced)
	}
	// It stands in durable state and must not change between releases. By hand:
	// printf 'cleat fence owner 1\n1:a1:11:b1:2' | sha256sum
	if want := "0de19f1fe766c834"; !strings.HasPrefix(base.Digest, want) {
		t.Errorf("the digest is %s, want %s...", base.Digest, want)
	}
}

// Different sets have different owners, however keys and values are cut.
func TestOwnersDiffer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.StringMatching(`[ab1:]{0,4}`)
		a := rapid.MapOfN(word, word, 0, 3).Draw(t, "a")
		b := rapid.MapOfN(word, word, 0, 3).Draw(t, "b")
		equal := len(a) == len(b)
		for k, v := range a {
			if w, found := b[k]; !found || v != w {
				equal = false
			}
		}
		if same := Owner(a).Digest == Owner(b).Digest; same != equal {
			t.Fatalf("%q and %q: equal %v, same owner %v", a, b, equal, same)
		}
	})
}

package access_test

import (
	"slices"
	"testing"

	"github.com/cleatproject/cleat/volume/access"
)

func TestMisspelt(t *testing.T) {
	for _, c := range []struct {
		context kv
		want    []string
	}{
		{kv{"targetType": "tcp", "nqm": "a"}, []string{`"nqm" (nqn?)`}},
		{kv{"nqm": "a"}, []string{`"nqm" (nqn?)`}},
		{kv{"nqn": "a", "dhchap": "a", "dhchap_ctrl_key": "b"}, []string{`"dhchap" (dhchapKey?)`, `"dhchap_ctrl_key" (dhchapCtrlrKey?)`}},
		{kv{"nqn": "a", "model": "a", "lvolSize": "1", "lvstore": "s", "csi.storage.k8s.io/pvc": "a", "subnqn": "a", "PSK": "a"}, nil},
		{kv{"targetType": "file", "nqm": "a"}, nil},
		{kv{"server": "a", "share": "/", "nqm": "a"}, nil},
	} {
		if got := access.Misspelt(c.context); !slices.Equal(got, c.want) {
			t.Errorf("Misspelt(%v) = %q, want %q", c.context, got, c.want)
		}
	}
}

package upstream

import (
	"context"
	"fmt"
	"testing"

	csiplugin "k8s.io/kubernetes/pkg/volume/csi"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/kubelet/handler/csi"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// Our handler accepts and refuses the same version lists as the kubelet's, with
// the same texts.
func TestVersionRulesMatchKubelet(t *testing.T) {
	ours := csi.New(csi.Options{})
	compare := func(t rapid.TB, versions []string) {
		p := watch.Plugin{Type: csi.Type, Name: "versions.csi.cleat.dev", Endpoint: "/run/csi.sock", Versions: versions}
		theirs := csiplugin.PluginHandler.ValidatePlugin(context.Background(), p.Name, p.Endpoint, versions)
		if got := ours.Validate(context.Background(), p); text(got) != text(theirs) {
			t.Errorf("%q: here %q, kubelet %q", versions, text(got), text(theirs))
		}
	}
	for _, versions := range [][]string{
		nil, {}, {""}, {"v1.0.0"}, {"0.3.0"}, {"0.2.0", "v0.3.0"}, {"0.2.0", "v1.2.3"}, {"v1.2.3", "4.9.12", "v0.3.0", "2.0.1"},
		{"v1.2.3", "boo"}, {"4.9.12", "2.0.1"}, {"var", "boo", "foo"}, {"1"}, {"1."}, {"1.0"}, {" 1.0.0"}, {"01.0.0"}, {"1.0.0-rc.1"}, {"1.0.0.0"},
		{"v1"}, {"V1.0.0"}, {"1.0.0+build"}, {"-1.0.0"}, {"1.99999999999999999999"}, {"١.0.0"}, {"%s"}, {"1.0.0\n"},
	} {
		compare(t, versions)
	}
	word := rapid.StringOfN(rapid.RuneFrom([]rune("v01239.-+ab ")), 0, 8, -1)
	rapid.Check(t, func(t *rapid.T) { compare(t, rapid.SliceOfN(word, 0, 4).Draw(t, "versions")) })
}

// A name that another driver has is refused, or taken over, for the same
// versions and with the same texts.
func TestNameRulesMatchKubelet(t *testing.T) {
	n := newCSIPlugin(t)
	for i, held := range []string{"1.0.0", "v1.2.3", "1.13.0"} {
		name := fmt.Sprintf("held-%d.csi.cleat.dev", i)
		p := watch.Plugin{Type: csi.Type, Name: name, Endpoint: n.serveDriver(t, name, name), Versions: []string{held}}
		ours := csi.New(csi.Options{})
		if err := ours.Register(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		if err := csiplugin.PluginHandler.RegisterPlugin(t.Context(), p.Name, p.Endpoint, p.Versions, nil); err != nil {
			t.Fatal(err)
		}
		p.Endpoint = "/run/other.sock"
		for _, versions := range [][]string{{"1.0.0"}, {"1.0.1"}, {"1.2.2", "v1.2.3"}, {"1.2.4"}, {"1.13"}, {"v1.13.0", "1.14.0-rc.1"}, {"2.0.0"}, {"0.9.0"}} {
			p.Versions = versions
			theirs := csiplugin.PluginHandler.ValidatePlugin(t.Context(), p.Name, p.Endpoint, versions)
			if got := ours.Validate(t.Context(), p); text(got) != text(theirs) {
				t.Errorf("%s held, %q: here %q, kubelet %q", held, versions, text(got), text(theirs))
			}
		}
		csiplugin.PluginHandler.DeRegisterPlugin(t.Context(), p.Name, p.Endpoint)
	}
}

func text(err error) string {
	if err == nil {
		return "taken"
	}
	return err.Error()
}

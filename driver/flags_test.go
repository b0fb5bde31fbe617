package driver

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// Settings without effect are refused, not ignored.
func TestFencingSettingsOfCSI(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*driver)
		want   string // in the error; empty: no error
	}{
		"default":                 {func(*driver) {}, ""},
		"endpoint only":           {func(f *driver) { f.addonsEndpoint = "unix:///run/x/addons.sock" }, ""},
		"directory of CSI socket": {func(f *driver) { f.addonsEndpoint = "unix:///run/cleat/csi/a.sock" }, "another directory"},
		"peer without endpoint":   {func(f *driver) { f.fencing.Peers = []string{"a=unix:///run/a.sock"} }, "--addons-endpoint"},
		"secret without endpoint": {func(f *driver) { f.fencing.Secrets = map[string]string{"k": "/f"} }, "--addons-endpoint"},
		"secret for peers": {func(f *driver) {
			f.fencing.Listen, f.fencing.Secrets = "unix:///run/p.sock", map[string]string{"k": "/f"}
		}, "certificate"},
		"network without TLS": {func(f *driver) { f.fencing.Listen = ":9070" }, "--fence-tls-cert"},
		"loopback":            {func(f *driver) { f.nodeAddresses = []string{"127.0.0.1"} }, "--node-address"},
		"no address":          {func(f *driver) { f.nodeAddresses = []string{"node-1"} }, "--node-address"},
	} {
		f := Program{Name: "acme", Engines: []Engine{{Name: "acme"}}}.driver()
		f.addFlags(pflag.NewFlagSet("csi", pflag.ContinueOnError))
		f.Endpoint = "unix:///run/cleat/csi/csi.sock"
		c.change(f)
		err := f.checkFencing()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

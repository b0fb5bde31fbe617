package main

import (
	"strings"
	"testing"
	"time"
)

// Settings that would guard or reach nothing are refused, not passed over.
func TestFencingSettingsOfCSI(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*csiFlags)
		want   string // in the error; empty: none
	}{
		"none":                     {func(*csiFlags) {}, ""},
		"the endpoint alone":       {func(f *csiFlags) { f.addonsEndpoint = "unix:///run/x/addons.sock" }, ""},
		"beside the CSI socket":    {func(f *csiFlags) { f.addonsEndpoint = "unix:///run/cleat/csi/a.sock" }, "another directory"},
		"a peer and nobody asks":   {func(f *csiFlags) { f.fences.peers = []string{"a=unix:///run/a.sock"} }, "--addons-endpoint"},
		"a secret and nobody asks": {func(f *csiFlags) { f.fences.secrets = map[string]string{"k": "/f"} }, "--addons-endpoint"},
		"a secret for peers": {func(f *csiFlags) {
			f.fences.listen, f.fences.secrets = "unix:///run/p.sock", map[string]string{"k": "/f"}
		}, "certificate"},
		"a network without TLS": {func(f *csiFlags) { f.fences.listen = ":9070" }, "--fence-tls-cert"},
		"loopback":              {func(f *csiFlags) { f.nodeAddresses = []string{"127.0.0.1"} }, "--node-address"},
		"no address":            {func(f *csiFlags) { f.nodeAddresses = []string{"node-1"} }, "--node-address"},
	} {
		f := csiFlags{endpoint: defaultEndpoint, fences: fenceFlags{prefix: "fence-", checkInterval: time.Second, endTimeout: time.Second}}
		c.change(&f)
		err := f.checkFencing()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

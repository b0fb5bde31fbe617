package main

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

// Settings without effect are refused, not ignored.
func TestFencingSettingsOfCSI(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*csiServer)
		want   string // in the error; empty: no error
	}{
		"default":                 {func(*csiServer) {}, ""},
		"endpoint only":           {func(f *csiServer) { f.addonsEndpoint = "unix:///run/x/addons.sock" }, ""},
		"directory of CSI socket": {func(f *csiServer) { f.addonsEndpoint = "unix:///run/cleat/csi/a.sock" }, "another directory"},
		"peer without endpoint":   {func(f *csiServer) { f.fencing.peers = []string{"a=unix:///run/a.sock"} }, "--addons-endpoint"},
		"secret without endpoint": {func(f *csiServer) { f.fencing.secrets = map[string]string{"k": "/f"} }, "--addons-endpoint"},
		"secret for peers": {func(f *csiServer) {
			f.fencing.listen, f.fencing.secrets = "unix:///run/p.sock", map[string]string{"k": "/f"}
		}, "certificate"},
		"network without TLS": {func(f *csiServer) { f.fencing.listen = ":9070" }, "--fence-tls-cert"},
		"loopback":            {func(f *csiServer) { f.nodeAddresses = []string{"127.0.0.1"} }, "--node-address"},
		"no address":          {func(f *csiServer) { f.nodeAddresses = []string{"node-1"} }, "--node-address"},
	} {
		f := csiServer{fencing: fencing{prefix: "fence-", checkInterval: time.Second, endTimeout: time.Second}}
		f.Endpoint = defaultEndpoint
		c.change(&f)
		err := f.checkFencing()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}

// The path of a peer's socket is not a host name to resolve.
func TestSocketPeersHaveNoAddresses(t *testing.T) {
	var log bytes.Buffer
	n := fencing{peers: []string{"a=unix:///run/a.sock"}}
	testkit.Must(t, n.parsePeers())
	if all := n.peerAddrs(t.Context(), slog.New(slog.NewTextHandler(&log, nil))); len(all) > 0 || log.Len() > 0 {
		t.Errorf("got %v, log %s", all, log.String())
	}
}

package endpoint

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// The path of a peer's socket is not a host name to resolve.
func TestSocketPeersHaveNoAddresses(t *testing.T) {
	var log bytes.Buffer
	e := Endpoint{Peers: []string{"a=unix:///run/a.sock"}}
	testkit.Must(t, e.parsePeers())
	if all := e.PeerAddrs(t.Context(), slog.New(slog.NewTextHandler(&log, nil))); len(all) > 0 || log.Len() > 0 {
		t.Errorf("got %v, log %s", all, log.String())
	}
}

package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// recorded is the answer of Open vSwitch 3.1.0, after a request of its own.
const recorded = `{"id":"echo","method":"echo","params":[]}
{"id":1,"result":[{"rows":[{"ports":["set",[["uuid","441a26b6"],["uuid","e7944e01"]]],"name":"br0"},{"ports":["uuid","688d1954"],"name":"br1"},{"ports":["set",[]],"name":"br2"}]},` +
	`{"rows":[{"name":"br0","_uuid":["uuid","e7944e01"],"interfaces":["uuid","4cfe950d"]},{"name":"br1","_uuid":["uuid","688d1954"],"interfaces":["uuid","ffbedb8c"]},` +
	`{"name":"bond","_uuid":["uuid","441a26b6"],"interfaces":["set",[["uuid","33e83384"],["uuid","33e83385"]]]}]},` +
	`{"rows":[{"name":"ens1f0","_uuid":["uuid","33e83384"]},{"name":"ens1f1","_uuid":["uuid","33e83385"]},{"name":"br0","_uuid":["uuid","4cfe950d"]},{"name":"br1","_uuid":["uuid","ffbedb8c"]}]}],"error":null}`

func serve(t *testing.T, answer string) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "db.sock")
	l := testkit.Value(net.Listen("unix", socket))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		var request struct {
			Method string
			Params []any
		}
		if err := json.NewDecoder(conn).Decode(&request); err != nil || request.Method != "transact" || len(request.Params) != 4 {
			t.Errorf("%+v, %v", request, err)
		}
		if answer == "" {
			_, _ = conn.Read(make([]byte, 1)) // until the client closes
			return
		}
		_, _ = conn.Write([]byte(answer))
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return socket
}

func TestBridges(t *testing.T) {
	got, err := Bridges(t.Context(), serve(t, recorded))
	testkit.Must(t, err)
	testkit.Diff(t, "bridges", map[string][]string{"br0": {"br0", "ens1f0", "ens1f1"}, "br1": {"br1"}, "br2": {}}, got)
}

func TestBridgesFail(t *testing.T) {
	for answer, want := range map[string]string{
		`{"id":1,"error":{"error":"unknown database"}}`:                     "unknown database",
		`{"id":1,"result":[{"error":"syntax error","details":"No table"}]}`: "syntax error: No table",
		`{"id":1,"result":[]}`: "0 of 3 operations",
		`{"id":1,"result":[{"rows":[{"name":"b","ports":7}]},{"rows":[]},{"rows":[]}]}`: "not a set",
		`{"id":1,"re`: "EOF",
	} {
		if got, err := Bridges(t.Context(), serve(t, answer)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", answer, got, err)
		}
	}
	if _, err := Bridges(t.Context(), filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no socket: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := Bridges(ctx, serve(t, "")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a server that does not answer: %v", err)
	}
}

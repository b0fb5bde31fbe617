package ovsdb

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/ovsdb/ovsdbtest"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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

// By Open vSwitch itself, whose switch runs from the second read on.
func TestBridges(t *testing.T) {
	socket, startSwitch := ovsdbtest.Start(t)
	vsctl := func(args ...string) string {
		return strings.TrimSpace(testkit.Run(t, "ovs-vsctl", append([]string{"--no-wait", "--db=unix:" + socket}, args...)...))
	}
	read := func() map[string]Bridge { return testkit.Value(Bridges(t.Context(), socket))(t) }
	vsctl("add-br", "other", "--", "add-bond", "other", "bond", "eth1", "eth2")
	owned := Config{Name: "br0", DatapathType: "netdev", FailMode: "secure", ExternalIDs: map[string]string{"owner": "test", "a": "b"}, OtherConfig: map[string]string{"hwaddr": "02:00:5e:10:00:01"},
		Uplink: Uplink{Name: "eth0", ExternalIDs: map[string]string{"c": "d"}, MTURequest: 9000}}
	testkit.Must(t, Create(t.Context(), socket, owned))
	const closed = "ovs-vswitchd has not opened it: it does not run, or has not seen the change yet"
	want := map[string]Bridge{
		"br0":   {map[string]string{"br0": closed, "eth0": closed}, owned.ExternalIDs},
		"other": {map[string]string{"other": closed, "eth1": closed, "eth2": closed}, map[string]string{}},
	}
	testkit.Diff(t, "without the switch", want, read())
	for column, want := range map[string]string{"Bridge br0 fail_mode": "secure", "Bridge br0 datapath_type": "netdev", "Bridge br0 other_config:hwaddr": `"02:00:5e:10:00:01"`,
		"Interface eth0 mtu_request": "9000", "Interface eth0 external_ids:c": "d", "Interface eth0 type": `""`, "Interface br0 type": "internal"} {
		if got := vsctl(append([]string{"get"}, strings.Fields(column)...)...); got != want {
			t.Errorf("%s is %s, want %s", column, got, want)
		}
	}

	startSwitch()
	for _, b := range want {
		for name := range b.Interfaces {
			b.Interfaces[name] = ""
		}
	}
	testkit.EventuallyNil(t, "opened", func() error {
		if got := read(); !reflect.DeepEqual(got, want) {
			return fmt.Errorf("%+v", got)
		}
		return nil
	})
	vsctl("set", "Interface", "eth0", "type=nonsense")
	testkit.Eventually(t, "an error", func() bool {
		return strings.Contains(read()["br0"].Interfaces["eth0"], "could not open network device eth0")
	})

	for name, c := range map[string]Config{
		"an existing bridge": {Name: "other", Uplink: Uplink{Name: "eth9"}},
		"a port of another":  {Name: "br1", Uplink: Uplink{Name: "eth0"}},
		"one of a bond":      {Name: "br1", Uplink: Uplink{Name: "eth1"}},
		"a bad value":        {Name: "br1", FailMode: "nonsense", Uplink: Uplink{Name: "eth9"}},
	} {
		testkit.WantError(t, name, Create(t.Context(), socket, c), nil, c.Name)
	}
	testkit.WantError(t, "another's", Delete(t.Context(), socket, "other", map[string]string{"owner": "test"}), nil, "owner", `"test"`)
	if got := vsctl("list-br"); got != "br0\nother" {
		t.Errorf("bridges %q", got)
	}
	for range 2 {
		testkit.Must(t, Delete(t.Context(), socket, "br0", map[string]string{"owner": "test"}))
	}
	if got := vsctl("--columns=name", "--bare", "list", "Interface"); strings.Contains(got, "br0") || strings.Contains(got, "eth0") || vsctl("list-br") != "other" {
		t.Errorf("left: %q", got)
	}
}

func TestBridgesFail(t *testing.T) {
	for answer, want := range map[string]string{
		`{"id":1,"error":{"error":"unknown database"}}`:                     "unknown database",
		`{"id":1,"result":[{"error":"syntax error","details":"No table"}]}`: "syntax error: No table",
		`{"id":1,"result":[]}`: "0 of 3 operations",
		`{"id":1,"result":[{"rows":[{"name":"b","ports":7}]},{"rows":[]},{"rows":[]}]}`: "not a set",
		`{"id":"echo","method":"echo","params":[]}{"id":1,"re`:                          "EOF",
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

func FuzzAnswer(f *testing.F) {
	f.Add(`["set",[["uuid","a"]]]`, `["map",[["a","b"]]]`, `["set",[]]`, `"text"`)
	f.Add(`["uuid","a"]`, `["map",[]]`, `7`, `["set",[]]`)
	f.Add(`[]`, `["map"]`, `[null]`, `{}`)
	f.Fuzz(func(t *testing.T, set, ids, port, failed string) {
		for _, text := range []string{set, ids, port, failed} {
			if !json.Valid([]byte(text)) {
				return // the decoder of the answer refuses it
			}
		}
		u := reference{"uuid", "a"}
		all, err := join([]row{{Name: "b", Ports: json.RawMessage(set), ExternalIDs: json.RawMessage(ids)}},
			[]row{{UUID: u, Interfaces: json.RawMessage(set)}}, []row{{UUID: u, Name: "i", OFPort: json.RawMessage(port), Error: json.RawMessage(failed)}})
		if _, ok := all["b"]; err == nil && (!ok || len(all["b"].Interfaces) > 1) {
			t.Errorf("%v", all)
		}
	})
}

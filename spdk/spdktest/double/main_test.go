package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
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

const sceneText = `{
	"subsystems": [{
		"nqn": "nqn.2026-01.example:vol1",
		"addresses": ["TCP,192.0.2.10,4420"],
		"namespaces": [{"nsid": 1, "uuid": "e33a8f79-5f83-40cc-b7d5-cc0aab47b95d", "bytes": 1048576}]
	}],
	"reach": {"TCP,192.0.2.11,4420": "refused"},
	"images": [{"Pool": "rbd", "Name": "img", "Size": 1048576}],
	"faults": [{"method": "bdev_get_bdevs", "times": 1, "then": "drop"}]
}`

func sceneFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "scene.json")
	testkit.Must(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func ask(t *testing.T, socket, request string) (map[string]any, error) {
	t.Helper()
	c, err := net.Dial("unix", socket)
	testkit.Must(t, err)
	defer c.Close()
	testkit.Must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	testkit.Value(io.WriteString(c, request))(t)
	var r map[string]any
	err = json.NewDecoder(c).Decode(&r)
	return r, err
}

func TestSceneAndCommands(t *testing.T) {
	dir := t.TempDir()
	socket := filepath.Join(dir, "s")
	in, orders := io.Pipe()
	said, out := io.Pipe()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- run(ctx, []string{"-socket", socket, "-quick", "-snap", "-rbd", "-scene", sceneFile(t, sceneText)}, in, out)
		out.Close()
	}()
	lines := bufio.NewScanner(said)
	next := func() string {
		if !lines.Scan() {
			t.Fatal("the double says no more")
		}
		return lines.Text()
	}
	order := func(text, want string) {
		t.Helper()
		testkit.Value(io.WriteString(orders, text+"\n"))(t)
		if got := next(); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	if !strings.Contains(next(), "moves no data") {
		t.Error("it does not say that it is a double")
	}
	const attach = `{"id":1,"method":"bdev_nvme_attach_controller","params":{"name":"n","trtype":"TCP","traddr":"192.0.2.10","trsvcid":"4420","subnqn":"nqn.2026-01.example:vol1"}}`
	if r, err := ask(t, socket, attach); err != nil || r["error"] != nil {
		t.Fatalf("attach: %v, %v", r, err)
	}
	if r, err := ask(t, socket, `{"id":1,"method":"bdev_get_bdevs"}`); err == nil {
		t.Errorf("the fault is not there: %v", r)
	}
	order("fail n", "done")
	order("fail m", `controller "m" not found`)
	order("restart", "done")
	order("reach TCP,192.0.2.10,4420 refused", "done")
	order("reach TCP,192.0.2.10,4420 gone", "use one of open, refused")
	order("reach nowhere open", "use TRANSPORT,HOST,PORT")
	order("dance", "use reach")
	if r, err := ask(t, socket, attach); err != nil || r["error"] == nil {
		t.Errorf("attach to what is refused: %v, %v", r, err)
	}
	order("remove nqn.2026-01.example:vol1", "done")
	orders.Close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(socket); err == nil {
		t.Error("the socket is left over")
	}
}

func TestInvalidScenesAreRejected(t *testing.T) {
	for text, want := range map[string]string{
		`{`:                                 "unexpected EOF",
		`{} {}`:                             "data after",
		`{"subsystem":[]}`:                  "unknown field",
		`{"subsystems":[{"nqn":"a"}]}`:      "want an nqn and addresses",
		`{"reach":{"x":"open"}}`:            "use TRANSPORT,HOST,PORT",
		`{"reach":{"TCP,1.2.3.4,1":"far"}}`: "use one of open",
		`{"faults":[{"then":"explode"}]}`:   "use one of answer",
		`{"faults":[{"wait":"long"}]}`:      "invalid duration",
	} {
		err := run(t.Context(), []string{"-socket", filepath.Join(t.TempDir(), "s"), "-scene", sceneFile(t, text)}, strings.NewReader(""), io.Discard)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for _, argv := range [][]string{nil, {"-socket", "s", "word"}, {"-scene", "/absent"}, {"-socket", "s", "-scene", "/absent"}, {"-nope"}} {
		if run(t.Context(), argv, strings.NewReader(""), io.Discard) == nil {
			t.Errorf("%q is accepted", argv)
		}
	}
}

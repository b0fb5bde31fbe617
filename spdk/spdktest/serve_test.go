package spdktest

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

const getVersionText = `{"jsonrpc":"2.0","id":2,"method":"spdk_get_version"}`

func TestFrames(t *testing.T) {
	p := startProcess(t, NewNetwork(nil), Config{})
	for name, c := range map[string]struct {
		send string
		ids  []string // of the answers, in any order
		code int      // of all of them; 0: results
	}{
		"one without a newline":  {getVersionText, []string{"2"}, 0},
		"two on one line":        {getVersionText + getVersionText, []string{"2", "2"}, 0},
		"one over several lines": {strings.ReplaceAll(getVersionText, ",", ",\n\t"), []string{"2"}, 0},
		"a string for an id":     {`{"id":"abc","method":"spdk_get_version"}`, []string{`"abc"`}, 0},
		"no object":              {"7\n", []string{"null"}, -32600},
		"an empty batch":         {`[]`, []string{"null"}, -32600},
		"an unknown member":      {`{"id":1,"method":"spdk_get_version","x":1}`, []string{"null"}, -32600},
		"another version":        {`{"jsonrpc":"1.0","id":1,"method":"spdk_get_version"}`, []string{"null"}, -32600},
		"an id too long":         {`{"id":"` + strings.Repeat("a", 129) + `","method":"spdk_get_version"}`, []string{"null"}, -32600},
		"params of null":         {`{"id":1,"method":"bdev_get_bdevs","params":null}`, []string{"1"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			conn := dial(t, p)
			conn.send(c.send)
			for range c.ids {
				r := testkit.Value(conn.receive())(t)
				if !slices.Contains(c.ids, string(r.ID)) || (r.Error == nil) != (c.code == 0) || r.Error != nil && r.Error.Code != c.code {
					t.Errorf("answer %s %s %+v", r.ID, r.Result, r.Error)
				}
			}
		})
	}
}

func TestBatch(t *testing.T) {
	c := dial(t, startProcess(t, NewNetwork(nil), Config{}))
	c.send(`[` + getVersionText + `,{"method":"spdk_get_version"},{"id":3,"method":"nope"}]`)
	var all []reply
	testkit.Must(t, c.answers.Decode(&all))
	if len(all) != 2 || string(all[0].ID) != "2" || string(all[1].ID) != "3" || all[1].Error.Code != -32601 {
		t.Errorf("answers %+v", all)
	}
}

// A success has no member error: the node driver would treat it as a failure.
func TestResponsesHaveResultOrError(t *testing.T) {
	c := dial(t, startProcess(t, NewNetwork(nil), Config{}))
	for method, has := range map[string]string{"spdk_get_version": "result", "nope": "error"} {
		c.send(`{"id":1,"method":"` + method + `"}`)
		var r map[string]any
		testkit.Must(t, c.answers.Decode(&r))
		_, result := r["result"]
		_, failure := r["error"]
		if len(r) != 3 || result != (has == "result") || failure != (has == "error") {
			t.Errorf("%s: %v", method, r)
		}
	}
}

func TestInvalidRequestsCloseTheConnection(t *testing.T) {
	p := startProcess(t, NewNetwork(nil), Config{})
	for name, text := range map[string]string{
		"malformed": `{"id":1,]`,
		"too long":  `{"id":1,"method":"` + strings.Repeat("x", maxRequest) + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			c := dial(t, p)
			// The process can close the connection before all is sent.
			_, _ = c.Write([]byte(text))
			if r, err := c.receive(); err == nil || isTimeout(err) {
				t.Errorf("answer %+v, %v, want a closed connection", r, err)
			}
			dial(t, p).must("spdk_get_version", nil, nil)
		})
	}
}

func isTimeout(err error) bool {
	var n net.Error
	return errors.As(err, &n) && n.Timeout()
}

func TestConnectionLimit(t *testing.T) {
	p := startProcess(t, NewNetwork(nil), Config{})
	for range maxConnections {
		dial(t, p).must("spdk_get_version", nil, nil)
	}
	if _, err := dial(t, p).try("spdk_get_version", nil); err == nil || isTimeout(err) {
		t.Errorf("connection %d: %v, want it closed", maxConnections+1, err)
	}
}

func TestParameterNamesAndKindsAreExact(t *testing.T) {
	c := dial(t, startProcess(t, NewNetwork(nil), Config{}))
	c.refused(-32603, "bdev_get_bdevs", with{"NAME": "x"})
	c.refused(-32603, "bdev_get_bdevs", with{"name": 7})
	c.refused(-32603, "bdev_get_bdevs", with{"name": nil})
	c.refused(-32602, "nvmf_create_subsystem", with{"nqn": 7})
	c.refused(-32602, "fsdev_aio_create", with{"name": "x"})
}

func TestListedMethodsWithoutImplementation(t *testing.T) {
	c := dial(t, startProcess(t, NewNetwork(nil), Config{}))
	if text := c.refused(-32603, "bdev_raid_create", nil); !strings.Contains(text, "double") {
		t.Errorf("%q does not name the double as the cause", text)
	}
}

func TestSockets(t *testing.T) {
	n := NewNetwork(nil)
	p := startProcess(t, n, Config{})
	if _, err := n.Start(Config{Socket: p.Socket()}); err == nil {
		t.Error("two processes have one socket")
	}
	p.Kill()
	if _, err := os.Lstat(p.Socket()); err != nil {
		t.Error("a killed process takes its socket with it:", err)
	}
	if _, err := net.Dial("unix", p.Socket()); err == nil {
		t.Error("a killed process accepts")
	}
	testkit.Must(t, p.Start())
	dial(t, p).must("spdk_get_version", nil, nil)
	if err := p.Start(); err == nil {
		t.Error("a process that runs starts again")
	}
	testkit.Must(t, p.Close())
	if _, err := os.Lstat(p.Socket()); !errors.Is(err, os.ErrNotExist) {
		t.Error("the socket of a closed process:", err)
	}
	if p.Start() == nil || p.Restart() == nil {
		t.Error("a closed process starts")
	}
	if _, err := n.Start(Config{Socket: filepath.Join(t.TempDir(), "absent", "s")}); err == nil {
		t.Error("a socket in a directory that is not there")
	}
}

func TestKillEndsPendingCalls(t *testing.T) {
	n := NewNetwork(nil)
	n.SetReach(at("4420"), Dropped)
	p := startProcess(t, n, Config{})
	c := dial(t, p)
	waiting := make(chan error)
	go func() {
		_, err := c.try("bdev_nvme_attach_controller", attach(nil))
		waiting <- err
	}()
	for len(p.Calls()) == 0 {
		dial(t, p).Close()
	}
	p.Kill()
	if err := <-waiting; err == nil || !errors.Is(err, io.EOF) && isTimeout(err) {
		t.Errorf("the call ends with %v", err)
	}
}

// Any input is answered with an error, or is a request whose parameters match by
// exact name and kind.
func FuzzRequest(f *testing.F) {
	for _, seed := range []string{
		getVersionText, `{}`, `[]`, `null`, `{"id":null,"method":"bdev_get_bdevs","params":{"name":"x"}}`, `{"id":{},"method":"x"}`,
		`{"id":1,"method":"bdev_get_bdevs","params":["x"]}`, `{"id":1,"method":"nvmf_create_subsystem","params":{"nqn":null}}`,
		`{"id":1,"method":"bdev_get_bdevs","params":{"timeout":1e99}}`, `{"id":-1.5,"method":7}`,
	} {
		f.Add([]byte(seed))
	}
	methods, _ := methodsOf(Config{SNAP: true, RBD: true})
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			return
		}
		r, fail := parse(text)
		if fail != nil {
			if fail.Error == nil || fail.Error.Code != -32600 || fail.ID == nil {
				t.Fatalf("%s: answer %+v", text, fail)
			}
			return
		}
		if r.method == "" {
			t.Fatalf("%s: a request without a method", text)
		}
		m := methods[r.method]
		a, ok := decode(r.params, m.takes)
		if !ok {
			if e := m.refusal(r.method); e.Code == 0 || e.Message == "" {
				t.Fatalf("%s: refused with %+v", text, e)
			}
			return
		}
		for name, value := range a {
			if k, known := m.takes.allowed[name]; !known || !k.fits(value) {
				t.Fatalf("%s: the parameter %s %s is accepted", text, name, value)
			}
		}
		for _, name := range m.takes.need {
			if !a.has(name) {
				t.Fatalf("%s: %s is not there", text, name)
			}
		}
	})
}

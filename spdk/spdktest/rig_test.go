package spdktest

import (
	"encoding/json"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type clock struct {
	mu  sync.Mutex
	now time.Time

	never map[*time.Time]struct{} // ends of waits that Network.during ignores
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) pass(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// during advances the time to pending waits during what, and returns how much
// has passed.
func (n *Network) during(c *clock, what func()) time.Duration {
	began := c.Now()
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		look := time.NewTicker(time.Millisecond)
		defer look.Stop()
		for {
			select {
			case <-done:
				return
			case <-look.C:
				n.advance(c)
			}
		}
	}()
	what()
	close(done)
	<-stopped
	return c.Now().Sub(began)
}

// advance moves the time to the next pending wait.
func (n *Network) advance(c *clock) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := c.Now()
	next := time.Hour
	for end := range n.due {
		if _, skip := c.never[end]; !skip {
			next = min(next, end.Sub(now))
		}
	}
	// Waits that have ended continue first.
	if next > 0 && next < time.Hour {
		c.pass(next)
	}
}

// awaited reports whether a timed wait is pending.
func (n *Network) awaited() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return len(n.due) > 0
}

func newClock() *clock { return &clock{now: time.Unix(1_800_000_000, 0)} }

func startProcess(t *testing.T, n *Network, c Config) *Process {
	t.Helper()
	if c.Socket == "" {
		c.Socket = filepath.Join(testkit.Dir(t), "snap.sock")
	}
	return testkit.Open(n.Start(c))(t)
}

type client struct {
	t *testing.T
	net.Conn
	answers *json.Decoder
}

func dial(t *testing.T, p *Process) *client {
	t.Helper()
	c := testkit.Value(net.Dial("unix", p.Socket()))(t)
	t.Cleanup(func() { c.Close() })
	testkit.Must(t, c.SetDeadline(time.Now().Add(testkit.Timeout)))
	return &client{t, c, json.NewDecoder(c)}
}

type reply struct {
	Version string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  json.RawMessage `json:"result"`
	Error   *Error          `json:"error"`
}

func (c *client) send(text string) {
	c.t.Helper()
	testkit.Value(c.Write([]byte(text)))(c.t)
}

func (c *client) receive() (reply, error) {
	var r reply
	err := c.answers.Decode(&r)
	return r, err
}

// ask sends a request, without a newline as SNAP's own client does, and
// returns its answer.
func (c *client) ask(method string, params any) reply {
	c.t.Helper()
	r, err := c.try(method, params)
	if err != nil {
		c.t.Fatalf("%s: %v", method, err)
	}
	return r
}

func (c *client) try(method string, params any) (reply, error) {
	c.t.Helper()
	asked := map[string]any{"jsonrpc": "2.0", "id": 1, "method": method}
	if params != nil {
		asked["params"] = params
	}
	text := testkit.Value(json.Marshal(asked))(c.t)
	if _, err := c.Write(text); err != nil {
		return reply{}, err
	}
	return c.receive()
}

func (c *client) must(method string, params, result any) {
	c.t.Helper()
	r := c.ask(method, params)
	if r.Error != nil {
		c.t.Fatalf("%s %v: %d %s", method, params, r.Error.Code, r.Error.Message)
	}
	if result != nil {
		if err := json.Unmarshal(r.Result, result); err != nil {
			c.t.Fatalf("%s: %v: %s", method, err, r.Result)
		}
	}
}

func (c *client) refused(code int, method string, params any) string {
	c.t.Helper()
	r := c.ask(method, params)
	if r.Error == nil {
		c.t.Fatalf("%s %v: %s, want the error %d", method, params, r.Result, code)
	}
	if r.Error.Code != code {
		c.t.Fatalf("%s %v: %d %s, want the code %d", method, params, r.Error.Code, r.Error.Message, code)
	}
	return r.Error.Message
}

type with map[string]any

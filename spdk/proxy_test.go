package spdk

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/test/testkit"
)

const secret = "s3cret-pässword"

// throughHTTP returns a client of an HTTP server.
func throughHTTP(t *testing.T, c Config, handle http.HandlerFunc) (*Client, *httptest.Server) {
	t.Helper()
	s := httptest.NewServer(handle)
	t.Cleanup(s.Close)
	c.URL, c.User = s.URL, "spdkcsiuser"
	if c.Password == nil {
		c.Password = func() (string, error) { return secret, nil }
	}
	client := open(t, c)
	return client, s
}

func httpEcho(w http.ResponseWriter, r *http.Request) {
	var q request
	if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	fmt.Fprintf(w, `{"jsonrpc":"2.0","id":%d,"result":%s}`+"\n", q.ID, q.Params)
}

// A request that does not reach the proxy's machine in time never does.
func TestDeliveryIsBounded(t *testing.T) {
	client, server := throughHTTP(t, Config{}, httpEcho)
	conn := testkit.Value(client.proxy.transport.DialContext(t.Context(), "tcp", server.Listener.Addr().String()))(t)
	defer conn.Close()
	raw := testkit.Value(conn.(*proxyConn).Conn.(*net.TCPConn).SyscallConn())(t)
	testkit.Must(t, raw.Control(func(fd uintptr) {
		if ms := testkit.Value(unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT))(t); ms != 5000 {
			t.Errorf("TCP_USER_TIMEOUT is %d ms, want 5000", ms)
		}
	}))
}

func TestHTTPRequest(t *testing.T) {
	var mu sync.Mutex
	var got *http.Request
	var body []byte
	registry := prometheus.NewRegistry()
	client, server := throughHTTP(t, Config{Metrics: registry}, func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		got = r
		body, _ = io.ReadAll(r.Body)
		r.Body = io.NopCloser(strings.NewReader(string(body)))
		httpEcho(w, r)
	})
	var result struct{ Name string }
	params := map[string]string{"name": "größe 😀 \u2028"}
	if err := client.Call(t.Context(), "echo", params, &result); err != nil || result.Name != params["name"] {
		t.Fatalf("%+v, %v", result, err)
	}
	mu.Lock()
	defer mu.Unlock()
	user, password, _ := got.BasicAuth()
	if got.Method != http.MethodPost || got.Header.Get("Content-Type") != "application/json" || user != "spdkcsiuser" || password != secret || !got.Close {
		t.Errorf("request %s %v, close %t", got.Method, got.Header, got.Close)
	}
	if strings.ContainsFunc(string(body), func(r rune) bool { return r > 126 }) || !strings.Contains(string(body), `gr\u00f6\u00dfe \ud83d\ude00`) {
		t.Errorf("the request is not ASCII: %s", body)
	}
	if client.Address() != server.URL || client.Socket() != "" {
		t.Errorf("address %q, socket %q", client.Address(), client.Socket())
	}
	_, err := client.Process(t.Context())
	testkit.WantError(t, "Process", err, errs.Unsupported, server.URL)
	if n := client.Generation(); n != 0 {
		t.Errorf("generation %d", n)
	}
	if n := testkit.Metric(t, registry, "cleat_spdk_calls_total", "method=echo", "outcome=ok"); n != 1 {
		t.Errorf("%v calls counted", n)
	}
	if n := testkit.Metric(t, registry, "cleat_spdk_connects_total"); n != 1 {
		t.Errorf("%v connections counted", n)
	}
	testkit.Eventually(t, "the connection is closed", func() bool { return testkit.Metric(t, registry, "cleat_spdk_connections") == 0 })
}

func TestHTTPErrors(t *testing.T) {
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(code) }
	}
	text := func(format string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			var q request
			_ = json.NewDecoder(r.Body).Decode(&q) // an invalid request fails the test by its id
			fmt.Fprintf(w, format, q.ID)
		}
	}
	for name, c := range map[string]struct {
		handle     http.HandlerFunc
		kind       errs.Kind
		unanswered bool
		outcome    string
		words      []string
	}{
		"wrong password":     {status(401), errs.Unauthenticated, false, "unauthenticated", []string{"401", `"spdkcsiuser"`, "rpcTokens"}},
		"forbidden":          {status(403), errs.Unauthenticated, false, "unauthenticated", []string{"403"}},
		"another server":     {status(404), errs.Unavailable, false, "unavailable", []string{"404", "rpc_http_proxy.py"}},
		"redirect":           {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/x", http.StatusTemporaryRedirect) }, errs.Unavailable, false, "unavailable", []string{"307"}},
		"server error":       {status(500), errs.Unavailable, true, "unanswered", []string{"500"}},
		"bad gateway":        {status(502), errs.Unavailable, true, "unanswered", nil},
		"no content":         {status(204), errs.Unavailable, true, "unanswered", nil},
		"closed by process":  {status(200), errs.Unavailable, true, "unanswered", []string{"empty"}},
		"closed by proxy":    {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, errs.Unavailable, true, "unanswered", nil},
		"no JSON":            {text("<html>%d"), errs.Unavailable, true, "unanswered", []string{"invalid JSON-RPC"}},
		"truncated":          {text(`{"id":%d,"result":`), errs.Unavailable, true, "unanswered", nil},
		"other id":           {text(`{"id":1%d,"result":true}`), errs.Unavailable, true, "unanswered", []string{"request id"}},
		"no id":              {text(`{"id":null,"error":{"code":-32600,"message":"%d"}}`), errs.Unavailable, true, "unanswered", []string{"-32600"}},
		"large":              {text(`{"id":%d,"result":"` + strings.Repeat("x", 2000) + `"}`), errs.Unavailable, true, "unanswered", []string{"more than 1000 bytes"}},
		"error response":     {text(`{"id":%d,"error":{"code":-19,"message":"No such device"}}`), errs.NotFound, false, "refused", nil},
		"undecodable result": {text(`{"id":%d,"result":{}}`), errs.Internal, false, "bad", nil},
	} {
		t.Run(name, func(t *testing.T) {
			registry := prometheus.NewRegistry()
			log := testkit.NewLog(t)
			client, server := throughHTTP(t, Config{MaxAnswer: 1000, Metrics: registry, Logger: log.Logger()}, c.handle)
			server.Config.ErrorLog = nil
			var result bool
			err := client.Call(t.Context(), "bdev_lvol_delete", map[string]string{"name": "x"}, &result)
			testkit.WantError(t, "the call", err, c.kind, c.words...)
			if errors.Is(err, Unanswered) != c.unanswered {
				t.Errorf("%v: unanswered is %t", err, !c.unanswered)
			}
			if n := testkit.Metric(t, registry, "cleat_spdk_calls_total", "outcome="+c.outcome); n != 1 {
				t.Errorf("%v calls with the outcome %s", n, c.outcome)
			}
			for _, text := range []string{fmt.Sprint(err), fmt.Sprintf("%+v %#v", err, err), log.String()} {
				if strings.Contains(text, secret) {
					t.Errorf("the password is in %s", text)
				}
			}
		})
	}
}

func TestHTTPUnreachable(t *testing.T) {
	client, server := throughHTTP(t, Config{}, httpEcho)
	server.Close()
	err := client.Call(t.Context(), "echo", nil, nil)
	testkit.WantError(t, "the call", err, errs.Unavailable, "connect to "+server.URL)
	if errors.Is(err, Unanswered) {
		t.Errorf("%v: nothing was sent", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	testkit.WantError(t, "WaitReady", client.WaitReady(ctx), errs.Unavailable, server.URL)
}

// The password is read for each request: a rotated one needs no restart.
func TestHTTPPasswordRotation(t *testing.T) {
	var password atomic.Value
	password.Store("old")
	unreadable := errors.New("no such file")
	client, _ := throughHTTP(t, Config{Password: func() (string, error) {
		if p := password.Load().(string); p != "" {
			return p, nil
		}
		return "", unreadable
	}}, func(w http.ResponseWriter, r *http.Request) {
		if _, p, _ := r.BasicAuth(); p != "new" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		httpEcho(w, r)
	})
	testkit.WantError(t, "the old password", client.Call(t.Context(), "echo", nil, nil), errs.Unauthenticated)
	testkit.WantError(t, "WaitReady", client.WaitReady(t.Context()), errs.Unauthenticated)
	password.Store("")
	err := client.Call(t.Context(), "echo", nil, nil)
	testkit.WantError(t, "no password", err, errs.Unavailable, "no such file")
	if errors.Is(err, Unanswered) {
		t.Errorf("%v: nothing was sent", err)
	}
	password.Store("new")
	if err := client.Call(t.Context(), "echo", map[string]int{}, nil); err != nil {
		t.Error(err)
	}
}

// Of two calls over one connection, the one that waits was not sent.
func TestHTTPDeadlineAndClose(t *testing.T) {
	arrived, release := make(chan struct{}, 1), make(chan struct{})
	client, _ := throughHTTP(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		arrived <- struct{}{}
		<-release
	})
	defer close(release) // before the server waits for its handlers
	ended := make(chan error, 1)
	go func() { ended <- client.Call(t.Context(), "first", nil, nil) }()
	testkit.Receive(t, "the request", arrived)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	err := client.Call(ctx, "second", nil, nil)
	if testkit.WantError(t, "the second call", err, errs.Unavailable, "deadline"); errors.Is(err, Unanswered) {
		t.Errorf("%v: it was not sent", err)
	}
	testkit.Must(t, client.Close())
	err = testkit.Receive(t, "the end of the call", ended)
	testkit.WantError(t, "the interrupted call", err, Unanswered, errClosed.Error())
	testkit.WantError(t, "a call after Close", client.Call(t.Context(), "third", nil, nil), errClosed)
	testkit.Must(t, client.Close())
}

func TestHTTPCallWithoutDeadlineTimesOut(t *testing.T) {
	release := make(chan struct{})
	client, _ := throughHTTP(t, Config{Timeout: 50 * time.Millisecond}, func(http.ResponseWriter, *http.Request) { <-release })
	defer close(release)
	testkit.WantError(t, "the call", client.Call(t.Context(), "slow", nil, nil), Unanswered, "deadline")
}

// Facts of a process are dropped when another one can have replaced it.
func TestHTTPFactsAreForgotten(t *testing.T) {
	var asked atomic.Int64
	client, _ := throughHTTP(t, Config{}, func(w http.ResponseWriter, r *http.Request) {
		var q request
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		switch q.Method {
		case "spdk_get_version":
			asked.Add(1)
			fmt.Fprintf(w, `{"id":%d,"result":%s}`, q.ID, upstream)
		case "gone":
			w.WriteHeader(http.StatusInternalServerError)
		case "absent":
			fmt.Fprintf(w, `{"id":%d,"error":{"code":-19,"message":"No such device"}}`, q.ID)
		default:
			fmt.Fprintf(w, `{"id":%d,"error":{"code":-32601,"message":"Method not found"}}`, q.ID)
		}
	})
	for i, step := range []struct {
		call string
		want int64
	}{{"", 1}, {"absent", 1}, {"gone", 2}, {"unknown", 3}} {
		if step.call != "" {
			testkit.WantError(t, step.call, client.Call(t.Context(), step.call, nil, nil), nil)
		}
		for range 2 {
			if v, err := client.Version(t.Context()); err != nil || v.Major != 26 {
				t.Fatalf("%+v, %v", v, err)
			}
		}
		if n := asked.Load(); n != step.want {
			t.Errorf("step %d: %d requests of the version, want %d", i, n, step.want)
		}
	}
}

func TestHTTPS(t *testing.T) {
	s := httptest.NewTLSServer(http.HandlerFunc(httpEcho))
	t.Cleanup(s.Close)
	s.Config.ErrorLog = nil
	c := Config{URL: s.URL, User: "u", Password: func() (string, error) { return secret, nil }}
	err := open(t, c).Call(t.Context(), "echo", map[string]int{}, nil)
	testkit.WantError(t, "an unknown certificate", err, errs.Unavailable, "certificate")
	if errors.Is(err, Unanswered) {
		t.Errorf("%v: nothing was sent", err)
	}
	c.RootCAs = s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	if err := open(t, c).Call(t.Context(), "echo", map[string]int{}, nil); err != nil {
		t.Error(err)
	}
}

// The proxy of the environment would get the password.
func TestHTTPIgnoresTheEnvironment(t *testing.T) {
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("NO_PROXY", "")
	client, _ := throughHTTP(t, Config{}, httpEcho)
	if client.proxy.transport.Proxy != nil {
		t.Error("the transport has a proxy")
	}
}

// A server that refuses all requests without reading them is not asked twice.
func TestHTTPClosedWithoutResponseIsNotRetried(t *testing.T) {
	l := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	var accepted atomic.Int64
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted.Add(1)
			_ = c.Close()
		}
	})
	defer serving.Wait()
	defer l.Close()
	client := open(t, Config{URL: "http://" + l.Addr().String(), User: "u", Password: func() (string, error) { return secret, nil }})
	testkit.WantError(t, "the call", client.Call(t.Context(), "echo", nil, nil), Unanswered)
	if n := accepted.Load(); n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestHTTPConfig(t *testing.T) {
	password := func() (string, error) { return secret, nil }
	for name, c := range map[string]Config{
		"both":                {Socket: "/s", URL: "http://192.0.2.1:9009", User: "u", Password: password},
		"a socket with user":  {Socket: "/s", User: "u"},
		"a URL with user":     {URL: "http://u:" + secret + "@192.0.2.1", User: "u", Password: password},
		"a URL with a bad @":  {URL: "http://u:p/" + secret + "@192.0.2.1", User: "u", Password: password},
		"another scheme":      {URL: "unix:///s", User: "u", Password: password},
		"no host":             {URL: "http://:9009", User: "u", Password: password},
		"a bad port":          {URL: "http://a:b", User: "u", Password: password},
		"a query":             {URL: "http://a?b", User: "u", Password: password},
		"no user":             {URL: "http://192.0.2.1:9009", Password: password},
		"a user with a colon": {URL: "http://192.0.2.1:9009", User: "a:b", Password: password},
		"no password":         {URL: "http://192.0.2.1:9009", User: "u"},
	} {
		_, err := Open(c)
		testkit.WantError(t, name, err, errs.Invalid)
		if strings.Contains(fmt.Sprint(err), secret) {
			t.Errorf("%s: the password is in %v", name, err)
		}
	}
}

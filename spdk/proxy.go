package spdk

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
)

// proxyConnectTimeout bounds the TCP and the TLS handshake with a proxy.
const proxyConnectTimeout = 10 * time.Second

// DeliveryTimeout is when the kernel gives up a connection to a proxy that does not
// acknowledge what was sent: a request that is not delivered by then is lost, also
// after the end of this process.
const DeliveryTimeout = 5 * time.Second

func boundDelivery(_, _ string, c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(DeliveryTimeout.Milliseconds()))
	})
	return errors.Join(err, failed)
}

// proxy sends requests through SPDK's rpc_http_proxy.py. Each request has its
// own connection: the script serves one connection at a time, and an idle one
// would block all other clients.
type proxy struct {
	config    Config
	transport *http.Transport
	lastID    atomic.Uint64
	closing   chan struct{} // interrupts in-flight requests
}

func newProxy(c Config, m *metrics) *proxy {
	dialer := &net.Dialer{Timeout: proxyConnectTimeout, Control: boundDelivery}
	return &proxy{
		config:  c,
		closing: make(chan struct{}),
		transport: &http.Transport{
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				raw, err := dialer.DialContext(ctx, network, address)
				if err != nil {
					return nil, err
				}
				m.connects.Inc()
				m.connections.Inc()
				return &proxyConn{Conn: raw, closed: sync.OnceFunc(m.connections.Dec)}, nil
			},
			TLSClientConfig:        &tls.Config{RootCAs: c.RootCAs, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    proxyConnectTimeout,
			DisableKeepAlives:      true,
			DisableCompression:     true,
			MaxConnsPerHost:        c.Connections,
			MaxResponseHeaderBytes: 64 << 10,
		},
	}
}

type proxyConn struct {
	net.Conn
	closed func()
}

func (c *proxyConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

func (c *Client) exchangeHTTP(ctx context.Context, method string, params []byte) (answer, error) {
	return c.throughProxy(ctx, c.proxy.lastID.Add(1), method, params)
}

// throughProxy fails after Close, and keeps Close waiting until it returns. The
// proxy closes the connection after a request without an id (0): Unanswered.
func (c *Client) throughProxy(ctx context.Context, id uint64, method string, params []byte) (answer, error) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return answer{}, errs.Errorf(errs.Unavailable, "%s: %w", method, errClosed)
	}
	c.readers.Add(1)
	c.mu.Unlock()
	defer c.readers.Done()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	defer close(ended)
	c.readers.Go(func() {
		select {
		case <-c.proxy.closing:
			cancel(errClosed)
		case <-ended:
		}
	})
	a, err := c.proxy.exchange(ctx, id, method, params)
	if err != nil || a.failed && restartShows(method, a) {
		c.mu.Lock()
		c.forget() // the next request can reach another process
		c.mu.Unlock()
	}
	return a, err
}

// restartShows reports whether the response can be that of another release than
// the one whose methods are cached: no lost connection shows a restart here.
func restartShows(method string, a answer) bool {
	err := &Error{Method: method, Code: a.code, Status: a.status, Message: a.text}
	return errors.Is(err, UnknownMethod) || errors.Is(err, BadParams)
}

func (p *proxy) exchange(ctx context.Context, id uint64, method string, params []byte) (answer, error) {
	body := toASCII(encodeRequest(id, method, params))
	if len(body) > maxRequest {
		return answer{}, errs.Errorf(errs.Invalid, "%s: the request has %d bytes, at most %d are allowed", method, len(body), maxRequest)
	}
	var connected atomic.Bool
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	r, err := p.request(traced, body)
	if err != nil {
		return answer{}, errs.Errorf(errs.Unavailable, "%s: %w", method, err)
	}
	response, err := p.transport.RoundTrip(r)
	if err == nil {
		defer response.Body.Close()
		var a answer
		if a, err = p.parse(id, response); err == nil {
			return a, nil
		}
		if errs.KindOf(err) == errs.Unauthenticated || errors.Is(err, errRefused) {
			return answer{}, fmt.Errorf("%s at %s: %w", method, p.config.URL, err)
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if !connected.Load() {
		return answer{}, errs.Errorf(errs.Unavailable, "%s: connect to %s: %w", method, p.config.URL, err)
	}
	return answer{}, errs.Errorf(errs.Unavailable, "%s at %s: %w: %w", method, p.config.URL, Unanswered, err)
}

// request reads the password for each request, so that it can change.
func (p *proxy) request(ctx context.Context, body []byte) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, p.config.URL, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	password, err := p.config.Password()
	if err != nil {
		return nil, fmt.Errorf("read the password for %s: %w", p.config.URL, err)
	}
	r.SetBasicAuth(p.config.User, password)
	r.Header.Set("Content-Type", "application/json")
	return r, nil
}

// errRefused: the server did not pass the request to a process.
var errRefused = errors.New("the request was not executed")

// parse returns Unauthenticated and errRefused only if the process certainly did
// not get the request. The script answers 500, or closes the connection, also
// after the process has executed a request.
func (p *proxy) parse(id uint64, r *http.Response) (answer, error) {
	switch {
	case r.StatusCode == http.StatusUnauthorized || r.StatusCode == http.StatusForbidden:
		return answer{}, errs.Errorf(errs.Unauthenticated, "HTTP status %s for user %s: username and password must be those that rpc_http_proxy.py was started with; check rpcTokens in secret.json", r.Status, errs.Quote(p.config.User))
	case r.StatusCode >= 300 && r.StatusCode < 500:
		return answer{}, errs.Errorf(errs.Unavailable, "HTTP status %s: the URL is not that of SPDK's rpc_http_proxy.py, and %w", r.Status, errRefused)
	case r.StatusCode != http.StatusOK:
		return answer{}, fmt.Errorf("HTTP status %s: the proxy got no valid response from the SPDK process", r.Status)
	}
	a, err := newFrames(r.Body, p.config.MaxAnswer).next()
	switch {
	case errors.Is(err, io.EOF):
		return answer{}, errors.New("empty HTTP response: the SPDK process closed its connection to the proxy")
	case err != nil:
		return answer{}, err
	case a.id != id:
		return answer{}, fmt.Errorf("the response has the request id %d instead of %d, code %d", a.id, id, a.code)
	}
	return a, nil
}

// toASCII escapes other characters of a JSON text. The script accepts only
// ASCII, but notices that after it has passed the request to the process.
func toASCII(text []byte) []byte {
	if bytes.IndexFunc(text, func(r rune) bool { return r >= utf8.RuneSelf }) < 0 {
		return text
	}
	var b bytes.Buffer
	for _, r := range string(text) {
		switch high, low := utf16.EncodeRune(r); {
		case r < utf8.RuneSelf:
			b.WriteByte(byte(r))
		case r > 0xffff:
			fmt.Fprintf(&b, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.Bytes()
}

// checkURL never prints a URL that might have a password in it.
func (c Config) checkURL() error {
	if strings.Contains(c.URL, "@") {
		return errs.Errorf(errs.Invalid, "the URL of the SPDK proxy has an @: user and password are not allowed there, set User and Password")
	}
	u, err := url.Parse(c.URL)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
		return errs.Errorf(errs.Invalid, "URL %s is not one such as http://192.0.2.1:9009 or https://[2001:db8::1]:9009", errs.Quote(c.URL))
	}
	if c.User == "" || strings.Contains(c.User, ":") || c.Password == nil {
		return errs.Errorf(errs.Invalid, "user %s for %s is not valid, or has no password: SPDK's proxy needs both, and a user has no colon", errs.Quote(c.User), c.URL)
	}
	return nil
}

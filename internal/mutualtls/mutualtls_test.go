package mutualtls_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/internal/mutualtls"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is an echo server on TCP.
type echo struct {
	addr string
	said chan error // refusals
}

// refusal waits: the client is notified before the callback.
func (e *echo) refusal(t *testing.T) error {
	t.Helper()
	return testkit.Receive(t, "a refusal", e.said)
}

func serve(t *testing.T, f mutualtls.Files) *echo {
	t.Helper()
	e := &echo{said: make(chan error, 100)}
	raw := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	l := testkit.Value(mutualtls.Listener(raw, f, func(from net.Addr, err error) {
		if !strings.HasPrefix(from.String(), "127.0.0.1:") {
			t.Errorf("refused %s", from)
		}
		e.said <- err
	}))(t)
	e.addr = l.Addr().String()
	var all sync.WaitGroup
	all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			all.Go(func() {
				_, _ = io.Copy(c, c)
				_ = c.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		all.Wait()
	})
	return e
}

func echoOnce(e *echo, config *tls.Config) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", e.addr)
	if err != nil {
		return err
	}
	c := tls.Client(raw, config)
	defer func() { _ = c.Close() }()
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if err := c.HandshakeContext(ctx); err != nil {
		return err
	}
	if _, err := c.Write([]byte("word")); err != nil {
		return err
	}
	got := make([]byte, 4)
	if _, err := io.ReadFull(c, got); err != nil { // where a refusal arrives
		return err
	}
	if v := c.ConnectionState().Version; v != tls.VersionTLS13 {
		return fmt.Errorf("version %x", v)
	}
	return nil
}

func ask(e *echo, f mutualtls.Files, name string) error {
	config, err := mutualtls.Client(f, name)
	if err != nil {
		return err
	}
	return echoOnce(e, config)
}

func wants(t *testing.T, err error, words ...string) {
	t.Helper()
	testkit.WantError(t, "the handshake", err, nil, words...)
}

func TestBothSidesAreKnown(t *testing.T) {
	ours, theirs := testkit.NewAuthority(t, "ours"), testkit.NewAuthority(t, "theirs")
	e := serve(t, ours.Files(t, nil, "storage-a", "127.0.0.1", "::1"))
	good := ours.Files(t, nil, "controller")
	for _, name := range []string{"storage-a", "127.0.0.1", "::1"} {
		if err := ask(e, good, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	wants(t, ask(e, good, "storage-b"), "storage-a", "not storage-b")
	wants(t, e.refusal(t), "bad certificate") // the first one that was

	untrusted := theirs.Files(t, nil, "controller")
	wants(t, ask(e, untrusted, "storage-a"), "unknown authority") // to it the server is the untrusted
	wants(t, e.refusal(t), "bad certificate")
	untrusted.CA = good.CA
	wants(t, ask(e, untrusted, "storage-a"), "remote error", "unknown certificate authority")
	wants(t, e.refusal(t), "unknown authority")

	config := testkit.Value(mutualtls.Client(good, "storage-a"))(t)
	config.GetClientCertificate = nil
	wants(t, echoOnce(e, config), "certificate required")
	wants(t, e.refusal(t), "didn't provide a certificate")

	config = testkit.Value(mutualtls.Client(good, "storage-a"))(t)
	config.MinVersion, config.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	wants(t, echoOnce(e, config), "protocol version")
}

// An expired certificate is reported by its owner, or else refused by the peer.
func TestExpired(t *testing.T) {
	a := testkit.NewAuthority(t, "a")
	old, good := a.Files(t, testkit.Expired, "storage-a"), a.Files(t, nil, "storage-a")
	e := serve(t, good)
	wants(t, ask(e, old, "storage-a"), old.Cert, "expired on")
	testkit.WantError(t, "a server starts with what has expired", testkit.Err(mutualtls.Server(old)), nil)
	config := testkit.Value(mutualtls.Client(good, "storage-a"))(t)
	pair := testkit.Value(tls.LoadX509KeyPair(old.Cert, old.Key))(t)
	config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	wants(t, echoOnce(e, config), "expired certificate")

	early := a.Files(t, func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
	}, "storage-a")
	wants(t, early.Check(), "not valid before", "clock")
}

// Changed files apply to the next handshake, on both sides.
func TestRotation(t *testing.T) {
	first, second := testkit.NewAuthority(t, "first"), testkit.NewAuthority(t, "second")
	server, client := first.Files(t, nil, "storage-a"), first.Files(t, nil, "controller")
	e := serve(t, server)
	connects := func() {
		t.Helper()
		if err := ask(e, client, "storage-a"); err != nil {
			t.Error(err)
		}
	}
	renew := func(f mutualtls.Files, a *testkit.Authority, name string) {
		cert, key := a.Issue(t, nil, name)
		testkit.ReplaceFile(t, f.Cert, cert, 0o644)
		testkit.ReplaceFile(t, f.Key, key, 0o600)
	}
	connects()
	both := append(append([]byte{}, first.PEM...), second.PEM...)
	testkit.ReplaceFile(t, server.CA, both, 0o644)
	testkit.ReplaceFile(t, client.CA, both, 0o644)
	renew(server, second, "storage-a")
	connects()
	renew(client, second, "controller")
	connects()
	testkit.ReplaceFile(t, server.CA, second.PEM, 0o644)
	connects()
	renew(client, first, "controller") // no longer trusted by the server
	wants(t, ask(e, client, "storage-a"), "unknown certificate authority")
	wants(t, e.refusal(t), "unknown authority")
	renew(client, second, "controller")
	connects()

	// A half-written renewal is a temporary error.
	cert, key := second.Issue(t, nil, "storage-a")
	testkit.ReplaceFile(t, server.Cert, cert, 0o644)
	wants(t, ask(e, client, "storage-a"), "remote error: tls: internal error")
	wants(t, e.refusal(t), "private key does not match")
	testkit.ReplaceFile(t, server.Key, key, 0o600)
	connects()
}

func TestFilesThatAreNotInOrder(t *testing.T) {
	a, other := testkit.NewAuthority(t, "a"), testkit.NewAuthority(t, "other")
	fifo := filepath.Join(t.TempDir(), "fifo")
	testkit.Must(t, mkfifo(fifo))
	for name, c := range map[string]struct {
		spoil func(f *mutualtls.Files)
		says  []string
	}{
		"no certificate named": {func(f *mutualtls.Files) { f.Cert = "" }, []string{"certificate"}},
		"no key named":         {func(f *mutualtls.Files) { f.Key = "" }, []string{"private key"}},
		"no authority named":   {func(f *mutualtls.Files) { f.CA = "" }, []string{"authority"}},
		"certificate missing":  {func(f *mutualtls.Files) { f.Cert = "/nonexistent/tls.crt" }, []string{"/nonexistent/tls.crt", "no such file"}},
		"key missing":          {func(f *mutualtls.Files) { f.Key = "/nonexistent/tls.key" }, []string{"/nonexistent/tls.key", "no such file"}},
		"authority missing":    {func(f *mutualtls.Files) { f.CA = "/nonexistent/ca.crt" }, []string{"/nonexistent/ca.crt", "no such file"}},
		"a directory":          {func(f *mutualtls.Files) { f.CA = filepath.Dir(f.CA) }, []string{"not a regular file"}},
		"a pipe":               {func(f *mutualtls.Files) { f.CA = fifo }, []string{"not a regular file"}},
		"too large":            {func(f *mutualtls.Files) { testkit.ReplaceFile(t, f.CA, make([]byte, 1<<20+1), 0o644) }, []string{"larger than"}},
		"authority is no PEM":  {func(f *mutualtls.Files) { testkit.ReplaceFile(t, f.CA, []byte("hello"), 0o644) }, []string{"/ca.crt", "no PEM certificate"}},
		"authority is a key":   {func(f *mutualtls.Files) { f.CA = f.Key }, []string{"no PEM certificate"}},
		"certificate is a key": {func(f *mutualtls.Files) { f.Cert = f.Key }, []string{"/tls.key", "certificate"}},
		"key is a certificate": {func(f *mutualtls.Files) { f.Key = f.Cert; chmod(t, f.Cert, 0o600) }, []string{"private key"}},
		"key of another":       {func(f *mutualtls.Files) { f.Key = other.Files(t, nil, "x").Key }, []string{"does not match"}},
		"world-readable key":   {func(f *mutualtls.Files) { chmod(t, f.Key, 0o644) }, []string{"/tls.key", "0644", "chmod 600", "defaultMode"}},
		"world-executable key": {func(f *mutualtls.Files) { chmod(t, f.Key, 0o601) }, []string{"0601"}},
		"key with a passphrase": {func(f *mutualtls.Files) {
			testkit.ReplaceFile(t, f.Key, []byte("-----BEGIN ENCRYPTED PRIVATE KEY-----"), 0o600)
		}, []string{"passphrase"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := a.Files(t, nil, "x")
			testkit.Must(t, f.Check())
			c.spoil(&f)
			err := f.Check()
			wants(t, err, c.says...)
			if _, again := mutualtls.Server(f); again == nil {
				t.Error("a server is made")
			}
			if _, again := mutualtls.Client(f, "x"); again == nil {
				t.Error("a client is made")
			}
		})
	}
	if f := (mutualtls.Files{}); !f.None() || (mutualtls.Files{CA: "x"}).None() {
		t.Error("no error is wrong")
	}
	testkit.WantError(t, "a client that takes every server", testkit.Err(mutualtls.Client(a.Files(t, nil, "x"), "")), nil)
	f := a.Files(t, nil, "x")
	chmod(t, f.Key, 0o640) // a group, as Kubernetes' fsGroup
	testkit.Must(t, f.Check())
}

// A certificate for one side is refused on the other.
func TestUsage(t *testing.T) {
	a := testkit.NewAuthority(t, "a")
	only := func(usage ...x509.ExtKeyUsage) mutualtls.Files {
		return a.Files(t, func(c *x509.Certificate) { c.ExtKeyUsage = usage }, "x")
	}
	server, client := only(x509.ExtKeyUsageServerAuth), only(x509.ExtKeyUsageClientAuth)
	_, err := mutualtls.Client(server, "x")
	wants(t, err, server.Cert, "client (clientAuth)")
	_, err = mutualtls.Server(client)
	wants(t, err, client.Cert, "server (serverAuth)")
	for _, f := range []mutualtls.Files{server, only(), only(x509.ExtKeyUsageAny)} {
		if err := ask(serve(t, f), client, "x"); err != nil {
			t.Error(err)
		}
	}
}

// Expired authorities are ignored.
func TestExpiredAuthority(t *testing.T) {
	a := testkit.NewAuthority(t, "a")
	old, _ := a.Issue(t, testkit.Expired, "old")
	f := a.Files(t, nil, "x")
	testkit.ReplaceFile(t, f.CA, append(old, a.PEM...), 0o644)
	testkit.Must(t, ask(serve(t, f), f, "x"))
	testkit.ReplaceFile(t, f.CA, old, 0o644)
	wants(t, f.Check(), f.CA, "CN=old", "expired")
}

// No error contains a part of a key.
func TestKeysStayOutOfErrors(t *testing.T) {
	a := testkit.NewAuthority(t, "a")
	f := a.Files(t, nil, "x")
	text := testkit.Value(os.ReadFile(f.Key))(t)
	for _, bad := range []mutualtls.Files{
		{Cert: f.Key, Key: f.Key, CA: f.CA}, {Cert: f.Cert, Key: f.Key, CA: f.Key},
		{Cert: f.Cert, Key: truncated(t, text, 40), CA: f.CA}, {Cert: f.Cert, Key: truncated(t, text, len(text)/2), CA: f.CA},
	} {
		err := bad.Check()
		if err == nil {
			t.Errorf("%+v is in order", bad)
			continue
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); !strings.HasPrefix(line, "-----") && strings.Contains(err.Error(), line[:16]) {
				t.Errorf("%v", err)
			}
		}
	}
}

// A stopped server reports no refusal.
func TestListenerEnds(t *testing.T) {
	f := testkit.NewAuthority(t, "a").Files(t, nil, "x")
	raw := testkit.Value(net.Listen("tcp", "127.0.0.1:0"))(t)
	l := testkit.Value(mutualtls.Listener(raw, f, func(_ net.Addr, err error) { t.Errorf("refused: %v", err) }))(t)
	silent := testkit.Value(net.Dial("tcp", l.Addr().String()))(t)
	defer func() { _ = silent.Close() }()
	c := testkit.Value(l.Accept())(t)
	read := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		read <- err
	}()
	testkit.Must(t, c.Close(), l.Close())
	if err := <-read; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
	testkit.WantError(t, "a listener without files", testkit.Err(mutualtls.Listener(raw, mutualtls.Files{}, nil)), nil)
}

func mkfifo(path string) error { return syscall.Mkfifo(path, 0o600) }

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	testkit.Must(t, os.Chmod(path, mode))
}

func truncated(t *testing.T, text []byte, n int) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "truncated.key")
	testkit.Must(t, os.WriteFile(path, text[:n], 0o600))
	return path
}

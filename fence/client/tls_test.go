package client_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/fencetest"
	"github.com/cleatproject/cleat/internal/mutualtls"
	"github.com/cleatproject/cleat/test/testkit"
)

func probe(t *testing.T, endpoint, name string, f mutualtls.Files) error {
	t.Helper()
	_, err := open(t, client.Target{Endpoint: endpoint, TLS: f, ServerName: name, Patience: soon}).Probe(testkit.Context(t))
	return err
}

func TestTLS(t *testing.T) {
	ours, theirs := testkit.NewAuthority(t, "ours"), testkit.NewAuthority(t, "theirs")
	d := fencetest.NewDriver()
	endpoint, _ := overTLS(t, d, ours.Files(t, nil, "127.0.0.1", "storage-a"))
	good := ours.Files(t, nil, "controller")
	for _, name := range []string{"", "storage-a"} {
		if err := probe(t, endpoint, name, good); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	served := len(d.Calls("Probe"))
	refused := func(err error, words ...string) {
		t.Helper()
		if testkit.WantError(t, "the error", err, errs.Unavailable, append(words, endpoint)...); !errors.Is(err, client.ErrNotServed) {
			t.Errorf("%v", err)
		}
	}
	refused(probe(t, endpoint, "storage-b", good), "for another name", "not storage-b")
	untrusted := theirs.Files(t, nil, "controller")
	refused(probe(t, endpoint, "", untrusted), "not signed by a CA in "+untrusted.CA)
	untrusted.CA = good.CA
	refused(probe(t, endpoint, "", untrusted), "rejected the client certificate "+untrusted.Cert, "unknown certificate authority")
	old := ours.Files(t, testkit.Expired, "controller")
	refused(probe(t, endpoint, "", old), old.Cert, "expired")
	refused(probe(t, endpoint, "", mutualtls.Files{Cert: "/nonexistent", Key: good.Key, CA: good.CA}), "/nonexistent")
	if n := len(d.Calls("Probe")); n != served {
		t.Errorf("%d calls of untrusted clients were served", n-served)
	}

	untrusted.CA = good.CA
	c := open(t, client.Target{Endpoint: endpoint, TLS: untrusted, Patience: soon})
	_, err := c.Probe(testkit.Context(t))
	refused(err, "rejected")
	cert, key := ours.Issue(t, nil, "controller")
	testkit.ReplaceFile(t, untrusted.Cert, cert, 0o644)
	testkit.ReplaceFile(t, untrusted.Key, key, 0o600)
	ctx := testkit.Context(t)
	for _, err = c.Probe(ctx); err != nil && ctx.Err() == nil; _, err = c.Probe(ctx) {
	}
	slow(t, d)
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	_, err = c.Probe(short)
	testkit.WantError(t, "the error", err, errs.Unavailable, "has not answered Probe in time")
}

// A server without a certificate, or with another's, gets no call.
func TestWrongServerCertificates(t *testing.T) {
	ours, theirs := testkit.NewAuthority(t, "ours"), testkit.NewAuthority(t, "theirs")
	good := ours.Files(t, nil, "controller")
	d := fencetest.NewDriver()
	impostor := theirs.Files(t, nil, "127.0.0.1")
	impostor.CA = good.CA // accepts every client
	endpoint, _ := overTLS(t, d, impostor)
	testkit.WantError(t, "probe", probe(t, endpoint, "", good), errs.Unavailable, "not signed by a CA")

	bare := tcp(t, "127.0.0.1:0") // without TLS
	d.Serve(t, bare)
	testkit.WantError(t, "probe", probe(t, bare.Addr().String(), "", good), errs.Unavailable, "TLS handshake")
	if calls := d.Calls("Probe"); len(calls) != 0 {
		t.Errorf("%v", calls)
	}
}

// The same Client accepts renewed certificates and finds a restarted driver.
func TestRenewalAndReturn(t *testing.T) {
	first, second := testkit.NewAuthority(t, "first"), testkit.NewAuthority(t, "second")
	server, mine := first.Files(t, nil, "127.0.0.1"), first.Files(t, nil, "controller")
	d := fencetest.NewDriver()
	endpoint, stop := overTLS(t, d, server)
	c := open(t, client.Target{Endpoint: endpoint, TLS: mine, Patience: soon})
	testkit.Value(c.Probe(testkit.Context(t)))(t)
	for _, f := range []mutualtls.Files{server, mine} {
		cert, key := second.Issue(t, nil, "127.0.0.1")
		testkit.ReplaceFile(t, f.Cert, cert, 0o644)
		testkit.ReplaceFile(t, f.Key, key, 0o600)
		testkit.ReplaceFile(t, f.CA, second.PEM, 0o644)
	}
	if _, err := c.Probe(testkit.Context(t)); err != nil {
		t.Errorf("the existing connection: %v", err)
	}
	stop()
	_, err := c.Probe(testkit.Context(t))
	if testkit.WantError(t, "the error", err, errs.Unavailable, endpoint); !errors.Is(err, client.ErrNotServed) {
		t.Errorf("%v", err)
	}
	overTLSAt(t, d, server, endpoint)
	patient := open(t, client.Target{Endpoint: endpoint, TLS: mine})
	if _, err := patient.Probe(testkit.Context(t)); err != nil {
		t.Error(err)
	}
	ctx := testkit.Context(t)
	for _, err = c.Probe(ctx); err != nil && ctx.Err() == nil; _, err = c.Probe(ctx) {
	}
	if err != nil {
		t.Error(err)
	}
}

// A driver can start during the call.
func TestPatience(t *testing.T) {
	f := testkit.NewAuthority(t, "a").Files(t, nil, "127.0.0.1")
	reserved := tcp(t, "127.0.0.1:0")
	endpoint := reserved.Addr().String()
	testkit.Must(t, reserved.Close())
	c := open(t, client.Target{Endpoint: endpoint, TLS: f, Patience: 20 * time.Second})
	answered := make(chan error, 1)
	go func() {
		_, err := c.Probe(testkit.Context(t))
		answered <- err
	}()
	select {
	case err := <-answered:
		t.Fatalf("before the server was started: %v", err)
	case <-time.After(100 * time.Millisecond):
	}
	overTLSAt(t, fencetest.NewDriver(), f, endpoint)
	if err := <-answered; err != nil {
		t.Error(err)
	}
}

func TestUnresponsiveServer(t *testing.T) {
	f := testkit.NewAuthority(t, "a").Files(t, nil, "127.0.0.1")
	l := tcp(t, "127.0.0.1:0")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(io.Discard, c); _ = c.Close() }()
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := open(t, client.Target{Endpoint: l.Addr().String(), TLS: f}).Probe(ctx)
	testkit.WantError(t, "the error", err, errs.Unavailable, l.Addr().String())
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
}

func leaveSocket(path string) error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	return l.Close()
}

func shut(t *testing.T) (path string) {
	t.Helper()
	path = t.TempDir() + "/shut.sock"
	l := testkit.Value(net.Listen("unix", path))(t)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() { _ = l.Close() })
	return path
}

package client_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/fencetest"
	"github.com/cleatproject/cleat/internal/mutualtls"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// soon is a patience for tests in which nobody will come.
const soon = 50 * time.Millisecond

func open(t *testing.T, target client.Target) *client.Client {
	t.Helper()
	c, err := client.Open(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// onSocket serves a driver on a UNIX socket.
func onSocket(t *testing.T, d *fencetest.Driver) (endpoint string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fence.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	d.Serve(t, l)
	return "unix://" + path
}

// overTLS serves a driver on a port of loopback.
func overTLS(t *testing.T, d *fencetest.Driver, f mutualtls.Files) (endpoint string, stop func()) {
	t.Helper()
	return overTLSAt(t, d, f, "127.0.0.1:0")
}

func overTLSAt(t *testing.T, d *fencetest.Driver, f mutualtls.Files, address string) (endpoint string, stop func()) {
	t.Helper()
	raw := tcp(t, address)
	l, err := mutualtls.Listener(raw, f, nil)
	if err != nil {
		t.Fatal(err)
	}
	return raw.Addr().String(), d.Serve(t, l)
}

func tcp(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func block(text string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(text)} }

// wants checks the kind of an error and that it says all these words.
func wants(t *testing.T, err error, kind errs.Kind, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) || errs.KindOf(err) != kind {
		t.Errorf("%v has the kind %q, want %q", err, errs.KindOf(err), kind)
	}
	for _, w := range words {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("%v, want an error with %q", err, w)
		}
	}
}

// bounded is a context for calls that must end by themselves.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

package client_test

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/internal/mutualtls"
)

// FuzzEndpoint: what is taken is the absolute path of a socket, without TLS, or
// a host and a port, with it. Nothing is both.
func FuzzEndpoint(f *testing.F) {
	for _, seed := range []string{"unix:///run/x.sock", "/run/x.sock", "storage-a:9070", "[2001:db8::7]:9070", "[fe80::1%eth0]:1", "a:b:1", "tcp://a:1", "unix:a:1", ":1", "a/b:1", "1:1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, endpoint string) {
		opens := func(files mutualtls.Files) bool {
			c, err := client.Open(client.Target{Endpoint: endpoint, TLS: files})
			if err != nil {
				if errs.KindOf(err) != errs.Invalid {
					t.Errorf("%q: %v is of another kind", endpoint, err)
				}
				return false
			}
			if err := c.Close(); err != nil {
				t.Errorf("%q: %v", endpoint, err)
			}
			return true
		}
		bare, secured := opens(mutualtls.Files{}), opens(mutualtls.Files{Cert: "/c", Key: "/k", CA: "/a"})
		if bare && (secured || !strings.HasPrefix(strings.TrimPrefix(strings.TrimPrefix(endpoint, "unix:"), "//"), "/")) {
			t.Errorf("%q is taken for a socket", endpoint)
		}
		if !secured {
			return
		}
		host, port, err := net.SplitHostPort(endpoint)
		n, numeric := strconv.Atoi(port)
		if err != nil || host == "" || numeric != nil || n < 1 || n > 65535 {
			t.Errorf("%q is taken for an address", endpoint)
		}
		if _, err := netip.ParseAddr(host); err != nil && strings.ContainsAny(host, "/:@% \n\x00") {
			t.Errorf("%q is taken for the name of a host", host)
		}
	})
}

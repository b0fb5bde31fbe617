package client

import (
	"context"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/mutualtls"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// Target is a driver's address and how to connect.
type Target struct {
	// unix:///run/cleat/fence/fence.sock, the path alone, or storage-a:9070.
	Endpoint string
	// Required for a remote driver, rejected for a UNIX socket.
	TLS mutualtls.Files
	// In the driver's certificate; default: the endpoint's host.
	ServerName string
	// How long a call retries to connect, as a driver can restart; zero is 3 s.
	Patience time.Duration
}

// Check validates a target with its files. The error is errs.Invalid.
func (t Target) Check() error {
	t, _, err := t.resolve()
	if err != nil || t.TLS.None() {
		return err
	}
	if _, err := mutualtls.Client(t.TLS, t.ServerName); err != nil {
		return errs.Errorf(errs.Invalid, "endpoint %s: %w", t.Endpoint, err)
	}
	return nil
}

func (t Target) resolve() (Target, rpcdial.Dialer, error) {
	if t.Patience == 0 {
		t.Patience = 3 * time.Second
	}
	if strings.HasPrefix(t.Endpoint, "/") || strings.HasPrefix(t.Endpoint, "unix:") || t.Endpoint == "" {
		path, err := unixsock.ParseEndpoint(t.Endpoint)
		if err != nil {
			return t, nil, errs.Errorf(errs.Invalid, "%w", err)
		}
		if !t.TLS.None() || t.ServerName != "" {
			return t, nil, errs.Errorf(errs.Invalid, "endpoint %s is a UNIX socket, which does not use TLS: remove the certificates, or specify a remote driver as HOST:PORT", t.Endpoint)
		}
		return t, func(ctx context.Context) (net.Conn, error) { return unixsock.Dial(ctx, path) }, nil
	}
	host, port, err := hostPort(t.Endpoint)
	if err != nil {
		return t, nil, err
	}
	if t.TLS.None() {
		return t, nil, errs.Errorf(errs.Invalid, "endpoint %s is remote and needs mutual TLS: specify a certificate, its private key and the CA", t.Endpoint)
	}
	if t.ServerName == "" {
		t.ServerName = host
	}
	address := net.JoinHostPort(host, port)
	return t, func(ctx context.Context) (net.Conn, error) {
		d := net.Dialer{Timeout: 5 * time.Second, KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 5 * time.Second, Count: 3}}
		return d.DialContext(ctx, "tcp", address)
	}, nil
}

// Examples: storage-a:9070, 192.0.2.7:9070, [2001:db8::7]:9070.
func hostPort(endpoint string) (host, port string, err error) {
	refuse := func(why string) (string, string, error) {
		return "", "", errs.Errorf(errs.Invalid, "endpoint %q: %s; write unix:///run/cleat/fence/fence.sock, or HOST:PORT such as storage-a:9070", endpoint, why)
	}
	if scheme, _, found := strings.Cut(endpoint, "://"); found {
		return refuse("unsupported scheme " + strconv.Quote(scheme))
	}
	if strings.Contains(endpoint, "/") {
		return refuse("it is a relative path or not an address")
	}
	host, port, err = net.SplitHostPort(endpoint)
	if err != nil {
		return refuse("it has no port, or is an IPv6 address without brackets")
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return refuse("its port is not a number from 1 to 65535")
	}
	if _, err := netip.ParseAddr(host); err != nil && !isHostName(host) {
		return refuse("its host is neither a name nor an IP address")
	}
	return host, port, nil
}

func isHostName(host string) bool {
	return len(host) <= 253 && regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?$`).MatchString(host)
}

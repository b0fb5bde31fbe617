package client

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/cleatproject/cleat/internal/mutualtls"
	"github.com/cleatproject/cleat/internal/rpcdial"
)

const (
	// In bytes; some hundred thousand CIDRs.
	maxResponse = 32 << 20
	// ackTimeout (TCP_USER_TIMEOUT) detects a server that lost power.
	ackTimeout = 20 * time.Second
	// pingInterval exceeds gRPC servers' minimum of 5 min; TCP_USER_TIMEOUT
	// detects losses earlier.
	pingInterval = 6 * time.Minute
)

func (c *Client) connect(dial rpcdial.Dialer) (*grpc.ClientConn, error) {
	transport, authority := insecure.NewCredentials(), "localhost"
	if !c.target.TLS.None() {
		transport, authority = &handshake{c.target.TLS, c.target.ServerName, &c.last}, c.target.Endpoint
	}
	return rpcdial.Over(
		func(ctx context.Context) (net.Conn, error) {
			conn, err := dial(ctx)
			if err != nil || c.target.TLS.None() { // with TLS the handshake can fail
				c.last.set(err)
			}
			return conn, err
		},
		grpc.WithTransportCredentials(transport),
		grpc.WithAuthority(authority),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingInterval, Timeout: ackTimeout}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)),
		rpcdial.Listening(),
	)
}

// failure is the last attempt's, until a call is answered: gRPC has it only in
// a text.
type failure struct {
	mu  sync.Mutex
	err error
}

func (f *failure) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

func (f *failure) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}

// handshake is mutual TLS's client side, which reads the files each time.
type handshake struct {
	files      mutualtls.Files
	serverName string
	last       *failure
}

func (h *handshake) ClientHandshake(ctx context.Context, _ string, raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	config, err := mutualtls.Client(h.files, h.serverName)
	if err != nil {
		h.last.set(err)
		return nil, nil, err
	}
	conn, info, err := credentials.NewTLS(config).ClientHandshake(ctx, h.serverName, raw)
	if err != nil {
		h.last.set(err)
		return nil, nil, err
	}
	return &alertConn{conn, h.last}, info, nil
}

func (h *handshake) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("not a server")
}

func (h *handshake) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (h *handshake) Clone() credentials.TransportCredentials {
	copied := *h
	return &copied
}

// OverrideServerName is deprecated: Open sets the name.
func (h *handshake) OverrideServerName(string) error {
	return errors.New("the server's name cannot be changed")
}

// alertConn records the alert of a server that rejects the client certificate:
// in TLS 1.3 it replaces the first response.
type alertConn struct {
	net.Conn
	last *failure
}

func (h *alertConn) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" {
		h.last.set(err)
	}
	return n, err
}

// Write can fail with the alert still unread.
func (h *alertConn) Write(b []byte) (int, error) {
	n, err := h.Conn.Write(b)
	if err != nil {
		_ = h.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = h.Read(make([]byte, 1)) // the connection has failed
	}
	return n, err
}

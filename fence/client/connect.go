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
	// largest answer, in bytes: a list of a hundred thousands of CIDRs.
	largest = 32 << 20
	// silence is how long a connection may leave what was sent without an
	// acknowledgement (TCP_USER_TIMEOUT) before it counts as lost: a machine
	// that lost power says no farewell.
	silence = 20 * time.Second
	// pingEvery is longer than what any server of gRPC takes for a nuisance,
	// which is 5 min; it is the kernel that finds out sooner.
	pingEvery = 6 * time.Minute
)

// connect makes the connection, which gRPC dials when it is used.
func (c *Client) connect(dial rpcdial.Dialer) (*grpc.ClientConn, error) {
	transport, authority := insecure.NewCredentials(), "localhost"
	if !c.target.TLS.None() {
		transport, authority = &handshake{c.target.TLS, c.target.ServerName, &c.last}, c.target.Endpoint
	}
	return rpcdial.Over(
		func(ctx context.Context) (net.Conn, error) {
			conn, err := dial(ctx)
			if err != nil || c.target.TLS.None() { // else it may be refused yet
				c.last.set(err)
			}
			return conn, err
		},
		grpc.WithTransportCredentials(transport),
		grpc.WithAuthority(authority),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: pingEvery, Timeout: silence}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest)),
		rpcdial.Listening(),
	)
}

// failure is why the last connection could not be made or was refused, until a
// call is answered. gRPC tells it only as a text of its own.
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

// handshake is the client's side of mutual TLS, with the files as they are at
// each one.
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
	return &heard{conn, h.last}, info, nil
}

func (h *handshake) ServerHandshake(net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return nil, nil, errors.New("this is the side of a client")
}

func (h *handshake) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

func (h *handshake) Clone() credentials.TransportCredentials {
	copied := *h
	return &copied
}

// OverrideServerName is a part of the interface that is on its way out; the
// name is settled when a Client is opened.
func (h *handshake) OverrideServerName(string) error {
	return errors.New("the server's name cannot be changed")
}

// heard keeps the alert of a server that does not want our certificate: in TLS
// 1.3 it comes after the handshake, in place of the first answer.
type heard struct {
	net.Conn
	last *failure
}

func (h *heard) Read(b []byte) (int, error) {
	n, err := h.Conn.Read(b)
	if alert, ok := errors.AsType[*net.OpError](err); ok && alert.Op == "remote error" {
		h.last.set(err)
	}
	return n, err
}

// Write of what is refused already fails by itself, with less to say; the alert
// lies there unread.
func (h *heard) Write(b []byte) (int, error) {
	n, err := h.Conn.Write(b)
	if err != nil {
		_ = h.SetReadDeadline(time.Now().Add(time.Second))
		_, _ = h.Read(make([]byte, 1)) // nothing is lost: this connection is
	}
	return n, err
}

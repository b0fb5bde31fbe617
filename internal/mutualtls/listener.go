package mutualtls

import (
	"crypto/tls"
	"errors"
	"net"
	"sync"
)

// Listener accepts only connections with a certificate of the authority. The
// handshake is made on the first read or write, so that a slow client does not
// block others; set deadlines before. refused, if set, is called with each
// failed handshake: the client gets only an alert.
func Listener(l net.Listener, f Files, refused func(client net.Addr, err error)) (net.Listener, error) {
	config, err := Server(f)
	if err != nil {
		return nil, err
	}
	if refused == nil {
		refused = func(net.Addr, error) {}
	}
	return &listener{Listener: l, config: config, refused: refused}, nil
}

type listener struct {
	net.Listener
	config  *tls.Config
	refused func(net.Addr, error)
}

func (l *listener) Accept() (net.Conn, error) {
	raw, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &conn{Conn: tls.Server(raw, l.config), refused: l.refused}, nil
}

// conn reports one failed handshake.
type conn struct {
	*tls.Conn
	refused func(net.Addr, error)
	once    sync.Once
}

func (c *conn) Read(b []byte) (int, error) {
	if err := c.shake(); err != nil {
		return 0, err
	}
	return c.Conn.Read(b)
}

func (c *conn) Write(b []byte) (int, error) {
	if err := c.shake(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

func (c *conn) shake() error {
	err := c.Handshake()
	if err != nil && !errors.Is(err, net.ErrClosed) { // not closed by this side
		c.once.Do(func() { c.refused(c.RemoteAddr(), err) })
	}
	return err
}

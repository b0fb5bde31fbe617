package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/cleatproject/cleat/test/vm/wire"
)

// idleConnections is the number of idle connections, and so of requests that can start
// without waiting for a new connection.
const idleConnections = 4

// server answers the host's requests.
type server struct {
	host  string
	hello wire.Hello
}

func newServer(host string, hello wire.Hello) *server { return &server{host: host, hello: hello} }

// run keeps the idle connections open; it does not return while the guest runs.
func (s *server) run() {
	var spare, requests sync.WaitGroup
	for range idleConnections {
		spare.Go(func() {
			for {
				conn := s.next()
				requests.Go(conn.answer)
			}
		})
	}
	spare.Wait()
	requests.Wait()
}

// session is a connection with its request.
type session struct {
	*net.TCPConn
	in      *bufio.Reader
	request wire.Request
	err     error // the request is invalid
}

// next dials the host until a request arrives.
func (s *server) next() *session {
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for ; ; <-tick.C {
		conn, err := net.DialTimeout("tcp", s.host, 10*time.Second)
		if err != nil {
			fmt.Println("agent: dial the host:", err)
			continue
		}
		tcp := conn.(*net.TCPConn)
		if err := wire.Write(tcp, s.hello); err != nil {
			tcp.Close()
			continue
		}
		in := bufio.NewReader(tcp)
		request, err := wire.ReadRequest(in)
		if errors.Is(err, io.EOF) || isNet(err) {
			tcp.Close()
			continue
		}
		return &session{TCPConn: tcp, in: in, request: request, err: err}
	}
}

func isNet(err error) bool {
	var network net.Error
	return errors.As(err, &network)
}

// answer executes the session's request and closes the connection.
func (s *session) answer() {
	defer s.Close()
	if s.err != nil {
		s.reply(wire.Reply{}, s.err)
		return
	}
	switch s.request.Op {
	case wire.OpExec:
		s.exec(*s.request.Exec)
	case wire.OpDial:
		s.dial(*s.request.Dial)
	case wire.OpPush:
		s.reply(wire.Reply{}, s.push(*s.request.Push))
	case wire.OpPull:
		s.pull(*s.request.Pull)
	case wire.OpHalt:
		s.reply(wire.Reply{}, nil)
		s.CloseWrite()
		halt()
	}
}

func (s *session) reply(reply wire.Reply, err error) {
	if err != nil {
		reply.Error = err.Error()
	}
	if err := wire.Write(s, reply); err != nil {
		fmt.Println("agent: reply:", err)
	}
}

// dial connects the session to a socket in the guest. Each direction is closed
// on its own.
func (s *session) dial(d wire.Dial) {
	conn, err := net.DialTimeout(d.Network, d.Address, 10*time.Second)
	if err != nil {
		s.reply(wire.Reply{}, err)
		return
	}
	defer conn.Close()
	s.reply(wire.Reply{}, nil)
	var both sync.WaitGroup
	both.Go(func() { pump(conn, s.in, s.TCPConn) })
	both.Go(func() { pump(s.TCPConn, conn, conn) })
	both.Wait()
}

// pump copies until EOF, then closes the write side of to. If a write fails, it
// closes the source too.
func pump(to io.Writer, from io.Reader, source io.Closer) {
	if _, err := io.Copy(to, from); err != nil {
		source.Close()
	}
	if half, ok := to.(interface{ CloseWrite() error }); ok {
		half.CloseWrite()
	}
}

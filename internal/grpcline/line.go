// Package grpcline makes unary gRPC calls over one connection, one after the
// other, in the goroutine of the caller; between calls the connection idles
// without any goroutine.
//
// It is for programs that talk to a thousand servers a little, not to one much:
// for two calls over a fresh connection a grpc.ClientConn takes a thousand
// allocations and about ten times the work, and as many goroutines as it is
// idle long. Framing and header compression are those of golang.org/x/net,
// which grpc-go uses too.
package grpcline

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

var (
	// ErrSilent: the server did not begin to speak HTTP/2 in time.
	ErrSilent = errors.New("nothing was said on the connection")
	// ErrForeign: what the server said first is not HTTP/2, or it said nothing
	// and ended the connection.
	ErrForeign = errors.New("the other end does not speak HTTP/2")
)

const (
	// MostText bounds a request, in bytes: it goes out whole, by the flow
	// control that a server begins with.
	MostText = 16 << 10
	// MostAnswer bounds an answer.
	MostAnswer = 256 << 10

	readBuffer  = 4 << 10
	headerBytes = 16 << 10 // of an answer
	frameBytes  = 16 << 10 // the largest that is allowed without asking for more
	ourWindow   = MostAnswer + frameBytes
)

// Line is one connection. Only one of its methods may run at a time.
type Line struct {
	raw   net.Conn
	fd    syscall.RawConn // nil unless it is a real connection
	ahead *ahead
	in    *bufio.Reader
	out   bytes.Buffer
	http  *http2.Framer
	enc   *hpack.Encoder
	head  bytes.Buffer

	greeting time.Duration
	greeted  bool   // by the server
	next     uint32 // stream
	window   uint32 // of a new stream, for what we send
	ended    error  // why no call is possible any more
}

// New takes a fresh connection over. The server may take so long until it
// begins to speak, which it has to do by itself.
func New(raw net.Conn, greeting time.Duration) *Line {
	l := &Line{raw: raw, ahead: &ahead{Reader: raw}, greeting: greeting, next: 1, window: 65535}
	l.in = bufio.NewReaderSize(l.ahead, readBuffer)
	if c, ok := raw.(syscall.Conn); ok {
		l.fd, _ = c.SyscallConn()
	}
	l.out.WriteString(http2.ClientPreface)
	l.http = http2.NewFramer(&l.out, l.in)
	l.http.SetReuseFrames()
	l.http.SetMaxReadFrameSize(frameBytes)
	l.http.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	l.http.MaxHeaderListSize = headerBytes
	l.enc = hpack.NewEncoder(&l.head)
	l.enc.SetMaxDynamicTableSizeLimit(0) // whatever the server's table holds
	// Writing to a buffer cannot fail.
	_ = l.http.WriteSettings(http2.Setting{ID: http2.SettingEnablePush, Val: 0}, http2.Setting{ID: http2.SettingInitialWindowSize, Val: ourWindow})
	_ = l.http.WriteWindowUpdate(0, ourWindow)
	return l
}

// Greet sends what a client has to say first, without waiting for an answer.
// Call does so too.
func (l *Line) Greet() error {
	_ = l.raw.SetDeadline(time.Now().Add(l.greeting))
	defer func() { _ = l.raw.SetDeadline(time.Time{}) }()
	return l.flush()
}

// Usable reports whether a call may be tried. It looks at what the server has
// said meanwhile, such as that it goes away.
func (l *Line) Usable() bool {
	return l.ended == nil && l.catchUp()
}

// Close ends the connection.
func (l *Line) Close() error { return l.raw.Close() }

// Call makes one call, within a time that begins when the server has greeted.
// The error is a gRPC status, or wraps ErrSilent or ErrForeign.
func (l *Line) Call(ctx context.Context, within time.Duration, method string, in, out proto.Message) error {
	if l.ended != nil {
		return status.Errorf(codes.Unavailable, "the connection has ended: %v", l.ended)
	}
	unhook := context.AfterFunc(ctx, func() { _ = l.raw.SetDeadline(time.Unix(1, 0)) })
	answer, err := l.call(within, method, in)
	if !unhook() || ctx.Err() != nil {
		l.ended = ctx.Err() // the deadline may still be about to be set
		return status.FromContextError(ctx.Err()).Err()
	}
	_ = l.raw.SetDeadline(time.Time{})
	if err != nil {
		return err
	}
	if err := proto.Unmarshal(answer, out); err != nil {
		return status.Errorf(codes.Internal, "the answer cannot be read: %v", err)
	}
	return nil
}

func (l *Line) call(within time.Duration, method string, in proto.Message) ([]byte, error) {
	r := reply{stream: l.next, due: time.Now().Add(within)}
	l.next += 2
	if err := l.request(r.stream, within, method, in); err != nil {
		return nil, err
	}
	bound := within
	if !l.greeted {
		bound = l.greeting
	}
	_ = l.raw.SetDeadline(time.Now().Add(bound))
	if err := l.flush(); err != nil {
		return nil, l.broken(err)
	}
	for !r.done {
		frame, err := l.http.ReadFrame()
		if err != nil {
			return nil, l.broken(err)
		}
		if !l.greeted {
			if _, ok := frame.(*http2.SettingsFrame); !ok {
				return nil, l.broken(fmt.Errorf("it began with a %s frame", frame.Header().Type))
			}
			l.greeted = true
			_ = l.raw.SetDeadline(time.Now().Add(within))
		}
		if err := l.take(frame, &r); err != nil {
			return nil, err
		}
	}
	if err := l.flush(); err != nil { // acknowledgements
		l.ended = err
	}
	return r.message()
}

// request puts a call into the buffer.
func (l *Line) request(stream uint32, within time.Duration, method string, in proto.Message) error {
	message, err := proto.MarshalOptions{}.MarshalAppend(make([]byte, prefix), in)
	switch {
	case err != nil:
		return status.Errorf(codes.Internal, "the request cannot be written: %v", err)
	case len(message) > MostText || len(message) > int(l.window):
		return status.Errorf(codes.ResourceExhausted, "a request of %d bytes; the connection takes %d", len(message), min(MostText, l.window))
	}
	putPrefix(message)
	l.head.Reset()
	for _, f := range [...]hpack.HeaderField{
		{Name: ":method", Value: "POST"},
		{Name: ":scheme", Value: "http"},
		{Name: ":path", Value: method},
		{Name: ":authority", Value: "localhost"},
		{Name: "content-type", Value: "application/grpc"},
		{Name: "te", Value: "trailers"},
		{Name: "user-agent", Value: "cleat"},
		{Name: "grpc-timeout", Value: fmt.Sprintf("%dm", max(within.Milliseconds(), 1))},
	} {
		_ = l.enc.WriteField(f) // to a buffer
	}
	if err := l.http.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: l.head.Bytes(), EndHeaders: true}); err != nil {
		return status.Errorf(codes.Internal, "the request cannot be written: %v", err)
	}
	if err := l.http.WriteData(stream, true, message); err != nil {
		return status.Errorf(codes.Internal, "the request cannot be written: %v", err)
	}
	return nil
}

func (l *Line) flush() error {
	if l.out.Len() == 0 {
		return nil
	}
	_, err := l.raw.Write(l.out.Bytes())
	l.out.Reset()
	return err
}

// broken makes an error of one that ended the connection.
func (l *Line) broken(err error) error {
	l.ended = err
	late := errors.Is(err, os.ErrDeadlineExceeded)
	switch {
	case !l.greeted && late:
		return fmt.Errorf("%w for %s: %w", ErrSilent, l.greeting, context.DeadlineExceeded)
	case !l.greeted:
		return fmt.Errorf("%w: %w", ErrForeign, err)
	case late:
		return status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error())
	case errors.Is(err, io.EOF):
		return status.Error(codes.Unavailable, "the server ended the connection")
	}
	return status.Errorf(codes.Unavailable, "the connection broke: %v", err)
}

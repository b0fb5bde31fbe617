package grpcline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// prefix is what stands before each message: a byte that says whether it is
// compressed, and its length.
const prefix = 5

func putPrefix(message []byte) {
	binary.BigEndian.PutUint32(message[1:], uint32(len(message)-prefix))
}

// reply is the answer to a call as far as it has come.
type reply struct {
	stream  uint32
	due     time.Time // by the server's clock at the earliest
	headers bool      // have come
	body    []byte
	status  *status.Status
	done    bool
}

// take takes in one frame. The errors that it returns end the call.
func (l *Line) take(frame http2.Frame, r *reply) error {
	switch f := frame.(type) {
	case *http2.GoAwayFrame:
		l.ended = errors.New("the server goes away")
		if f.LastStreamID < r.stream {
			return status.Errorf(codes.Unavailable, "the server goes away: %s", f.ErrCode)
		}
	case *http2.MetaHeadersFrame:
		if f.StreamID == r.stream {
			return l.takeHeaders(f, r)
		}
	case *http2.DataFrame:
		if f.StreamID != r.stream {
			return nil
		}
		if len(r.body)+len(f.Data()) > prefix+MostAnswer {
			l.ended = errors.New("an answer was too large")
			return status.Errorf(codes.ResourceExhausted, "the answer is larger than %d bytes", MostAnswer)
		}
		r.body = append(r.body, f.Data()...)
		if f.StreamEnded() {
			return l.fault("the answer ended without a status")
		}
	case *http2.RSTStreamFrame:
		if f.StreamID == r.stream && f.ErrCode == http2.ErrCodeCancel && !time.Now().Before(r.due) {
			return status.Error(codes.DeadlineExceeded, context.DeadlineExceeded.Error()) // the server's timer was first
		}
		if f.StreamID == r.stream {
			return status.Errorf(ofReset(f.ErrCode), "the server gave the call up: %s", f.ErrCode)
		}
	case *http2.PushPromiseFrame:
		return l.fault("the server pushes what nobody asked for")
	default:
		return l.housekeeping(frame)
	}
	return nil
}

// housekeeping takes in frames that are of no call.
func (l *Line) housekeeping(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if f.IsAck() {
			return nil
		}
		if window, ok := f.Value(http2.SettingInitialWindowSize); ok {
			l.window = min(window, 65535) // together with that of the connection
		}
		_ = l.http.WriteSettingsAck() // to a buffer
	case *http2.PingFrame:
		if f.IsAck() {
			return nil
		}
		_ = l.http.WritePing(true, f.Data)
		if err := l.flush(); err != nil {
			return l.broken(err)
		}
	}
	return nil
}

// fault is an error of the server's in the protocol.
func (l *Line) fault(what string) error {
	l.ended = errors.New(what)
	return status.Error(codes.Internal, what)
}

func (l *Line) takeHeaders(f *http2.MetaHeadersFrame, r *reply) error {
	if f.Truncated {
		return l.fault(fmt.Sprintf("the headers of the answer are larger than %d bytes", headerBytes))
	}
	if !r.headers {
		r.headers = true
		if http := f.PseudoValue("status"); http != "200" {
			l.ended = errors.New("the server is none of gRPC")
			return status.Errorf(ofHTTP(http), "the server answered with the HTTP status %q", http)
		}
		if kind := field(f, "content-type"); !strings.HasPrefix(kind, "application/grpc") {
			return l.fault(fmt.Sprintf("the answer has the content type %q", kind))
		}
	}
	if !f.StreamEnded() {
		return nil
	}
	r.done = true
	code, err := strconv.ParseUint(field(f, "grpc-status"), 10, 32)
	if err != nil {
		return l.fault("the answer ended without a status")
	}
	text := field(f, "grpc-message")
	if plain, err := url.PathUnescape(text); err == nil {
		text = plain
	}
	r.status = status.New(codes.Code(code), text)
	return nil
}

func field(f *http2.MetaHeadersFrame, name string) string {
	for _, h := range f.RegularFields() {
		if h.Name == name {
			return h.Value
		}
	}
	return ""
}

// message is the answer itself, once it has all come.
func (r *reply) message() ([]byte, error) {
	if r.status.Code() != codes.OK {
		return nil, r.status.Err()
	}
	switch {
	case len(r.body) < prefix || int(binary.BigEndian.Uint32(r.body[1:])) != len(r.body)-prefix:
		return nil, status.Error(codes.Internal, "the answer is not one message")
	case r.body[0] != 0:
		return nil, status.Error(codes.Internal, "the answer is compressed, and nobody asked for that")
	}
	return r.body[prefix:], nil
}

// ofHTTP and ofReset are the tables of the gRPC protocol, for servers that do
// not say it themselves.
func ofHTTP(http string) codes.Code {
	switch http {
	case "400":
		return codes.Internal
	case "401":
		return codes.Unauthenticated
	case "403":
		return codes.PermissionDenied
	case "404":
		return codes.Unimplemented
	case "429", "502", "503", "504":
		return codes.Unavailable
	}
	return codes.Unknown
}

func ofReset(code http2.ErrCode) codes.Code {
	switch code {
	case http2.ErrCodeRefusedStream:
		return codes.Unavailable
	case http2.ErrCodeCancel:
		return codes.Canceled
	case http2.ErrCodeEnhanceYourCalm:
		return codes.ResourceExhausted
	case http2.ErrCodeInadequateSecurity:
		return codes.PermissionDenied
	}
	return codes.Internal
}

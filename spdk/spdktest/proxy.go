package spdktest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"unicode/utf8"
)

// Proxy behaves like SPDK's scripts/rpc_http_proxy.py in front of a socket: it
// executes one request at a time and closes each connection. Responses are those
// of the socket; a socket without a process ends the HTTP connection without a
// response, as does a process that ends.
func Proxy(socket, user, password string) http.Handler {
	var serial sync.Mutex
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serial.Lock()
		defer serial.Unlock()
		w.Header().Set("Connection", "close")
		w.Header().Set("Content-Type", "text/html")
		if r.Method != http.MethodPost {
			w.WriteHeader(http.StatusNotImplemented)
			return
		}
		if u, p, given := r.BasicAuth(); !given || u != user || p != password {
			w.Header().Set("WWW-Authenticate", "text/html")
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		request, err := io.ReadAll(r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		answer, err := forward(r.Context(), socket, request)
		switch {
		case err != nil:
			panic(http.ErrAbortHandler) // the script's exceptions, and requests without an id, end the connection
		case answer == nil:
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		_, _ = w.Write(answer) // the client can have disconnected
	})
}

// errNoResponse: the script does not wait for a response to a request without an
// id, and sends none.
var errNoResponse = errors.New("the request has no id")

// forward returns nil for what the script answers with status 500. It notices
// that only after it has sent the request.
func forward(ctx context.Context, socket string, request []byte) ([]byte, error) {
	c, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	if _, err := c.Write(request); err != nil {
		return nil, err
	}
	var members struct{ ID json.RawMessage }
	if json.Unmarshal(request, &members) == nil && members.ID == nil {
		return nil, errNoResponse
	}
	if bytes.IndexFunc(request, func(r rune) bool { return r >= utf8.RuneSelf }) >= 0 || !json.Valid(request) {
		return nil, nil
	}
	var answer json.RawMessage
	switch err := json.NewDecoder(c).Decode(&answer); err {
	case nil:
		return answer, nil
	case io.EOF:
		return []byte{}, nil
	case io.ErrUnexpectedEOF:
		return nil, nil
	default:
		return nil, err
	}
}

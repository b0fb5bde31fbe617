package testkit

import (
	"context"
	"io"
	"net"
	"net/http"
)

// Page requests a page of an HTTP server, such as /metrics, on a connection of
// its own, and returns the status code and the body.
func Page(ctx context.Context, dial func(context.Context) (net.Conn, error), method, path string) (code int, body string, err error) {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) }}
	request, err := http.NewRequestWithContext(ctx, method, "http://cleat"+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// UNIX dials a UNIX socket, for Page.
func UNIX(socket string) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return new(net.Dialer).DialContext(ctx, "unix", socket) }
}

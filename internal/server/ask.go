package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// maxAnswer bounds what Ask reads, in bytes.
const maxAnswer = 16 << 20

// Ask gets a JSON document, as /status or /readyz, from a Telemetry at an address
// as Listen takes it. That /readyz says no is no error.
func Ask(ctx context.Context, address, path string, answer any) error {
	socket, isSocket, err := socketPath(address)
	if err != nil {
		return err
	}
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		if isSocket {
			return unixsock.Dial(ctx, socket)
		}
		return (&net.Dialer{}).DialContext(ctx, "tcp", address)
	}
	transport := &http.Transport{DialContext: dial, DisableKeepAlives: true}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://cleat"+path, nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("read %s from %s: %w", path, address, err)
	}
	if err := json.Unmarshal(body, answer); err != nil {
		return fmt.Errorf("%s of %s answered %s with what is no such document: %w", path, address, response.Status, err)
	}
	return nil
}

package instance

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// CheckEndpoint accepts what the kubelet's handlers could dial: the plain,
// absolute path of a UNIX socket. To them, unix:///run/x.sock is a file with
// that name.
func CheckEndpoint(endpoint string) error {
	scheme, path, found := strings.Cut(endpoint, "://")
	switch {
	case endpoint == "":
		return errors.New("the endpoint is empty; announce the absolute path of the plugin's socket, as the host sees it")
	case found && !strings.Contains(scheme, "/"):
		if scheme == "unix" && strings.HasPrefix(path, "/") {
			return fmt.Errorf("endpoint %q: the kubelet uses the endpoint as a path and would look for a file with that whole name; announce %q", endpoint, path)
		}
		return fmt.Errorf("endpoint %q: only UNIX sockets can be dialled; announce the plain path of one", endpoint)
	case strings.HasPrefix(endpoint, "unix:/"):
		return fmt.Errorf("endpoint %q: the endpoint must be a plain path; announce %q", endpoint, strings.TrimPrefix(endpoint, "unix:"))
	case !filepath.IsAbs(endpoint):
		return fmt.Errorf("endpoint %q is a relative path; announce the absolute path of the socket, as the host sees it", endpoint)
	case strings.ContainsRune(endpoint, 0):
		return fmt.Errorf("endpoint %q contains a NUL byte, which is not possible in a path", endpoint)
	case strings.HasSuffix(endpoint, "/"):
		return fmt.Errorf("endpoint %q names a directory; announce the socket itself", endpoint)
	}
	return nil
}

// Connect succeeds if a process listens.
func Connect(ctx context.Context, path string) error {
	c, err := unixsock.Dial(ctx, path)
	if err != nil {
		return err
	}
	return c.Close()
}

// Client returns a connection that is established on demand. Calls fail at once
// while no process listens.
func Client(path string) (*grpc.ClientConn, error) {
	conn, err := rpcdial.Unix(path)
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", path, err)
	}
	return conn, nil
}

// Explain adds endpoint, RPC, and the status code's usual cause.
func Explain(path, call string, err error) error {
	hint := ""
	switch status.Code(err) {
	case codes.Unimplemented:
		hint = " (another server listens there, or the plugin does not implement this RPC)"
	case codes.DeadlineExceeded:
		hint = " (the plugin did not answer in time)"
	case codes.Unavailable:
		hint = " (no process serves the endpoint, or the server exited during the call)"
	}
	return fmt.Errorf("%s at %s%s: %w", call, path, hint, err)
}

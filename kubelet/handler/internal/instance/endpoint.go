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

// CheckEndpoint returns nil for what the handlers of a kubelet could dial: the
// bare, absolute path of a UNIX socket. They use the endpoint as a path, so
// unix:///run/x.sock means a file of that name.
func CheckEndpoint(endpoint string) error {
	scheme, path, found := strings.Cut(endpoint, "://")
	switch {
	case endpoint == "":
		return errors.New("the endpoint is empty; announce the absolute path of the plugin's socket, as the host sees it")
	case found && !strings.Contains(scheme, "/"):
		if scheme == "unix" && strings.HasPrefix(path, "/") {
			return fmt.Errorf("endpoint %q: a plugin announces a bare path, since the kubelet takes the endpoint as one and would look for a file with that whole name; announce %q", endpoint, path)
		}
		return fmt.Errorf("endpoint %q: a plugin announces the bare path of a UNIX socket, and nothing else can be dialled", endpoint)
	case strings.HasPrefix(endpoint, "unix:/"):
		return fmt.Errorf("endpoint %q: a plugin announces a bare path; announce %q", endpoint, strings.TrimPrefix(endpoint, "unix:"))
	case !filepath.IsAbs(endpoint):
		return fmt.Errorf("endpoint %q is a relative path; announce the absolute path of the socket, as the host sees it", endpoint)
	case strings.ContainsRune(endpoint, 0):
		return fmt.Errorf("endpoint %q holds a NUL, which no path may", endpoint)
	case strings.HasSuffix(endpoint, "/"):
		return fmt.Errorf("endpoint %q names a directory; announce the socket itself", endpoint)
	}
	return nil
}

// Connect returns an error unless a process listens at the path.
func Connect(ctx context.Context, path string) error {
	c, err := unixsock.Dial(ctx, path)
	if err != nil {
		return err
	}
	return c.Close()
}

// Client returns a connection that is made with the first call, and again
// after it broke. A call on it fails at once while no process listens.
func Client(path string) (*grpc.ClientConn, error) {
	conn, err := rpcdial.Unix(path)
	if err != nil {
		return nil, fmt.Errorf("endpoint %s: %w", path, err)
	}
	return conn, nil
}

// Explain wraps the error of a call with the endpoint, the call and what the
// code usually means.
func Explain(path, call string, err error) error {
	hint := ""
	switch status.Code(err) {
	case codes.Unimplemented:
		hint = " (something else listens there, or a plugin without this call)"
	case codes.DeadlineExceeded:
		hint = " (the plugin did not answer in time)"
	case codes.Unavailable:
		hint = " (nobody serves the endpoint, or its server went away during the call)"
	}
	return fmt.Errorf("%s at %s%s: %w", call, path, hint, err)
}

package unixsock

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// ParseEndpoint accepts unix:///run/x.sock, unix:/run/x.sock or /run/x.sock. It
// refuses relative paths, which depend on the working directory, and other
// networks.
func ParseEndpoint(endpoint string) (path string, err error) {
	scheme, rest, found := strings.Cut(endpoint, ":")
	switch {
	case endpoint == "":
		return "", errors.New("the endpoint is empty: use for example unix:///run/cleat/csi/csi.sock")
	case strings.HasPrefix(endpoint, "/"):
		path = endpoint
	case !found || strings.Contains(scheme, "/"):
		return "", fmt.Errorf("endpoint %q is a relative path: use unix:// with an absolute path", endpoint)
	case scheme != "unix":
		return "", fmt.Errorf("endpoint %q is not a UNIX socket, for example unix:///run/cleat/csi/csi.sock", endpoint)
	case strings.HasPrefix(rest, "//") && !strings.HasPrefix(rest, "///"):
		return "", fmt.Errorf("endpoint %q has a relative path: use three slashes, unix:///%s", endpoint, strings.TrimLeft(rest, "/"))
	default:
		path = strings.TrimPrefix(rest, "//")
	}
	if err := checkPath(path); err != nil {
		return "", fmt.Errorf("endpoint %q: %w", endpoint, err)
	}
	return path, nil
}

func checkPath(path string) error {
	switch {
	case !filepath.IsAbs(path):
		return fmt.Errorf("the path %q is not absolute", path)
	case strings.ContainsRune(path, 0):
		return fmt.Errorf("the path %q contains a NUL", path)
	case path == "/" || strings.HasSuffix(path, "/"):
		return fmt.Errorf("the path %q names a directory, not a socket", path)
	case filepath.Clean(path) != path:
		return fmt.Errorf("the path %q is not clean: use %q", path, filepath.Clean(path))
	}
	return nil
}

// Dial also connects to paths beyond the kernel's limit of 107 bytes.
func Dial(ctx context.Context, path string) (net.Conn, error) {
	c, err := dial(ctx, path)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", path, err)
	}
	return c, nil
}

// dial returns EAGAIN if the server's queue stays full.
func dial(ctx context.Context, path string) (net.Conn, error) {
	if len(path) > MaxPath {
		dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return nil, err
		}
		defer func() { _ = dir.Close() }()
		base := filepath.Base(path)
		if path = short(dir, base); len(path) > MaxPath {
			return nil, fmt.Errorf("%w: its last element has %d bytes", ErrTooLong, len(base))
		}
	}
	d := net.Dialer{Timeout: 5 * time.Second}
	return d.DialContext(ctx, "unix", path)
}

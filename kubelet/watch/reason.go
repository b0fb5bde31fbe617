package watch

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/grpcline"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// The functions here say what a failure usually means, and what to do.

func noHandler(kind string, handled []string) string {
	switch {
	case len(handled) == 0:
		return "this host handles no type of plugins yet"
	case kind == "":
		return "the plugin announces no type; this host handles " + strings.Join(handled, ", ")
	}
	return fmt.Sprintf("this host handles %s; the type is compared letter by letter", strings.Join(handled, ", "))
}

// ofDial: the socket could not be connected to.
func ofDial(err error) string {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "nobody listens on the socket: a plugin that ended left it behind, or one that starts does not listen yet; a plugin that starts again must remove it and make its own"
	case errors.Is(err, unix.EAGAIN):
		return "the socket's queue is full: a process listens and does not accept"
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("connecting needs write permission on the socket and search permission on the directories above it; this host runs as user %d", os.Geteuid())
	case errors.Is(err, unix.EPROTOTYPE):
		return "the socket is not a stream socket; registration speaks gRPC over a stream"
	case errors.Is(err, unixsock.ErrTooLong):
		return "the socket's own name alone is longer than a connect can name; give it a shorter one"
	case errors.Is(err, fs.ErrNotExist):
		return "the socket has just been removed"
	}
	return "the socket cannot be connected to"
}

// ofSpeech: a connection was made, and no HTTP/2 came of it.
func ofSpeech(err error, patience time.Duration) string {
	if errors.Is(err, grpcline.ErrSilent) {
		return fmt.Sprintf("somebody listens on the socket and said nothing for %s: the process hangs, is stopped, or does not speak gRPC there", patience)
	}
	return "somebody listens on the socket and does not speak gRPC, or ended the connection"
}

// ofGetInfo: the plugin was asked who it is.
func ofGetInfo(err error, patience time.Duration) string {
	switch status.Code(err) {
	case codes.Unimplemented:
		return "a gRPC server without the service pluginregistration.Registration: is it the plugin's own socket, such as csi.sock, that lies in the directory for registration?"
	case codes.DeadlineExceeded:
		return fmt.Sprintf("the plugin speaks gRPC and did not answer GetInfo within %s", patience)
	case codes.ResourceExhausted:
		return fmt.Sprintf("the answer to GetInfo may have %d KiB", grpcline.MostAnswer>>10)
	case codes.Unavailable:
		return "the plugin ended the connection while it was asked"
	}
	return "the plugin itself answered GetInfo with this error"
}

// ofHandler: a call of the handler failed.
func ofHandler(step Phase, err error, p Plugin, patience time.Duration) string {
	if errors.Is(err, errPanic) {
		return "a bug in the handler of " + p.Type + ": the log has the stack"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("the handler of %s was cut off, or gave up, in a call that may take %s", p.Type, patience)
	}
	if step == DeRegistering {
		return "the handler of " + p.Type + " could not let go of the plugin and is asked again"
	}
	if wrong := wrongEndpoint(p.Endpoint); wrong != "" {
		return wrong
	}
	if errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), unix.ENOENT.Error()) {
		return fmt.Sprintf("the plugin announces the endpoint %s; if nothing is there: the path must be the one that this host sees, not that in the plugin's container", p.Endpoint)
	}
	return fmt.Sprintf("the handler of %s refused the plugin", p.Type)
}

// wrongEndpoint says what is wrong with an endpoint at first sight.
func wrongEndpoint(endpoint string) string {
	_, rest, scheme := strings.Cut(endpoint, "://")
	switch {
	case scheme:
		return fmt.Sprintf("the plugin announces the endpoint %q; it must be a path without a scheme, such as %s", endpoint, "/"+strings.TrimLeft(rest, "/"))
	case !strings.HasPrefix(endpoint, "/"):
		return fmt.Sprintf("the plugin announces the endpoint %q; it must be an absolute path, as this host sees it", endpoint)
	case len(endpoint) > 107:
		return fmt.Sprintf("the plugin announces an endpoint of %d bytes; a socket can be connected to by a path of 107 at most", len(endpoint))
	}
	return ""
}

// ofNotify: the plugin did not take note that it is registered.
func ofNotify(err error, patience time.Duration) string {
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return fmt.Sprintf("the plugin did not answer NotifyRegistrationStatus within %s, so it is not in use", patience)
	case codes.Unavailable:
		return "the plugin ended before it was told that it is registered"
	case codes.Unimplemented:
		return "the plugin does not serve NotifyRegistrationStatus"
	}
	return "the plugin answered NotifyRegistrationStatus with this error, so it is not in use"
}

const ofDeath = "the file of the socket is there and nobody listens on it any more: the plugin ended without removing it"

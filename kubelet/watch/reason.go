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

	"github.com/cleatproject/cleat/internal/unixsock"
)

// The usual causes of failures, and what to do.

func noHandlerReason(kind string, handled []string) string {
	switch {
	case len(handled) == 0:
		return "this host has no handlers yet"
	case kind == "":
		return "the plugin announces no type; this host handles " + strings.Join(handled, ", ")
	}
	return fmt.Sprintf("this host handles %s; types are case-sensitive", strings.Join(handled, ", "))
}

func dialReason(err error) string {
	switch {
	case errors.Is(err, unix.ECONNREFUSED):
		return "no process listens on the socket: it is left over from a plugin that ended, or a starting plugin does not listen yet. A plugin that restarts must remove the old socket and create its own"
	case errors.Is(err, unix.EAGAIN):
		return "the socket's backlog is full: a process listens and does not accept connections"
	case errors.Is(err, fs.ErrPermission):
		return fmt.Sprintf("connecting requires write permission on the socket and search permission on its parent directories; this host runs as user %d", os.Geteuid())
	case errors.Is(err, unix.EPROTOTYPE):
		return "the socket is not a stream socket; registration uses gRPC over a stream socket"
	case errors.Is(err, unixsock.ErrTooLong):
		return "the file name of the socket is too long for connect(2); use a shorter one"
	case errors.Is(err, fs.ErrNotExist):
		return "the socket has just been removed"
	}
	return "the socket cannot be connected to"
}

func getInfoFailure(err error, timeouts Timeouts) failure {
	f := failure{step: Asking, text: err.Error()}
	switch {
	case isType[dialError](err):
		f.reason = dialReason(err)
	case isType[peerError](err):
		f.reason = "this host accepts only plugins of certain processes"
	case errors.Is(err, errSilent):
		f.reason = fmt.Sprintf("the process that listens on the socket sent nothing for %s: it hangs, is stopped, or does not serve gRPC there", timeouts.Dial)
	case errors.Is(err, errForeign):
		f.reason = "the process that listens on the socket does not serve gRPC, or closed the connection"
	default:
		f.text, f.reason = "GetInfo: "+f.text, getInfoReason(err, timeouts.GetInfo)
	}
	return f
}

func isType[E error](err error) bool { _, is := errors.AsType[E](err); return is }

func getInfoReason(err error, timeout time.Duration) string {
	switch status.Code(err) {
	case codes.Unimplemented:
		return "the gRPC server does not implement pluginregistration.Registration: check whether the plugin's own socket, such as csi.sock, is in the registration directory"
	case codes.DeadlineExceeded:
		return fmt.Sprintf("the plugin serves gRPC, but did not answer GetInfo within %s", timeout)
	case codes.ResourceExhausted:
		return fmt.Sprintf("the answer to GetInfo is larger than %d KiB", maxAnswer>>10)
	case codes.Unavailable:
		return "the plugin closed the connection during GetInfo"
	}
	return "the plugin itself answered GetInfo with this error"
}

func handlerReason(step Phase, err error, p Plugin, timeout time.Duration) string {
	if errors.Is(err, errPanic) {
		return "a bug in the handler for " + p.Type + "; the log contains the stack"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("the call of the handler for %s timed out; its limit is %s", p.Type, timeout)
	}
	if step == DeRegistering {
		return "the handler for " + p.Type + " failed to deregister the plugin; the call is retried"
	}
	if wrong := wrongEndpoint(p.Endpoint); wrong != "" {
		return wrong
	}
	if errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), unix.ENOENT.Error()) {
		return fmt.Sprintf("the plugin announces the endpoint %s; if it does not exist: announce the path on this host, not the path in the plugin's container", p.Endpoint)
	}
	return fmt.Sprintf("the handler for %s refused the plugin", p.Type)
}

// wrongEndpoint explains an obviously invalid endpoint.
func wrongEndpoint(endpoint string) string {
	_, rest, scheme := strings.Cut(endpoint, "://")
	switch {
	case scheme:
		return fmt.Sprintf("the plugin announces the endpoint %q; it must be a path without a scheme, such as %s", endpoint, "/"+strings.TrimLeft(rest, "/"))
	case !strings.HasPrefix(endpoint, "/"):
		return fmt.Sprintf("the plugin announces the endpoint %q; it must be an absolute path, as this host sees it", endpoint)
	case len(endpoint) > 107:
		return fmt.Sprintf("the plugin announces an endpoint of %d bytes; the path of a socket is limited to 107 bytes", len(endpoint))
	}
	return ""
}

func notifyReason(err error, timeout time.Duration) string {
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return fmt.Sprintf("the plugin did not answer NotifyRegistrationStatus within %s, so it is not registered", timeout)
	case codes.Unavailable:
		return "the plugin exited before it was notified"
	case codes.Unimplemented:
		return "the plugin does not serve NotifyRegistrationStatus"
	}
	return "the plugin answered NotifyRegistrationStatus with this error, so it is not registered"
}

const deadReason = "the socket file exists, but no process listens on it any more: the plugin ended without removing it"

const endpointReason = "no process serves the endpoint %s: the plugin's registrar runs and the plugin itself does not; start the plugin again"

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

// The functions here say what a failure usually means, and what to do.

func noHandlerReason(kind string, handled []string) string {
	switch {
	case len(handled) == 0:
		return "this host handles no type of plugins yet"
	case kind == "":
		return "the plugin announces no type; this host handles " + strings.Join(handled, ", ")
	}
	return fmt.Sprintf("this host handles %s; the type is compared letter by letter", strings.Join(handled, ", "))
}

// dialReason: the socket could not be connected to.
func dialReason(err error) string {
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

// askFailure: the plugin could not be connected to, or failed GetInfo.
func askFailure(err error, timeouts Timeouts) failure {
	f := failure{step: Asking, text: err.Error()}
	switch {
	case isType[dialError](err):
		f.reason = dialReason(err)
	case isType[peerError](err):
		f.reason = "this host is set to take plugins of certain processes only"
	case errors.Is(err, errSilent):
		f.reason = fmt.Sprintf("somebody listens on the socket and said nothing for %s: the process hangs, is stopped, or does not speak gRPC there", timeouts.Dial)
	case errors.Is(err, errForeign):
		f.reason = "somebody listens on the socket and does not speak gRPC, or ended the connection"
	default:
		f.text, f.reason = "GetInfo: "+f.text, getInfoReason(err, timeouts.GetInfo)
	}
	return f
}

func isType[E error](err error) bool { _, is := errors.AsType[E](err); return is }

func getInfoReason(err error, timeout time.Duration) string {
	switch status.Code(err) {
	case codes.Unimplemented:
		return "a gRPC server without the service pluginregistration.Registration: is it the plugin's own socket, such as csi.sock, that lies in the directory for registration?"
	case codes.DeadlineExceeded:
		return fmt.Sprintf("the plugin speaks gRPC and did not answer GetInfo within %s", timeout)
	case codes.ResourceExhausted:
		return fmt.Sprintf("the answer to GetInfo may have %d KiB", maxAnswer>>10)
	case codes.Unavailable:
		return "the plugin ended the connection while it was asked"
	}
	return "the plugin itself answered GetInfo with this error"
}

// handlerReason: a call of the handler failed.
func handlerReason(step Phase, err error, p Plugin, timeout time.Duration) string {
	if errors.Is(err, errPanic) {
		return "a bug in the handler of " + p.Type + ": the log has the stack"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Sprintf("the handler of %s was cut off, or gave up, in a call that may take %s", p.Type, timeout)
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

// notifyReason: the plugin was not notified.
func notifyReason(err error, timeout time.Duration) string {
	switch status.Code(err) {
	case codes.DeadlineExceeded:
		return fmt.Sprintf("the plugin did not answer NotifyRegistrationStatus within %s, so it is not in use", timeout)
	case codes.Unavailable:
		return "the plugin ended before it was notified"
	case codes.Unimplemented:
		return "the plugin does not serve NotifyRegistrationStatus"
	}
	return "the plugin answered NotifyRegistrationStatus with this error, so it is not in use"
}

const deadReason = "the file of the socket is there and nobody listens on it any more: the plugin ended without removing it"

package watch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/cleatproject/cleat/internal/grpcline"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// dial connects to a plugin's socket, if the process behind it is welcome.
func dial(ctx context.Context, path string, peer func(Peer) error) (net.Conn, error) {
	raw, err := unixsock.Dial(ctx, path)
	if err != nil {
		return nil, dialError{err}
	}
	if peer == nil {
		return raw, nil
	}
	who, err := unixsock.PeerCredentials(raw)
	if err == nil {
		err = peer(Peer(who))
	}
	if err != nil {
		return nil, peerError{fmt.Errorf("the process that serves the socket is refused: %w", errors.Join(err, raw.Close()))}
	}
	return raw, nil
}

// dialError is a failure before anything was said.
type dialError struct{ error }

func (e dialError) Unwrap() error { return e.error }

// peerError is a refusal by Options.Peer.
type peerError struct{ error }

func (e peerError) Unwrap() error { return e.error }

// retryable: somebody may listen in a moment.
func retryable(err error) bool {
	return errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EAGAIN)
}

// getInfo asks the plugin who it is.
func getInfo(ctx context.Context, line *grpcline.Line, within time.Duration) (Plugin, error) {
	var info registration.PluginInfo
	if err := line.Call(ctx, within, registration.Registration_GetInfo_FullMethodName, &registration.InfoRequest{}, &info); err != nil {
		return Plugin{}, err
	}
	return Plugin{Type: info.GetType(), Name: info.GetName(), Endpoint: info.GetEndpoint(), Versions: info.GetSupportedVersions()}, nil
}

// notify tells the plugin that it was registered, or why not.
func notify(ctx context.Context, line *grpcline.Line, within time.Duration, why string) error {
	told := &registration.RegistrationStatus{PluginRegistered: why == "", Error: sendable(why)}
	return line.Call(ctx, within, registration.Registration_NotifyRegistrationStatus_FullMethodName, told, &registration.RegistrationStatusResponse{})
}

// sendable is a text that fits into a request; an error may hold anything.
func sendable(text string) string {
	const most = grpcline.MostText / 2
	text = strings.ToValidUTF8(text, string(utf8.RuneError))
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "…"
}

// lookIn connects to a registered plugin's socket to see whether it lives.
func lookIn(ctx context.Context, path string) (*grpcline.Idle, liveness, failure) {
	const bound = time.Second
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	raw, err := unixsock.Dial(ctx, path)
	if err == nil {
		line := grpcline.New(raw, bound)
		if err = line.Greet(); err != nil {
			err = errors.Join(err, line.Close())
		}
		var idle *grpcline.Idle
		if err == nil {
			if idle, err = line.Rest(); err == nil {
				return idle, alive, failure{}
			}
		}
	}
	f := failure{step: Registered, text: err.Error(), reason: ofDeath}
	if errors.Is(err, unix.ECONNREFUSED) {
		return nil, dead, f
	}
	return nil, unsure, f // no permission, a full queue, the file just gone
}

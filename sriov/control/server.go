package control

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	controlv1 "github.com/cleatproject/cleat/api/sriovdp/control/v1"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/sriov/gate"
)

// Plugin is the device plugin that a Server serves. Its methods are called
// concurrently. An *End is returned to the client unchanged, a context error
// with the context's code, any other error as Internal.
type Plugin interface {
	// Enable holds the devices with a claim until the plugin ends the stream
	// with an *End, ctx ends, or send fails. It calls send with the newest
	// status when the claim is accepted and after each change. Session is
	// unique.
	Enable(ctx context.Context, session string, c gate.Claim, send func(gate.Status) error) error
	// Disable withdraws the devices and waits for the result. An empty session
	// means any holder. A result with a Code other than OK is an answer, not an
	// error.
	Disable(ctx context.Context, session string) (gate.DisableReply, error)
	// Heartbeat renews a lease from the time of the call, and returns its
	// duration.
	Heartbeat(ctx context.Context, session string, at time.Time) (lease time.Duration, err error)
	// Status returns the status without blocking. The caller must not change
	// it.
	Status() gate.Status
}

// End is the end of a stream or the refusal of a call, as defined by the
// contract. Code OK ends a stream after DisableDevices.
type End struct {
	Code   codes.Code
	Reason string
}

func (e *End) Error() string { return fmt.Sprintf("%s (%s)", e.Reason, e.Code) }

// Extensions is the version of cleat's extensions to the proposed contract.
const Extensions = 1

// ServerConfig configures a Server.
type ServerConfig struct {
	Plugin  Plugin
	Version string // returned by GetVersion
	Logger  *slog.Logger
}

// Server implements the service of the control socket. The listener decides
// which clients can connect.
type Server struct {
	controlv1.UnimplementedControlServiceServer
	config ServerConfig
}

// NewServer returns a Server. ServerConfig.Plugin is required.
func NewServer(c ServerConfig) *Server {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return &Server{config: c}
}

// Register adds the service to a server.
func (s *Server) Register(r grpc.ServiceRegistrar) { controlv1.RegisterControlServiceServer(r, s) }

// Code returns the gRPC code of a Server's error, for server.GRPCConfig.
func Code(err error) codes.Code {
	if end, isEnd := errors.AsType[*End](err); isEnd && end.Code != codes.OK {
		return end.Code
	}
	if c := status.FromContextError(err).Code(); c != codes.Unknown {
		return c // OK for nil
	}
	return codes.Internal
}

// Quiet reports whether a method is called periodically, for server.GRPCConfig.
func Quiet(method string) bool {
	return method == controlv1.ControlService_Heartbeat_FullMethodName || server.QuietMethod(method)
}

// EnableDevices holds the devices while its stream is open. A slow client skips
// statuses and gets the newest one, after up to 128 KiB of buffered older ones.
func (s *Server) EnableDevices(r *controlv1.EnableDevicesRequest, out grpc.ServerStreamingServer[controlv1.DevicePluginStatus]) error {
	claim, err := claimOf(r)
	if err != nil {
		return endStatus(err)
	}
	ctx := out.Context()
	if err := ctx.Err(); err != nil {
		return err // a client that has disconnected cannot hold the devices
	}
	session, accepted := rand.Text(), false
	err = s.config.Plugin.Enable(ctx, session, claim, func(now gate.Status) error {
		if !accepted {
			accepted = true
			s.config.Logger.InfoContext(ctx, "config daemon enabled the devices", "node", claim.Node, "generation", claim.Generation,
				"uid", claim.UID, "config_hash", claim.Hash, "lease", claim.Lease, "hold", claim.Hold)
		}
		return out.Send(messageOf(now, session))
	})
	if end, isEnd := errors.AsType[*End](err); isEnd && end.Code == codes.OK {
		return nil
	}
	return endStatus(err)
}

// DisableDevices withdraws the devices.
func (s *Server) DisableDevices(ctx context.Context, r *controlv1.DisableDevicesRequest) (*controlv1.DisableDevicesResponse, error) {
	if err := checkSession(r.GetSession(), false); err != nil {
		return nil, endStatus(err)
	}
	done, err := s.config.Plugin.Disable(ctx, r.GetSession())
	if err == nil && done.Code != codes.OK {
		err = &End{Code: done.Code, Reason: done.Reason}
	}
	if err != nil {
		return nil, endStatus(err)
	}
	return disableResponseOf(done), nil
}

// Heartbeat renews a lease from the time at which the call arrived.
func (s *Server) Heartbeat(ctx context.Context, r *controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
	at := time.Now()
	if err := checkSession(r.GetSession(), true); err != nil {
		return nil, endStatus(err)
	}
	lease, err := s.config.Plugin.Heartbeat(ctx, r.GetSession(), at)
	if err != nil {
		return nil, endStatus(err)
	}
	return &controlv1.HeartbeatResponse{LeaseDuration: durationpb.New(lease)}, nil
}

// GetStatus returns the status of the plugin.
func (s *Server) GetStatus(context.Context, *controlv1.GetStatusRequest) (*controlv1.DevicePluginStatus, error) {
	return messageOf(s.config.Plugin.Status(), ""), nil
}

// GetVersion returns the name and version of the server.
func (s *Server) GetVersion(context.Context, *controlv1.GetVersionRequest) (*controlv1.GetVersionResponse, error) {
	return &controlv1.GetVersionResponse{Name: "cleat", Version: s.config.Version, Extensions: Extensions}, nil
}

// endStatus converts an *End to its gRPC status, without wrapping errors.
func endStatus(err error) error {
	if end, isEnd := errors.AsType[*End](err); isEnd && end.Code != codes.OK {
		return status.Error(end.Code, text(end.Reason))
	}
	return err
}

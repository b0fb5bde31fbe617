package control

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
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

// Plugin is the device plugin of a Server; calls are concurrent. A *gate.End
// reaches the client unchanged, a context error with its code, any other as
// Internal.
type Plugin interface {
	// Enable holds the devices until the plugin ends the stream with a *gate.End,
	// ctx ends, or send fails. It sends the status when the claim is accepted
	// and after each change. Session is unique.
	Enable(ctx context.Context, session string, c gate.Claim, send func(gate.Status) error) error
	// Disable waits for the result. An empty session means any holder.
	Disable(ctx context.Context, session string) (gate.Withdrawal, error)
	// Heartbeat renews a lease. It does not block.
	Heartbeat(session string) (lease time.Duration, err error)
	// Status does not block; the result must not be modified.
	Status() gate.Status
}

// Extensions is the version of cleat's extensions to the contract.
const Extensions = extensionClosed

// extensionClosed is the first version with closed_functions.
const extensionClosed = 2

// ServerConfig configures a Server.
type ServerConfig struct {
	Plugin  Plugin
	Version string
	Logger  *slog.Logger
}

// Server implements the service of the control socket. The listener controls
// access.
type Server struct {
	controlv1.UnimplementedControlServiceServer
	config ServerConfig
}

// NewServer returns a Server; Plugin is required.
func NewServer(c ServerConfig) *Server {
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return &Server{config: c}
}

// Register adds the service to a server.
func (s *Server) Register(r grpc.ServiceRegistrar) { controlv1.RegisterControlServiceServer(r, s) }

// Code returns an error's gRPC code, for server.GRPCConfig.
func Code(err error) codes.Code {
	if end, isEnd := errors.AsType[*gate.End](err); isEnd && end.Code != codes.OK {
		return end.Code
	}
	if c := status.FromContextError(err).Code(); c != codes.Unknown {
		return c
	}
	return codes.Internal
}

// Quiet reports whether a method is periodic, for server.GRPCConfig.
func Quiet(method string) bool {
	return method == controlv1.ControlService_Heartbeat_FullMethodName || server.QuietMethod(method)
}

// EnableDevices holds the devices while its stream is open. A slow client skips
// statuses, after up to 128 KiB of buffered ones.
func (s *Server) EnableDevices(r *controlv1.EnableDevicesRequest, out grpc.ServerStreamingServer[controlv1.DevicePluginStatus]) error {
	claim, err := claimOf(r)
	if err != nil {
		return endStatus(err)
	}
	ctx := out.Context()
	if err := ctx.Err(); err != nil {
		return err // a disconnected client cannot hold devices
	}
	session, accepted := rand.Text(), false
	err = s.config.Plugin.Enable(ctx, session, claim, func(now gate.Status) error {
		if !accepted {
			accepted = true
			s.config.Logger.InfoContext(ctx, "config daemon enabled the devices", "node", claim.Node, "generation", claim.Generation,
				"uid", claim.UID, "config_hash", claim.Hash, "lease", claim.Lease, "hold", claim.Hold, "closed", len(claim.Closed))
		}
		return out.Send(messageOf(now, session))
	})
	if end, isEnd := errors.AsType[*gate.End](err); isEnd && end.Code == codes.OK {
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
	if err != nil {
		return nil, endStatus(err)
	}
	return disableResponseOf(done), nil
}

// Heartbeat renews a lease.
func (s *Server) Heartbeat(_ context.Context, r *controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
	if err := checkSession(r.GetSession(), true); err != nil {
		return nil, endStatus(err)
	}
	lease, err := s.config.Plugin.Heartbeat(r.GetSession())
	if err != nil {
		return nil, endStatus(err)
	}
	return &controlv1.HeartbeatResponse{LeaseDuration: durationpb.New(lease)}, nil
}

// GetStatus returns the plugin's status.
func (s *Server) GetStatus(context.Context, *controlv1.GetStatusRequest) (*controlv1.DevicePluginStatus, error) {
	return messageOf(s.config.Plugin.Status(), ""), nil
}

// GetVersion returns the server's name and version.
func (s *Server) GetVersion(context.Context, *controlv1.GetVersionRequest) (*controlv1.GetVersionResponse, error) {
	return &controlv1.GetVersionResponse{Name: "cleat", Version: s.config.Version, Extensions: Extensions}, nil
}

// endStatus does not wrap errors.
func endStatus(err error) error {
	if end, isEnd := errors.AsType[*gate.End](err); isEnd && end.Code != codes.OK {
		return status.Error(end.Code, text(end.Reason))
	}
	return err
}

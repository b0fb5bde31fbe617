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
)

// Extensions is the version of the fields and calls that the proposal does not
// have.
const Extensions = 1

// ServerConfig says what a Server serves.
type ServerConfig struct {
	Plugin  Plugin
	Name    string // of GetVersion; empty is cleat
	Version string // of GetVersion
	Logger  *slog.Logger
}

// Server is the service of the control socket. Whoever can call it may control:
// its listener decides about peers.
type Server struct {
	controlv1.UnimplementedControlServiceServer
	config ServerConfig
}

// NewServer makes a Server of a plugin, which is required.
func NewServer(c ServerConfig) *Server {
	c.Name = cmp.Or(c.Name, "cleat")
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	return &Server{config: c}
}

// Register adds the service to a server.
func (s *Server) Register(r grpc.ServiceRegistrar) { controlv1.RegisterControlServiceServer(r, s) }

// Code is what errors of a Server are in gRPC, for server.GRPCConfig.
func Code(err error) codes.Code {
	end, isEnd := errors.AsType[*End](err)
	switch {
	case err == nil:
		return codes.OK
	case isEnd && end.Code != codes.OK:
		return end.Code
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	}
	return codes.Internal
}

// Quiet tells of methods that daemons call all day, for server.GRPCConfig.
func Quiet(method string) bool {
	return method == controlv1.ControlService_Heartbeat_FullMethodName || server.QuietMethod(method)
}

// EnableDevices holds the devices for as long as its stream is open. A reader
// that is slow misses statuses and gets the newest; what is under way to it,
// some 128 KiB, is older.
func (s *Server) EnableDevices(r *controlv1.EnableDevicesRequest, out grpc.ServerStreamingServer[controlv1.DevicePluginStatus]) error {
	claim, err := claimOf(r)
	if err != nil {
		return said(err)
	}
	ctx := out.Context()
	if err := ctx.Err(); err != nil {
		return err // nobody would answer for the devices
	}
	claim.Session = rand.Text()
	stream, err := s.config.Plugin.Enable(ctx, claim)
	if err != nil {
		return said(err)
	}
	defer stream.Close()
	for first := true; ; first = false {
		now, err := stream.Next(ctx)
		if end, isEnd := errors.AsType[*End](err); isEnd && end.Code == codes.OK {
			return nil
		}
		if err != nil {
			return said(err)
		}
		if first {
			s.config.Logger.InfoContext(ctx, "a config daemon answers for the devices", "node", claim.Node, "generation", claim.Generation,
				"uid", claim.UID, "config_hash", claim.Hash, "lease", claim.Lease, "hold", claim.Hold)
		}
		if err := out.Send(messageOf(now, claim.Session)); err != nil {
			return err
		}
	}
}

// DisableDevices takes the devices back.
func (s *Server) DisableDevices(ctx context.Context, r *controlv1.DisableDevicesRequest) (*controlv1.DisableDevicesResponse, error) {
	if err := checkSession(r.GetSession(), false); err != nil {
		return nil, said(err)
	}
	done, err := s.config.Plugin.Disable(ctx, r.GetSession())
	if err == nil && done.Code != codes.OK {
		err = &End{Code: done.Code, Reason: done.Reason}
	}
	if err != nil {
		return nil, said(err)
	}
	return disabledOf(done), nil
}

// Heartbeat renews a lease from the moment at which the call came in.
func (s *Server) Heartbeat(ctx context.Context, r *controlv1.HeartbeatRequest) (*controlv1.HeartbeatResponse, error) {
	at := time.Now()
	if err := checkSession(r.GetSession(), true); err != nil {
		return nil, said(err)
	}
	lease, err := s.config.Plugin.Heartbeat(ctx, r.GetSession(), at)
	if err != nil {
		return nil, said(err)
	}
	return &controlv1.HeartbeatResponse{LeaseDuration: durationpb.New(lease)}, nil
}

// GetStatus tells how the plugin is.
func (s *Server) GetStatus(context.Context, *controlv1.GetStatusRequest) (*controlv1.DevicePluginStatus, error) {
	return messageOf(s.config.Plugin.Status(), ""), nil
}

// GetVersion tells who serves.
func (s *Server) GetVersion(context.Context, *controlv1.GetVersionRequest) (*controlv1.GetVersionResponse, error) {
	return &controlv1.GetVersionResponse{Name: s.config.Name, Version: s.config.Version, Extensions: Extensions}, nil
}

// said gives the peer the plugin's own words, without what was wrapped around
// them on the way.
func said(err error) error {
	if end, isEnd := errors.AsType[*End](err); isEnd && end.Code != codes.OK {
		return status.Error(end.Code, text(end.Reason))
	}
	return err
}

// Package serve runs cleat fence serve on a machine of the rig, and calls it
// with the clients that csi-addons/spec generates.
package serve

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/csi-addons/spec/lib/go/fence"
	"github.com/csi-addons/spec/lib/go/identity"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/cleatproject/cleat/fence/nft"
	"github.com/cleatproject/cleat/test/fence/rig"
)

// Service is a running cleat fence serve.
type Service struct {
	*rig.Process
	Endpoint string
	conn     *grpc.ClientConn
}

// Launch starts the service on a machine, with its state where earlier ones on
// the machine had it, and waits until it is ready.
func Launch(ctx context.Context, m *rig.Machine, cleat string, env []string, flags ...string) (*Service, error) {
	s, err := Begin(m, cleat, env, flags...)
	if err != nil {
		return nil, err
	}
	if err := s.Ready(ctx); err != nil {
		return nil, errors.Join(err, s.Kill(), errors.New(s.Log()))
	}
	return s, nil
}

// State is the directory in which the service of a machine keeps its state.
func State(m *rig.Machine) string { return filepath.Join(m.Dir, "state") }

// Begin is Launch that does not wait.
func Begin(m *rig.Machine, cleat string, env []string, flags ...string) (*Service, error) {
	path := filepath.Join(m.Dir, "fence", "fence.sock")
	s := &Service{Endpoint: "unix://" + path}
	args := append([]string{cleat, "fence", "serve", "--endpoint", s.Endpoint, "--state-dir", State(m)}, flags...)
	var err error
	if s.Process, err = m.Launch("cleat", env, args...); err != nil {
		return nil, err
	}
	// gRPC's own pauses between attempts are made for networks.
	quick := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.2, MaxDelay: 50 * time.Millisecond}, MinConnectTimeout: 10 * time.Second}
	s.conn, err = grpc.NewClient(s.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(quick),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(64<<20), grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		return nil, errors.Join(err, s.Process.Kill())
	}
	return s, nil
}

// Ready waits until the service answers Probe, or has ended.
func (s *Service) Ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		answer, err := s.Identity().Probe(ctx, &identity.ProbeRequest{})
		if err == nil && (answer.GetReady() == nil || answer.GetReady().GetValue()) {
			return nil
		}
		select {
		case <-s.Done():
			return fmt.Errorf("cleat fence serve ended before it was ready: %s", s.Log())
		case <-ctx.Done():
			return errors.Join(errors.New("cleat fence serve was not ready in time"), err)
		case <-tick.C:
		}
	}
}

// Identity is the client of its Identity service.
func (s *Service) Identity() identity.IdentityClient { return identity.NewIdentityClient(s.conn) }

// Controller is the client of its FenceController service.
func (s *Service) Controller() fence.FenceControllerClient {
	return fence.NewFenceControllerClient(s.conn)
}

// Fence calls FenceClusterNetwork.
func (s *Service) Fence(ctx context.Context, parameters map[string]string, blocks ...string) error {
	_, err := s.Controller().FenceClusterNetwork(ctx, &fence.FenceClusterNetworkRequest{Parameters: parameters, Cidrs: CIDRs(blocks)})
	return err
}

// Unfence calls UnfenceClusterNetwork.
func (s *Service) Unfence(ctx context.Context, parameters map[string]string, blocks ...string) error {
	_, err := s.Controller().UnfenceClusterNetwork(ctx, &fence.UnfenceClusterNetworkRequest{Parameters: parameters, Cidrs: CIDRs(blocks)})
	return err
}

// List calls ListClusterFence.
func (s *Service) List(ctx context.Context, parameters map[string]string) ([]string, error) {
	answer, err := s.Controller().ListClusterFence(ctx, &fence.ListClusterFenceRequest{Parameters: parameters})
	var blocks []string
	for _, c := range answer.GetCidrs() {
		blocks = append(blocks, c.GetCidr())
	}
	return blocks, err
}

// Stop ends the service with SIGTERM.
func (s *Service) Stop() error { return errors.Join(s.Process.Stop(), s.conn.Close()) }

// Kill ends the service with SIGKILL.
func (s *Service) Kill() error { return errors.Join(s.Process.Kill(), s.conn.Close()) }

// Close lets go of the connection to a service that has ended.
func (s *Service) Close() error { return s.conn.Close() }

// CIDRs is blocks as a request has them.
func CIDRs(blocks []string) []*fence.CIDR {
	out := make([]*fence.CIDR, len(blocks))
	for i, b := range blocks {
		out[i] = &fence.CIDR{Cidr: b}
	}
	return out
}

// KillHolder ends the process that keeps the packet filter's table from being
// removed, and waits until it is gone. It fails when there is none.
func KillHolder(ctx context.Context, m *rig.Machine) error {
	holders, err := m.Find(nft.HolderCommand)
	if err != nil {
		return err
	}
	if len(holders) == 0 {
		return errors.New("no process holds the packet filter's table")
	}
	for _, h := range holders {
		if err := m.KillAndWait(ctx, h.PID); err != nil {
			return err
		}
	}
	return nil
}

// Logs is what all services of a machine have printed.
func Logs(m *rig.Machine) string {
	paths, _ := filepath.Glob(filepath.Join(m.Dir, "cleat-*.log"))
	var all []byte
	for _, p := range paths {
		data, _ := os.ReadFile(p)
		all = append(all, data...)
	}
	return string(all)
}

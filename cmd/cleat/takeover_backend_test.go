package main

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/fence/client"
	"github.com/cleatproject/cleat/fence/service"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume"
)

// fenceRecord is a fence service that enforces its fences at these enforcers.
type fenceRecord struct {
	service.Enforcer
	blocks    []netip.Prefix
	enforcers []volume.Coverage
}

func (f *fenceRecord) Recorded(context.Context, volume.FenceOwner) ([]netip.Prefix, error) {
	return f.blocks, nil
}

func (f *fenceRecord) List(context.Context, *volume.FenceOwner) ([]netip.Prefix, error) {
	return f.blocks, nil
}

func (f *fenceRecord) Coverage(context.Context, []netip.Prefix, bool) ([]volume.Coverage, error) {
	return f.enforcers, nil
}

func (*fenceRecord) Ending(context.Context) ([]volume.Session, error) { return nil, nil }

func (*fenceRecord) Unseen(context.Context) ([]string, error) { return nil, nil }

// A fence of a service is held if an enforcer has it, and lifted if the service has no
// record of it.
func TestFenceBackendReadBack(t *testing.T) {
	f := &fenceRecord{}
	l := testkit.Value(net.Listen("unix", filepath.Join(t.TempDir(), "fence.sock")))(t)
	s := grpc.NewServer()
	testkit.Value(service.New(service.Config{Name: "fence.example.com", Offer: service.Offer{Fence: true}, Enforcer: f}))(t).Register(s)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() { s.Stop(); testkit.Must(t, <-served) }()
	c := testkit.Value(client.Open(client.Target{Endpoint: "unix://" + l.Addr().String()}))(t)
	defer c.Close()
	addresses := []netip.Addr{netip.MustParseAddr("192.0.2.7")}
	b := fenceBackend{Client: c}
	if read := testkit.Value(b.ReadBack(t.Context(), "uid", addresses))(t); !read.Lifted || len(read.Held) > 0 {
		t.Errorf("without a record: %+v", read)
	}
	f.blocks = blocksOf(addresses)
	read, err := b.ReadBack(t.Context(), "uid", addresses)
	testkit.WantError(t, "without an enforcer", err, errs.Precondition, "enforces fences nowhere")
	if len(read.Held) > 0 || len(read.Recorded) != 1 || read.Lifted {
		t.Errorf("without an enforcer: %+v", read)
	}
	f.enforcers = []volume.Coverage{{Enforcer: "ceph"}}
	if read := testkit.Value(b.ReadBack(t.Context(), "uid", addresses))(t); len(read.Held) != 1 || len(read.Evidence) != 1 || read.Lifted {
		t.Errorf("with an enforcer: %+v", read)
	}
}

package service

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	"github.com/cleatproject/cleat/dpu/plugin"
	"github.com/cleatproject/cleat/dpu/request"
	"github.com/cleatproject/cleat/dpu/table"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/test/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is Devices in memory. fail, if set, is called before each call.
type memory struct {
	fail     func(ctx context.Context, call string) error
	notReady bool
	offer    plugin.Offer

	mu      sync.Mutex
	devices map[string]table.Device // by volume
	asked   []string
}

func newMemory() *memory {
	return &memory{offer: plugin.Offer{Block: true, Filesystem: true}, devices: map[string]table.Device{}}
}

func (m *memory) begin(ctx context.Context, call string) error {
	m.mu.Lock()
	m.asked = append(m.asked, call)
	m.mu.Unlock()
	if m.fail != nil {
		return m.fail(ctx, call)
	}
	return nil
}

func (m *memory) Create(ctx context.Context, q request.Create) (string, error) {
	if err := m.begin(ctx, "Create"); err != nil {
		return "", err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil { // the operation can have completed
		return "", err
	}
	if d, found := m.devices[q.Volume]; found {
		if d.Mode != q.Mode || !slices.Equal(d.Modes, q.Modes) {
			return "", errs.Errorf(errs.Precondition, "volume %s has another device", q.Volume)
		}
		return d.Name, nil
	}
	if q.Mode == request.Block && !m.offer.Block || q.Mode == request.Filesystem && !m.offer.Filesystem {
		return "", fmt.Errorf("volume_mode %s: %w", q.Mode, plugin.ErrUnsupported)
	}
	if q.Contexts.Volume["target"] != q.Volume {
		return "", errs.Errorf(errs.Invalid, "there is no target for volume %s", q.Volume)
	}
	d := table.Device{Volume: q.Volume, Name: "bdev-" + q.Volume, Mode: q.Mode, Modes: q.Modes, Contexts: q.Contexts}
	m.devices[q.Volume] = d
	return d.Name, nil
}

func (m *memory) Delete(ctx context.Context, r request.Device) error {
	if err := m.begin(ctx, "Delete"); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if d := m.devices[r.Volume]; r.Name == "" || r.Name == d.Name {
		delete(m.devices, r.Volume)
	}
	return nil
}

func (m *memory) Get(ctx context.Context, r request.Device) (table.Device, error) {
	if err := m.begin(ctx, "Get"); err != nil {
		return table.Device{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	d, found := m.devices[r.Volume]
	if !found || r.Name != "" && r.Name != d.Name {
		return table.Device{}, fmt.Errorf("volume %s: %w", r.Volume, plugin.ErrNotFound)
	}
	return d, nil
}

func (m *memory) List(ctx context.Context, p request.Page) (page []table.Device, more bool, err error) {
	if err := m.begin(ctx, "List"); err != nil {
		return nil, false, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, d := range m.devices {
		if d.Volume > p.After {
			page = append(page, d)
		}
	}
	slices.SortFunc(page, func(a, b table.Device) int { return strings.Compare(a.Volume, b.Volume) })
	if len(page) > p.Max {
		return page[:p.Max], true, nil
	}
	return page, false, nil
}

func (m *memory) Ready(ctx context.Context) (bool, error) {
	return !m.notReady, m.begin(ctx, "Ready")
}

func (m *memory) Offer(ctx context.Context) (plugin.Offer, error) {
	return m.offer, m.begin(ctx, "Offer")
}

func config(d Devices) Config {
	return Config{Name: "dpu.example.com", Version: "1.0", Manifest: map[string]string{"go": "1"}, Provider: "snap", Devices: d}
}

func serve(t *testing.T, c Config) (conn *grpc.ClientConn, log *testkit.Log) {
	t.Helper()
	s := testkit.Value(New(c))(t)
	log = testkit.NewLog(t)
	logger := testkit.Value(server.NewLogger(log, "json", "debug"))(t)
	srv := testkit.Value(server.NewGRPC(server.GRPCConfig{Logger: logger, Code: Code, Private: Private()}))(t)
	s.Register(srv)
	path := filepath.Join(t.TempDir(), "dpu.sock")
	l := testkit.Value(net.Listen("unix", path))(t)
	testkit.Go(t, func(ctx context.Context) error { return srv.Serve(ctx, l) })
	return testkit.Open(rpcdial.Unix(path))(t), log
}

// Package plugintest has an in-memory kubelet for device plugins: it accepts
// registrations, dials back, keeps lists, allocates, and restarts. It reports
// what would make a real kubelet panic.
package plugintest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/internal/unixsock"
)

// Kubelet is an in-memory kubelet, safe for concurrent use.
type Kubelet struct {
	v1beta1.UnsafeRegistrationServer

	dir    string
	broken func(format string, args ...any)

	mu      sync.Mutex
	changed chan struct{} // closed with each change
	server  *grpc.Server
	running sync.WaitGroup
	plugins map[string]*connection
	lists   map[string][]List
	calls   map[string]int
	refuse  error
}

// List is a ListAndWatch message.
type List struct {
	At      time.Time
	Healthy []string
	All     []string
	NUMA    map[string]int64
}

type connection struct {
	resource   string
	conn       *grpc.ClientConn
	cancel     context.CancelFunc
	list       List
	live       bool
	allocating map[string]int
}

// New returns a kubelet that does not run yet. broken gets events on which a
// real kubelet panics.
func New(dir string, broken func(format string, args ...any)) *Kubelet {
	return &Kubelet{dir: dir, broken: broken, changed: make(chan struct{}), plugins: map[string]*connection{}, lists: map[string][]List{}, calls: map[string]int{}}
}

// Start removes every socket in the directory, and serves.
func (k *Kubelet) Start() error {
	if err := os.MkdirAll(k.dir, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Type()&os.ModeSocket != 0 {
			if err := os.Remove(filepath.Join(k.dir, e.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) { // renamed by a plugin
				return err
			}
		}
	}
	l, err := unixsock.Listen(context.Background(), unixsock.Address{Path: filepath.Join(k.dir, "kubelet.sock"), SharedDir: true, AnyLength: true})
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	v1beta1.RegisterRegistrationServer(server, k)
	k.mu.Lock()
	k.server = server
	k.mu.Unlock()
	k.running.Go(func() { _ = server.Serve(l) })
	return nil
}

// Stop keeps only the lists.
func (k *Kubelet) Stop() {
	k.mu.Lock()
	server := k.server
	k.server = nil
	for _, c := range k.plugins {
		c.cancel()
	}
	k.mu.Unlock()
	if server != nil {
		server.Stop()
	}
	k.running.Wait()
}

func (k *Kubelet) Restart() error {
	k.Stop()
	return k.Start()
}

// Refuse makes Register fail; nil ends that.
func (k *Kubelet) Refuse(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.refuse = err
}

// Register dials back.
func (k *Kubelet) Register(ctx context.Context, r *v1beta1.RegisterRequest) (*v1beta1.Empty, error) {
	k.mu.Lock()
	k.calls[r.ResourceName]++
	refuse := k.refuse
	k.notify()
	k.mu.Unlock()
	if refuse != nil {
		return nil, refuse
	}
	if r.Version != v1beta1.Version {
		return nil, fmt.Errorf("version %q, want %q", r.Version, v1beta1.Version)
	}
	if strings.Contains(r.Endpoint, "/") {
		return nil, fmt.Errorf("endpoint %q is not a file name", r.Endpoint)
	}
	return &v1beta1.Empty{}, k.connect(ctx, r.ResourceName, filepath.Join(k.dir, r.Endpoint))
}

func (k *Kubelet) connect(ctx context.Context, resource, socket string) error {
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return unixsock.Dial(ctx, socket) }))
	if err != nil {
		return err
	}
	if _, err := v1beta1.NewDevicePluginClient(conn).GetDevicePluginOptions(ctx, &v1beta1.Empty{}); err != nil {
		return errors.Join(err, conn.Close())
	}
	run, cancel := context.WithCancel(context.Background())
	stream, err := v1beta1.NewDevicePluginClient(conn).ListAndWatch(run, &v1beta1.Empty{})
	if err != nil {
		cancel()
		return errors.Join(err, conn.Close())
	}
	c := &connection{resource: resource, conn: conn, cancel: cancel, live: true, allocating: map[string]int{}}
	k.mu.Lock()
	if old := k.plugins[resource]; old != nil {
		old.cancel()
	}
	k.plugins[resource] = c
	k.notify()
	k.mu.Unlock()
	k.running.Go(func() { k.listen(c, stream) })
	return nil
}

func (k *Kubelet) listen(c *connection, stream grpc.ServerStreamingClient[v1beta1.ListAndWatchResponse]) {
	defer func() {
		c.cancel()
		_ = c.conn.Close()
		k.mu.Lock()
		c.live = false
		k.notify()
		k.mu.Unlock()
	}()
	for {
		answer, err := stream.Recv()
		if err != nil {
			return
		}
		k.take(c, answer)
	}
}

func (k *Kubelet) take(c *connection, answer *v1beta1.ListAndWatchResponse) {
	l := List{At: time.Now(), NUMA: map[string]int64{}}
	for _, d := range answer.Devices {
		l.All = append(l.All, d.ID)
		if d.Health == v1beta1.Healthy {
			l.Healthy = append(l.Healthy, d.ID)
		}
		for _, n := range d.GetTopology().GetNodes() {
			l.NUMA[d.ID] = n.ID
		}
	}
	slices.Sort(l.All)
	slices.Sort(l.Healthy)
	k.mu.Lock()
	defer k.mu.Unlock()
	for id, n := range c.allocating {
		if n > 0 && !slices.Contains(l.All, id) {
			k.broken("%s: the list lost %s while it is being allocated: a kubelet from 1.34 on panics (trap A)", c.resource, id)
		}
	}
	c.list = l
	k.lists[c.resource] = append(k.lists[c.resource], l)
	k.notify()
}

func (k *Kubelet) notify() {
	close(k.changed)
	k.changed = make(chan struct{})
}

// Allocatable counts the devices that pods can get.
func (k *Kubelet) Allocatable(resource string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.plugins[resource]; c != nil && c.live {
		return len(c.list.Healthy)
	}
	return 0
}

// Healthy returns the devices that pods can get.
func (k *Kubelet) Healthy(resource string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.plugins[resource]; c != nil && c.live {
		return slices.Clone(c.list.Healthy)
	}
	return nil
}

// Offered is the allocatable devices of PodResources.
func (k *Kubelet) Offered(context.Context) (map[string][]string, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[string][]string{}
	for name, c := range k.plugins {
		if c.live && len(c.list.Healthy) > 0 {
			all[name] = slices.Clone(c.list.Healthy)
		}
	}
	return all, nil
}

func (k *Kubelet) Lists(resource string) []List {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.lists[resource])
}

// Resources returns all resources ever registered.
func (k *Kubelet) Resources() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Sorted(maps.Keys(k.calls))
}

// Registrations counts a resource's registrations.
func (k *Kubelet) Registrations(resource string) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.calls[resource]
}

// Await waits for a condition, checked at each change.
func (k *Kubelet) Await(ctx context.Context, holds func() bool) error {
	for {
		k.mu.Lock()
		changed := k.changed
		k.mu.Unlock()
		if holds() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Drop ends a resource's stream.
func (k *Kubelet) Drop(resource string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if c := k.plugins[resource]; c != nil {
		c.cancel()
	}
}

// Allocate admits a container: the devices must be healthy.
func (k *Kubelet) Allocate(ctx context.Context, resource string, ids ...string) (*v1beta1.ContainerAllocateResponse, error) {
	k.mu.Lock()
	c := k.plugins[resource]
	if c == nil || !c.live {
		k.mu.Unlock()
		return nil, fmt.Errorf("no healthy devices present; %s is not connected", resource)
	}
	for _, id := range ids {
		if !slices.Contains(c.list.Healthy, id) {
			k.mu.Unlock()
			return nil, fmt.Errorf("no healthy devices present; %s is not a device of %s", id, resource)
		}
	}
	for _, id := range ids {
		c.allocating[id]++
	}
	k.mu.Unlock()
	answer, err := v1beta1.NewDevicePluginClient(c.conn).Allocate(ctx, &v1beta1.AllocateRequest{
		ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: ids}}})
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, id := range ids {
		c.allocating[id]--
	}
	if err != nil {
		return nil, err
	}
	if len(answer.ContainerResponses) != 1 {
		return nil, fmt.Errorf("%d answers for one container", len(answer.ContainerResponses))
	}
	return answer.ContainerResponses[0], nil
}

// AllocateAny does not require healthy or existing devices.
func (k *Kubelet) AllocateAny(ctx context.Context, resource string, ids ...string) (*v1beta1.AllocateResponse, error) {
	k.mu.Lock()
	c := k.plugins[resource]
	k.mu.Unlock()
	if c == nil {
		return nil, fmt.Errorf("%s is not registered", resource)
	}
	return v1beta1.NewDevicePluginClient(c.conn).Allocate(ctx, &v1beta1.AllocateRequest{
		ContainerRequests: []*v1beta1.ContainerAllocateRequest{{DevicesIds: ids}}})
}

// Prefer calls GetPreferredAllocation.
func (k *Kubelet) Prefer(ctx context.Context, resource string, available, must []string, size int) ([]string, error) {
	k.mu.Lock()
	c := k.plugins[resource]
	k.mu.Unlock()
	if c == nil {
		return nil, fmt.Errorf("%s is not registered", resource)
	}
	answer, err := v1beta1.NewDevicePluginClient(c.conn).GetPreferredAllocation(ctx, &v1beta1.PreferredAllocationRequest{
		ContainerRequests: []*v1beta1.ContainerPreferredAllocationRequest{{AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: int32(size)}}})
	if err != nil {
		return nil, err
	}
	return answer.ContainerResponses[0].DeviceIDs, nil
}

package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/kubelet/handler/internal/instance"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// plugin is a registration with its connection.
type plugin struct {
	watch.Plugin
	owner *Handler
	conn  *grpc.ClientConn
	api   api.DevicePluginClient

	cancel context.CancelFunc
	ended  chan struct{}

	// Guarded by owner.mu:
	options    *api.DevicePluginOptions
	devices    []Device // last list, by ID
	current    bool     // the stream of devices is open
	failure    error
	lossLogged bool
}

func (h *Handler) connect(ctx context.Context, p watch.Plugin) (*plugin, error) {
	conn, err := instance.Client(p.Endpoint)
	if err != nil {
		return nil, err
	}
	c := &plugin{Plugin: p, owner: h, conn: conn, api: api.NewDevicePluginClient(conn), ended: make(chan struct{}), failure: errors.New("the plugin has not sent its list of devices yet")}
	if c.options, err = c.getOptions(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

func (c *plugin) getOptions(ctx context.Context) (*api.DevicePluginOptions, error) {
	ctx, cancel := context.WithTimeout(ctx, c.owner.options.Timeout)
	defer cancel()
	options, err := c.api.GetDevicePluginOptions(ctx, &api.Empty{})
	if err != nil {
		return nil, instance.Explain(c.Endpoint, "GetDevicePluginOptions", err)
	}
	return options, nil
}

// start watches the device list until stop, which also closes the connection.
func (c *plugin) start() {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go func() {
		defer close(c.ended)
		c.watchDevices(ctx)
	}()
}

func (c *plugin) stop() {
	c.cancel()
	<-c.ended
	_ = c.conn.Close()
}

// watchDevices retries with backoff.
func (c *plugin) watchDevices(ctx context.Context) {
	log := c.owner.options.Logger.With("resource", c.Name, "endpoint", c.Endpoint)
	pause := backoff.Backoff{First: c.owner.options.Pause, Most: c.owner.options.MostPause, Jitter: true}
	for {
		lists, err := c.readLists(ctx)
		if ctx.Err() != nil {
			return
		}
		if c.markLost(err) {
			log.Warn("device list lost, devices unhealthy until it is back", "err", err)
		}
		if lists > 0 {
			pause.Reset()
		}
		if pause.Wait(ctx) != nil {
			return
		}
	}
}

// readLists reads the options first: another process might serve the endpoint.
func (c *plugin) readLists(ctx context.Context) (lists int, err error) {
	options, err := c.getOptions(ctx)
	if err != nil {
		return 0, err
	}
	stream, err := c.api.ListAndWatch(ctx, &api.Empty{})
	for err == nil {
		var list *api.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			lists++
			c.update(options, list.GetDevices())
		}
	}
	if errors.Is(err, io.EOF) {
		return lists, fmt.Errorf("ListAndWatch at %s: the plugin closed the stream, which it must keep open", c.Endpoint)
	}
	return lists, instance.Explain(c.Endpoint, "ListAndWatch", err)
}

func (c *plugin) update(options *api.DevicePluginOptions, list []*api.Device) {
	devices := parseDevices(list)
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	same := c.current && slices.EqualFunc(devices, c.devices, Device.equal) && proto.Equal(options, c.options)
	c.options, c.devices, c.current, c.failure, c.lossLogged = options, devices, true, nil, false
	if !same {
		c.owner.feed.Touch(c.Name)
	}
}

// first is true if that is new.
func (c *plugin) markLost(err error) (first bool) {
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	first = !c.lossLogged
	c.current, c.failure, c.lossLogged = false, err, true
	c.owner.feed.Touch(c.Name)
	return first
}

// Of two devices with one ID the last counts, as in the kubelet; those without
// an ID are skipped.
func parseDevices(list []*api.Device) []Device {
	devices := make([]Device, 0, len(list))
	for _, d := range list {
		if d.GetID() == "" {
			continue
		}
		device := Device{ID: d.GetID(), Healthy: d.GetHealth() == api.Healthy}
		for _, node := range d.GetTopology().GetNodes() {
			device.NUMA = append(device.NUMA, node.GetID())
		}
		devices = append(devices, device)
	}
	slices.Reverse(devices) // keeps the first
	slices.SortStableFunc(devices, func(a, b Device) int { return cmp.Compare(a.ID, b.ID) })
	return slices.CompactFunc(devices, func(a, b Device) bool { return a.ID == b.ID })
}

package device

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/cleatproject/cleat/kubelet/handler/internal/instance"
	"github.com/cleatproject/cleat/kubelet/watch"
)

// plugin is one registration and its connection.
type plugin struct {
	watch.Plugin
	owner *Handler
	conn  *grpc.ClientConn
	api   api.DevicePluginClient

	cancel context.CancelFunc
	ended  chan struct{}

	// Guarded by owner.mu:
	options *api.DevicePluginOptions
	devices []Device // the last list, by id
	current bool     // the list is up to date, since the stream that sent it stands
	failure error    // why it is not
	broken  bool     // that was said in the log
}

// connect speaks with a plugin for the first time.
func (h *Handler) connect(ctx context.Context, p watch.Plugin) (*plugin, error) {
	conn, err := instance.Client(p.Endpoint)
	if err != nil {
		return nil, err
	}
	c := &plugin{Plugin: p, owner: h, conn: conn, api: api.NewDevicePluginClient(conn), ended: make(chan struct{}), failure: errors.New("the plugin has not told its devices yet")}
	if c.options, err = c.askOptions(ctx); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

func (c *plugin) askOptions(ctx context.Context) (*api.DevicePluginOptions, error) {
	ctx, cancel := context.WithTimeout(ctx, c.owner.options.Timeout)
	defer cancel()
	options, err := c.api.GetDevicePluginOptions(ctx, &api.Empty{})
	if err != nil {
		return nil, instance.Explain(c.Endpoint, "GetDevicePluginOptions", err)
	}
	return options, nil
}

// start begins to read the list; stop ends that.
func (c *plugin) start() {
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go func() {
		defer close(c.ended)
		c.follow(ctx)
	}()
}

func (c *plugin) stop() {
	c.cancel()
	<-c.ended
	_ = c.conn.Close()
}

// follow reads the list, and when it breaks off, asks again after a pause.
func (c *plugin) follow(ctx context.Context) {
	log := c.owner.options.Logger.With("resource", c.Name, "endpoint", c.Endpoint)
	pause := c.owner.options.Pause
	for {
		lists, err := c.read(ctx)
		if ctx.Err() != nil {
			return
		}
		if c.lost(err) {
			log.Warn("the list of devices broke off; all are unhealthy until it is back", "error", err)
		}
		if lists > 0 {
			pause = c.owner.options.Pause
		}
		if !wait(ctx, pause) {
			return
		}
		pause = min(2*pause, c.owner.options.MostPause)
	}
}

// read asks for the list and takes what comes until it breaks off. It asks for
// the options too, since another process may serve the endpoint now.
func (c *plugin) read(ctx context.Context) (lists int, err error) {
	options, err := c.askOptions(ctx)
	if err != nil {
		return 0, err
	}
	stream, err := c.api.ListAndWatch(ctx, &api.Empty{})
	for err == nil {
		var list *api.ListAndWatchResponse
		if list, err = stream.Recv(); err == nil {
			lists++
			c.tell(options, list.GetDevices())
		}
	}
	if errors.Is(err, io.EOF) {
		return lists, fmt.Errorf("ListAndWatch at %s: the plugin ended its list, which it must keep open", c.Endpoint)
	}
	return lists, instance.Explain(c.Endpoint, "ListAndWatch", err)
}

// tell takes a list over.
func (c *plugin) tell(options *api.DevicePluginOptions, list []*api.Device) {
	devices := read(list)
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	same := c.current && slices.EqualFunc(devices, c.devices, Device.equal) && proto.Equal(options, c.options)
	c.options, c.devices, c.current, c.failure, c.broken = options, devices, true, nil, false
	if !same {
		c.owner.feed.Touch(c.Name)
	}
}

// lost notes that the list is out of date; first: since it last was not.
func (c *plugin) lost(err error) (first bool) {
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	first = !c.broken
	c.current, c.failure, c.broken = false, err, true
	c.owner.feed.Touch(c.Name)
	return first
}

// read makes a list of devices, by id. Of two with one id the last counts, as
// in the kubelet; a device without an id could not be asked for.
func read(list []*api.Device) []Device {
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
	slices.Reverse(devices) // the last one first, which Compact keeps
	slices.SortStableFunc(devices, func(a, b Device) int { return cmp.Compare(a.ID, b.ID) })
	return slices.CompactFunc(devices, func(a, b Device) bool { return a.ID == b.ID })
}

// wait makes a pause, half of it by chance, so that plugins which broke off
// together do not come back together; false: ctx ended.
func wait(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause/2 + rand.N(pause/2+1))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

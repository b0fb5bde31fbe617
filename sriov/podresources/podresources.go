// Package podresources is a client of the kubelet's PodResources v1 service:
// which pod holds which device, and which devices are allocatable. It does not
// use the API server.
package podresources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/cleatproject/cleat/internal/rpcdial"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// DefaultSocket is the kubelet's default.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

var (
	// ErrNotServed: no process serves the socket.
	ErrNotServed = errors.New("no process serves PodResources on the socket")
	// ErrUnsupported: the kubelet is too old, or its feature gate is off.
	ErrUnsupported = errors.New("the kubelet does not support this PodResources call")
	// ErrStarting: the kubelet does not list the client's own pod. It lists all
	// pods only once synced with the API server.
	ErrStarting = errors.New("the kubelet does not list this pod: it has just started and is not synced yet")
)

const (
	// timeout bounds a call.
	timeout = 5 * time.Second
	// maxResponse is in bytes. 500 pods of 10 containers with 8 devices each
	// need about 2 MB; gRPC's default is 4 MiB.
	maxResponse = 16 << 20
)

// Client calls one kubelet, also after restarts. Methods can be called
// concurrently.
type Client struct {
	socket  string
	timeout time.Duration
	conn    *grpc.ClientConn
	err     error // why conn is nil
	lister  podresourcesv1.PodResourcesListerClient
	own     Pod
}

type call func(context.Context, ...grpc.CallOption) error

// Pod names a pod; the zero value none.
type Pod struct{ Namespace, Name string }

// New returns a client that connects on its first call. "" is DefaultSocket.
func New(socket string) *Client {
	c := &Client{socket: cmp.Or(socket, DefaultSocket), timeout: timeout}
	c.conn, c.err = rpcdial.Unix(c.socket, rpcdial.Listening(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)))
	if c.err == nil {
		c.lister = podresourcesv1.NewPodResourcesListerClient(c.conn)
	}
	return c
}

// NewInPod is New for a process in a pod. Until the kubelet lists this pod,
// Held returns ErrStarting.
func NewInPod(socket string, own Pod) *Client {
	c := New(socket)
	c.own = own
	return c
}

// Close also fails calls in flight.
func (c *Client) Close() error {
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}

// Holder is a container with a device. Plugins and users choose the strings: do
// not use them in paths.
type Holder struct {
	Resource string
	ID       string
	Namespace, Pod,
	Container string
}

// Held returns the holders of all plugins' devices, sorted and without
// duplicates. It covers containers of admitted pods, even before they run,
// including sidecars. Other init containers are not listed: their devices are
// the pod's other containers', or free again. Older kubelets list terminated
// pods until they are deleted. Errors: ErrNotServed, ErrUnsupported, ErrStarting,
// the context's and those of gRPC.
func (c *Client) Held(ctx context.Context) ([]Holder, error) {
	var answer *podresourcesv1.ListPodResourcesResponse
	err := c.invoke(ctx, "which pods have devices", func(ctx context.Context, o ...grpc.CallOption) (err error) {
		answer, err = c.lister.List(ctx, &podresourcesv1.ListPodResourcesRequest{}, o...)
		return err
	})
	if err != nil {
		return nil, err
	}
	if own := c.own; own != (Pod{}) && !slices.ContainsFunc(answer.GetPodResources(), func(p *podresourcesv1.PodResources) bool {
		return own == Pod{p.GetNamespace(), p.GetName()}
	}) {
		return nil, fmt.Errorf("ask the kubelet on %s which pods have devices: %w", c.socket, ErrStarting)
	}
	var all []Holder
	for _, pod := range answer.GetPodResources() {
		for _, container := range pod.GetContainers() {
			for _, of := range container.GetDevices() {
				for _, id := range of.GetDeviceIds() {
					all = append(all, Holder{of.GetResourceName(), id, pod.GetNamespace(), pod.GetName(), container.GetName()})
				}
			}
		}
	}
	slices.SortFunc(all, compare)
	return slices.Compact(all), nil // devices are listed per NUMA node
}

func compare(a, b Holder) int {
	return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
}

// Offered returns the allocatable (healthy) devices by resource, sorted,
// whether held or not. Resources without a healthy device are missing.
func (c *Client) Offered(ctx context.Context) (map[string][]string, error) {
	var answer *podresourcesv1.AllocatableResourcesResponse
	err := c.invoke(ctx, "which devices it offers", func(ctx context.Context, o ...grpc.CallOption) (err error) {
		answer, err = c.lister.GetAllocatableResources(ctx, &podresourcesv1.AllocatableResourcesRequest{}, o...)
		return err
	})
	if err != nil {
		return nil, err
	}
	of := map[string][]string{}
	for _, d := range answer.GetDevices() {
		if ids := d.GetDeviceIds(); len(ids) > 0 {
			of[d.GetResourceName()] = append(of[d.GetResourceName()], ids...)
		}
	}
	for resource, ids := range of {
		slices.Sort(ids)
		of[resource] = slices.Compact(ids)
	}
	return of, nil
}

func (c *Client) invoke(ctx context.Context, what string, do call) error {
	if c.err != nil {
		return fmt.Errorf("ask the kubelet on %s %s: %w", c.socket, what, c.err)
	}
	bounded, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	err := c.callWithRetry(bounded, do)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		err = context.Cause(ctx)
	case bounded.Err() != nil, status.Code(err) == codes.DeadlineExceeded: // the server can be first
		err = fmt.Errorf("no response within the timeout: %w: %w", context.DeadlineExceeded, err)
	}
	return fmt.Errorf("ask the kubelet on %s %s: %w", c.socket, what, err)
}

// callWithRetry retries once if the connection failed and the socket accepts a
// new one: the kubelet restarted, or gRPC is in backoff.
func (c *Client) callWithRetry(ctx context.Context, do call) error {
	broken, err := callOnce(ctx, do)
	if !broken || ctx.Err() != nil {
		return err
	}
	probe, reason := unixsock.Dial(ctx, c.socket)
	switch {
	case errors.Is(reason, fs.ErrNotExist), errors.Is(reason, syscall.ENOTDIR), errors.Is(reason, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w", ErrNotServed, reason)
	case reason != nil:
		return reason
	}
	_ = probe.Close()
	c.conn.ResetConnectBackoff()
	_, err = callOnce(ctx, do, grpc.WaitForReady(true))
	return err
}

// broken: the connection failed, not the kubelet.
func callOnce(ctx context.Context, do call, o ...grpc.CallOption) (broken bool, err error) {
	ctx, response := rpcdial.Listen(ctx)
	if err = do(ctx, o...); err == nil {
		return false, nil
	}
	s := status.Convert(err)
	switch {
	case !response.FromServer():
		return s.Code() == codes.Unavailable, err
	case s.Code() == codes.Unimplemented, s.Code() == codes.FailedPrecondition,
		// With the feature gate off: "PodResources API GetAllocatableResources
		// disabled".
		s.Code() == codes.Unknown && strings.HasSuffix(s.Message(), " disabled"):
		return false, fmt.Errorf("%w: %w", ErrUnsupported, err)
	}
	return false, err
}

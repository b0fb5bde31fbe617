// Package podresources is a client of the kubelet's PodResources v1 service, a
// UNIX socket on the node that reports which pod holds which device and which
// devices are allocatable. It does not use the API server.
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

// DefaultSocket is the default socket of the kubelet.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

var (
	// ErrNobody: no process serves the socket, as during a kubelet restart.
	ErrNobody = errors.New("no process serves PodResources on the socket")
	// ErrUnsupported: the kubelet does not serve this call: it is too old, or
	// its feature gate is off.
	ErrUnsupported = errors.New("the kubelet does not support this PodResources call")
	// ErrStarting: the kubelet does not list the client's own pod. After its
	// start it lists no pods, or only static ones, until it has synced with the
	// API server.
	ErrStarting = errors.New("the kubelet does not list this pod: it has just started and is not synced yet")
)

const (
	// timeout bounds a call, in addition to the caller's context.
	timeout = 5 * time.Second
	// maxResponse bounds a response in bytes. 500 pods of 10 containers with 8
	// devices each need about 2 MB; gRPC's default is 4 MiB.
	maxResponse = 16 << 20
)

// Client calls the kubelet on one socket, and reconnects after a kubelet
// restart. Its methods can be called concurrently.
type Client struct {
	socket  string
	timeout time.Duration
	conn    *grpc.ClientConn // nil: see err
	err     error            // why conn is nil
	lister  podresourcesv1.PodResourcesListerClient
	own     Pod
}

// call is one RPC of the service.
type call func(context.Context, ...grpc.CallOption) error

// Pod names a pod. The zero value names no pod.
type Pod struct{ Namespace, Name string }

// New returns a client that connects on its first call. socket is an absolute
// path; "" is DefaultSocket.
func New(socket string) *Client {
	c := &Client{socket: cmp.Or(socket, DefaultSocket), timeout: timeout}
	c.conn, c.err = rpcdial.Unix(c.socket, rpcdial.Listening(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxResponse)))
	if c.err == nil {
		c.lister = podresourcesv1.NewPodResourcesListerClient(c.conn)
	}
	return c
}

// NewInPod returns a client for a process in a pod of that kubelet. Until the
// kubelet lists this pod, Held returns ErrStarting: its list of holders is
// incomplete.
func NewInPod(socket string, own Pod) *Client {
	c := New(socket)
	c.own = own
	return c
}

// Close closes the connection and fails calls in flight.
func (c *Client) Close() error {
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}

// Holder is a container with a device. Plugins and users choose the strings:
// compare and print them, but do not use them in paths.
type Holder struct {
	Resource string // full name
	ID       string // of the device
	Namespace, Pod,
	Container string
}

// Held returns the holders of all plugins' devices, sorted by resource, id,
// namespace, pod and container, without duplicates. It covers containers of
// admitted pods, even before they run, including restartable init containers
// (sidecars). Other init containers are not listed; their devices belong to the
// pod's other containers or are free again. Terminated pods are not listed,
// except by older kubelets until they are deleted. Errors: ErrNobody,
// ErrUnsupported, ErrStarting, the context's and those of gRPC.
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
	return slices.Compact(all), nil // a container's devices are listed per NUMA node
}

func compare(a, b Holder) int {
	return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
}

// Offered returns the allocatable devices, whether a pod holds them or not: the
// healthy devices of each resource by full name, sorted by id. Resources
// without a healthy device are missing. Errors: see Held.
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

// invoke makes a call within the client's timeout.
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
	case bounded.Err() != nil, status.Code(err) == codes.DeadlineExceeded: // the server can hit the deadline first
		err = fmt.Errorf("no response within the timeout: %w: %w", context.DeadlineExceeded, err)
	}
	return fmt.Errorf("ask the kubelet on %s %s: %w", c.socket, what, err)
}

// callWithRetry makes a call, and retries once if only the connection failed and the
// socket accepts a new one: the kubelet was restarted, or gRPC is in backoff.
func (c *Client) callWithRetry(ctx context.Context, do call) error {
	broken, err := callOnce(ctx, do)
	if !broken || ctx.Err() != nil {
		return err
	}
	probe, reason := unixsock.Dial(ctx, c.socket)
	switch {
	case errors.Is(reason, fs.ErrNotExist), errors.Is(reason, syscall.ENOTDIR), errors.Is(reason, syscall.ECONNREFUSED):
		return fmt.Errorf("%w: %w", ErrNobody, reason)
	case reason != nil:
		return reason
	}
	_ = probe.Close() // nothing was sent
	c.conn.ResetConnectBackoff()
	_, err = callOnce(ctx, do, grpc.WaitForReady(true))
	return err
}

// callOnce makes a call; broken is set for errors of the connection rather than of
// the kubelet.
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

// Package podresources asks the kubelet's PodResources v1 service, on a UNIX
// socket of the node, which pod has which device and which devices the kubelet
// offers. The API server is not involved.
package podresources

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/cleatproject/cleat/internal/rpcdial"
)

// DefaultSocket is where the kubelet listens.
const DefaultSocket = "/var/lib/kubelet/pod-resources/kubelet.sock"

var (
	// ErrNobody: there is no socket, or nobody listens on it. A kubelet that
	// restarts looks like that for a while.
	ErrNobody = errors.New("nobody serves PodResources there")
	// ErrUnsupported: the kubelet serves PodResources and does not tell this: it
	// is too old, or its feature is off.
	ErrUnsupported = errors.New("the kubelet does not tell that")
	// ErrStarting: the kubelet does not list the pod in which it is asked. One
	// that has just started lists no pods, or only those of its files, until it
	// has heard of the others from the API server.
	ErrStarting = errors.New("the kubelet does not list this pod: it has just started, and does not know its pods yet")
)

const (
	// patience is how long an answer may take, also when the caller's context
	// allows more.
	patience = 5 * time.Second
	// largest bounds an answer in bytes. 500 pods of 10 containers with 8
	// devices each take about 2 MB; gRPC itself would stop at 4.
	largest = 16 << 20
)

// Client asks the kubelet of one socket. It keeps one connection, which comes
// back after the kubelet restarted. Its methods may be called by many at once.
type Client struct {
	socket   string
	patience time.Duration
	conn     *grpc.ClientConn // nil: it could not be prepared
	err      error            // why
	lister   podresourcesv1.PodResourcesListerClient
	own      Pod
}

// Pod names a pod. The zero value is none.
type Pod struct{ Namespace, Name string }

// New makes a client that connects with its first call, by the absolute path of
// a socket; "" is DefaultSocket.
func New(socket string) *Client {
	c := &Client{socket: cmp.Or(socket, DefaultSocket), patience: patience}
	c.conn, c.err = rpcdial.Unix(c.socket, rpcdial.Listening(), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest)))
	if c.err == nil {
		c.lister = podresourcesv1.NewPodResourcesListerClient(c.conn)
	}
	return c
}

// NewInPod makes a client for a process in a pod of that kubelet, which must be
// listed: else the kubelet does not know yet who holds what.
func NewInPod(socket string, own Pod) *Client {
	c := New(socket)
	c.own = own
	return c
}

// Close ends the connection, and calls that run with it.
func (c *Client) Close() error {
	if c.conn == nil {
		return nil
	}
	return c.conn.Close()
}

// Holder is a container with a device. Strings are as plugins and people chose
// them: they are for comparing and telling, not for paths.
type Holder struct {
	Resource string // full name
	ID       string // of the device
	Namespace, Pod,
	Container string
}

// Held is who has which device, of all plugins: by resource, id, namespace, pod
// and container, each once. Containers of pods that were admitted are listed,
// also before they run, and init containers that run beside them (sidecars); an
// init container that ends before the others start is not, its devices are
// those of its pod's other containers or free again. Pods that ended are not
// listed, by older kubelets until they are deleted. Errors: ErrNobody,
// ErrUnsupported, ErrStarting, the context's and those of gRPC.
func (c *Client) Held(ctx context.Context) ([]Holder, error) {
	var answer *podresourcesv1.ListPodResourcesResponse
	err := c.ask(ctx, "which pods have devices", func(ctx context.Context, o ...grpc.CallOption) (err error) {
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
	return slices.Compact(all), nil // devices of one container come apart by NUMA node
}

func compare(a, b Holder) int {
	return cmp.Or(cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
}

// Offered is what the kubelet would give to pods, whether a pod has it or not:
// the healthy devices of each resource by its full name, sorted ids. A resource
// without a healthy device is not there. Errors: as Held.
func (c *Client) Offered(ctx context.Context) (map[string][]string, error) {
	var answer *podresourcesv1.AllocatableResourcesResponse
	err := c.ask(ctx, "which devices it offers", func(ctx context.Context, o ...grpc.CallOption) (err error) {
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

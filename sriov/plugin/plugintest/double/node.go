package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"google.golang.org/grpc"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/cleatproject/cleat/internal/unixsock"
	"github.com/cleatproject/cleat/sriov/plugin/plugintest"
)

type node struct {
	podresourcesv1.UnimplementedPodResourcesListerServer

	kernel  *kernel
	kubelet *plugintest.Kubelet
	socket  string // PodResources

	mu     sync.Mutex
	server *grpc.Server
	served chan struct{}
	pods   map[string]pod
}

type pod struct {
	resource string
	devices  []string
}

// Fatal errors go to end.
func newNode(dir string, end context.CancelCauseFunc) (*node, error) {
	broken := func(format string, args ...any) { end(fmt.Errorf("the kubelet: "+format, args...)) }
	n := &node{
		kubelet: plugintest.New(filepath.Join(dir, "kubelet", "device-plugins"), broken),
		socket:  filepath.Join(dir, "kubelet", "pod-resources", "kubelet.sock"),
		pods:    map[string]pod{},
	}
	var err error
	if n.kernel, err = boot(dir, end, n.total); err != nil {
		return nil, err
	}
	if err := n.startKubelet(); err != nil {
		return nil, errors.Join(err, n.close())
	}
	return n, nil
}

func (n *node) startKubelet() error {
	if err := n.kubelet.Start(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(n.socket), 0o755); err != nil {
		return err
	}
	l, err := unixsock.Listen(context.Background(), unixsock.Address{Path: n.socket, SharedDir: true, AnyLength: true})
	if err != nil {
		return err
	}
	server, served := grpc.NewServer(), make(chan struct{})
	podresourcesv1.RegisterPodResourcesListerServer(server, n)
	n.mu.Lock()
	n.server, n.served = server, served
	n.mu.Unlock()
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	return nil
}

func (n *node) stopKubelet() {
	n.mu.Lock()
	server, served := n.server, n.served
	n.server = nil
	n.mu.Unlock()
	if server != nil {
		server.Stop()
		<-served
	}
	n.kubelet.Stop()
}

func (n *node) close() error {
	n.stopKubelet()
	return n.kernel.close()
}

// Pods survive a restart.
func (n *node) restart() error {
	n.stopKubelet()
	return n.startKubelet()
}

func (n *node) total() (offered, capacity int) {
	for _, r := range n.kubelet.Resources() {
		offered += n.kubelet.Allocatable(r)
		capacity += n.capacity(r)
	}
	return offered, capacity
}

func (n *node) capacity(resource string) int {
	lists := n.kubelet.Lists(resource)
	if len(lists) == 0 {
		return 0
	}
	return len(lists[len(lists)-1].All)
}

// startPod allocates free healthy devices, or refuses like a kubelet. With
// insist, also others.
func (n *node) startPod(ctx context.Context, o command) (answer, error) {
	n.mu.Lock()
	taken := []string{}
	for _, p := range n.pods {
		if p.resource == o.Resource {
			taken = append(taken, p.devices...)
		}
	}
	n.mu.Unlock()
	if o.Insist {
		_, err := n.kubelet.AllocateAny(ctx, o.Resource, o.Devices...)
		return refusal(err), nil
	}
	free := slices.DeleteFunc(n.kubelet.Healthy(o.Resource), func(id string) bool { return slices.Contains(taken, id) })
	if len(free) < o.Count {
		return answer{Refused: fmt.Sprintf("no healthy devices present: %d are wanted, %d are there", o.Count, len(free))}, nil
	}
	ids := free[:o.Count]
	given, err := n.kubelet.Allocate(ctx, o.Resource, ids...)
	if err != nil {
		return refusal(err), nil
	}
	n.mu.Lock()
	n.pods[o.Pod] = pod{o.Resource, ids}
	n.mu.Unlock()
	a := answer{Devices: ids, Env: given.GetEnvs()}
	for _, d := range given.GetDevices() {
		a.Nodes = append(a.Nodes, d.GetContainerPath())
	}
	return a, nil
}

func refusal(err error) answer {
	if err == nil {
		return answer{}
	}
	return answer{Refused: err.Error()}
}

func (n *node) endPod(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, there := n.pods[name]; !there {
		return fmt.Errorf("there is no pod %q", name)
	}
	delete(n.pods, name)
	return nil
}

func (n *node) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := &podresourcesv1.ListPodResourcesResponse{}
	for name, p := range n.pods {
		all.PodResources = append(all.PodResources, &podresourcesv1.PodResources{Namespace: "demo", Name: name,
			Containers: []*podresourcesv1.ContainerResources{{Name: "main",
				Devices: []*podresourcesv1.ContainerDevices{{ResourceName: p.resource, DeviceIds: p.devices}}}}})
	}
	return all, nil
}

func (n *node) GetAllocatableResources(ctx context.Context, _ *podresourcesv1.AllocatableResourcesRequest) (*podresourcesv1.AllocatableResourcesResponse, error) {
	offered, err := n.kubelet.Offered(ctx)
	all := &podresourcesv1.AllocatableResourcesResponse{}
	for resource, ids := range offered {
		all.Devices = append(all.Devices, &podresourcesv1.ContainerDevices{ResourceName: resource, DeviceIds: ids})
	}
	return all, err
}

package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/cleatproject/cleat/sriov/plugin/plugintest"
)

// node is the kubelet with its pods. It implements the PodResources v1 service.
type node struct {
	podresourcesv1.UnsafePodResourcesListerServer
	kubelet *plugintest.Kubelet
	book    *book

	mu   sync.Mutex
	pods map[string]pod
}

// pod has one container with devices of one resource.
type pod struct {
	resource string
	ids      []string
}

// start admits a pod. Like with a kubelet, its devices count as held before
// Allocate is called.
func (n *node) start(ctx context.Context, name, resource string, ids []string) (*v1beta1.ContainerAllocateResponse, error) {
	n.mu.Lock()
	if _, there := n.pods[name]; there {
		n.mu.Unlock()
		return nil, fmt.Errorf("pod %s already exists", name)
	}
	n.pods[name] = pod{resource, ids}
	n.mu.Unlock()
	given, err := n.kubelet.Allocate(ctx, resource, ids...)
	if err != nil {
		_ = n.end(name)
	}
	return given, err
}

func (n *node) end(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, there := n.pods[name]; !there {
		return fmt.Errorf("pod %s does not exist", name)
	}
	delete(n.pods, name)
	return nil
}

// List implements PodResourcesListerServer.
func (n *node) List(context.Context, *podresourcesv1.ListPodResourcesRequest) (*podresourcesv1.ListPodResourcesResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	answer := &podresourcesv1.ListPodResourcesResponse{}
	for _, name := range slices.Sorted(maps.Keys(n.pods)) {
		answer.PodResources = append(answer.PodResources, n.describe(name))
	}
	return answer, nil
}

// Get implements PodResourcesListerServer.
func (n *node) Get(_ context.Context, r *podresourcesv1.GetPodResourcesRequest) (*podresourcesv1.GetPodResourcesResponse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, there := n.pods[r.PodName]; !there {
		return nil, fmt.Errorf("pod %s does not exist", r.PodName)
	}
	return &podresourcesv1.GetPodResourcesResponse{PodResources: n.describe(r.PodName)}, nil
}

func (n *node) describe(name string) *podresourcesv1.PodResources {
	p := n.pods[name]
	return &podresourcesv1.PodResources{Namespace: "default", Name: name, Containers: []*podresourcesv1.ContainerResources{
		{Name: "main", Devices: []*podresourcesv1.ContainerDevices{{ResourceName: p.resource, DeviceIds: p.ids}}},
	}}
}

// GetAllocatableResources implements PodResourcesListerServer.
func (n *node) GetAllocatableResources(ctx context.Context, _ *podresourcesv1.AllocatableResourcesRequest) (*podresourcesv1.AllocatableResourcesResponse, error) {
	offered, err := n.kubelet.Offered(ctx)
	if err != nil {
		return nil, err
	}
	answer := &podresourcesv1.AllocatableResourcesResponse{}
	for _, resource := range slices.Sorted(maps.Keys(offered)) {
		answer.Devices = append(answer.Devices, &podresourcesv1.ContainerDevices{ResourceName: resource, DeviceIds: offered[resource]})
	}
	return answer, nil
}

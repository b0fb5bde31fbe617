package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"

	"google.golang.org/grpc"
	core "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/podresources/v1"
	apisgrpc "k8s.io/kubernetes/pkg/kubelet/apis/grpc"
	"k8s.io/kubernetes/pkg/kubelet/apis/podresources"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
)

const podResourcesDir = "/var/lib/kubelet/pod-resources"

// servePodResources serves the kubelet's own service, with its rate limit.
func (n *node) servePodResources(ctx context.Context) error {
	if err := os.MkdirAll(podResourcesDir, 0o755); err != nil {
		return err
	}
	socket := podResourcesDir + "/kubelet.sock"
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(apisgrpc.WithRateLimiter(ctx, "podresources", podresources.DefaultQPS, podresources.DefaultBurstTokens))
	api.RegisterPodResourcesListerServer(server, podresources.NewV1PodResourcesServer(ctx, podresources.PodResourcesProviders{
		Pods: n, Devices: deviceProvider{n.devices}, Cpus: nothing{}, Memory: nothing{}, DynamicResources: nothing{}}))
	go func() { _ = server.Serve(l) }() // until the program ends
	return nil
}

// GetActivePods is part of podresources.PodsProvider, as are those below.
func (n *node) GetActivePods() []*core.Pod { return n.active() }

func (n *node) GetPods() []*core.Pod { return n.active() }

func (n *node) GetPodByName(namespace, name string) (*core.Pod, bool) {
	for _, p := range n.active() {
		if p.Namespace == namespace && p.Name == name {
			return p, true
		}
	}
	return nil, false
}

// deviceProvider is the kubelet's container manager between device manager and
// service.
type deviceProvider struct{ manager *devicemanager.ManagerImpl }

func (d deviceProvider) UpdateAllocatedDevices(logger klog.Logger) {
	d.manager.UpdateAllocatedDevices(logger)
}

func (d deviceProvider) GetDevices(uid, container string) []*api.ContainerDevices {
	return containerDevices(d.manager.GetDevices(uid, container))
}

func (d deviceProvider) GetAllocatableDevices(logger klog.Logger) []*api.ContainerDevices {
	return containerDevices(d.manager.GetAllocatableDevices(logger))
}

func containerDevices(instances devicemanager.ResourceDeviceInstances) []*api.ContainerDevices {
	var all []*api.ContainerDevices
	for resource, devices := range instances {
		for id := range devices {
			all = append(all, &api.ContainerDevices{ResourceName: resource, DeviceIds: []string{id}})
		}
	}
	return all
}

// nothing is a node without CPUs, memory or claims.
type nothing struct{}

func (nothing) GetCPUs(*core.Pod, *core.Container) []int64              { return nil }
func (nothing) GetPodCPUs(string) []int64                               { return nil }
func (nothing) GetAllocatableCPUs() []int64                             { return nil }
func (nothing) GetPodMemory(klog.Logger, string) []*api.ContainerMemory { return nil }
func (nothing) GetAllocatableMemory(klog.Logger) []*api.ContainerMemory { return nil }
func (nothing) GetMemory(klog.Logger, *core.Pod, *core.Container) []*api.ContainerMemory {
	return nil
}
func (nothing) GetDynamicResources(klog.Logger, *core.Pod, *core.Container) []*api.DynamicResource {
	return nil
}

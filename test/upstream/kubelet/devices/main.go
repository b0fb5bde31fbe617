// Command devices is the part of a kubelet that has to do with device plugins:
// its plugin manager over a directory, and its device manager behind it. It
// prints what resources the node has, one line of JSON for each change, and for
// each line "RESOURCE COUNT" that it reads it admits a pod that asks for so
// many devices, and prints what the pod's container gets.
//
// The kubelet keeps its files at a fixed place, so the program has to be
// started in a mount namespace of its own, and hides /var/lib there.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"

	"github.com/cleatproject/cleat/test/upstream/kubelet"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: devices PLUGINS-DIR")
		os.Exit(2)
	}
	if err := run(context.Background(), os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "devices:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, dir string) error {
	kubelet.Silence()
	if err := hideVarLib(); err != nil {
		return err
	}
	devices, err := devicemanager.NewManagerImpl(nil, topologymanager.NewFakeManager())
	if err != nil {
		return err
	}
	n := &node{devices: devices}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	if err := devices.Start(klog.Background(), n.active, ready, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		return err
	}
	plugins := kubelet.New(dir, nil)
	plugins.AddHandler(registration.DevicePlugin, devices.GetWatcherHandler())
	if err := plugins.Start(ctx); err != nil {
		return err
	}
	go n.tell()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := n.admit(ctx, lines.Text()); err != nil {
			n.print(map[string]string{"error": err.Error()})
		}
	}
	return errors.Join(plugins.Close(ctx), devices.Stop(klog.Background()))
}

func hideVarLib() error {
	mine, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	if parents, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid())); err != nil || mine == parents {
		return fmt.Errorf("it needs a mount namespace of its own (unshare --mount): %w", errors.Join(err, unix.EPERM))
	}
	return unix.Mount("tmpfs", "/var/lib", "tmpfs", 0, "size=16m")
}

// node is what a kubelet is to its device manager.
type node struct {
	devices *devicemanager.ManagerImpl

	mu   sync.Mutex
	pods []*core.Pod
	out  sync.Mutex
}

func (n *node) active() []*core.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.pods
}

func (n *node) print(line any) {
	n.out.Lock()
	defer n.out.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(line)
}

// tell prints capacity and allocatable whenever they change. The kubelet asks
// for them too: nothing tells it.
func (n *node) tell() {
	var last map[string][2]int64
	for range time.Tick(10 * time.Millisecond) {
		capacity, allocatable, _ := n.devices.GetCapacity()
		now := map[string][2]int64{}
		for name, quantity := range capacity {
			free := allocatable[name]
			now[string(name)] = [2]int64{quantity.Value(), free.Value()}
		}
		if !maps.Equal(now, last) {
			n.print(map[string]any{"resources": now})
			last = now
		}
	}
}

// admit is what the kubelet does with a pod that asks for devices.
func (n *node) admit(ctx context.Context, line string) error {
	var name string
	var count int64
	if _, err := fmt.Sscan(line, &name, &count); err != nil {
		return fmt.Errorf("%q: want RESOURCE COUNT: %w", line, err)
	}
	ask := core.ResourceList{core.ResourceName(name): *resource.NewQuantity(count, resource.DecimalSI)}
	n.mu.Lock()
	pod := &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: "pod", UID: types.UID(strconv.Itoa(len(n.pods)))},
		Spec:       core.PodSpec{Containers: []core.Container{{Name: "c", Resources: core.ResourceRequirements{Limits: ask, Requests: ask}}}},
	}
	n.pods = append(n.pods, pod)
	n.mu.Unlock()
	container := &pod.Spec.Containers[0]
	if err := n.devices.Allocate(pod, container); err != nil {
		return err
	}
	options, err := n.devices.GetDeviceRunContainerOptions(ctx, pod, container)
	if err != nil {
		return err
	}
	n.print(map[string]any{"container": options})
	return nil
}

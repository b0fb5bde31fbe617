// Command devices is the device part of a kubelet: its plugin manager on a
// directory, its device manager and its PodResources service. It prints the
// node's resources, one line of JSON for each change, and executes the lines
// that it reads:
//
//	RESOURCE COUNT       admit a pod with that many devices, and print
//	                     its container's allocation
//	end UID              the pod has ended
//
// After a restart, its further arguments are the UIDs of the pods that exist.
//
// The kubelet's paths are fixed, so the program has to be started in its own
// mount namespace. It hides /var/lib there, and mounts -kubelet-dir on
// /var/lib/kubelet.
package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
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
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"

	"github.com/cleatproject/cleat/test/testkit/mountns"
	"github.com/cleatproject/cleat/test/upstream/kubelet"
)

func main() {
	dir := flag.String("kubelet-dir", "", "directory to mount on /var/lib/kubelet; empty: a temporary one")
	flag.Parse()
	if flag.NArg() < 1 {
		fmt.Fprintln(os.Stderr, "usage: devices [-kubelet-dir DIR] PLUGINS-DIR [POD-UID...]")
		os.Exit(2)
	}
	if err := run(context.Background(), *dir, flag.Arg(0), flag.Args()[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "devices:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, home, dir string, pods []string) error {
	kubelet.Silence()
	if err := hideVarLib(ctx, home); err != nil {
		return err
	}
	devices, err := devicemanager.NewManagerImpl(klog.Background(), nil, topologymanager.NewFakeManager(klog.Background()))
	if err != nil {
		return err
	}
	n := &node{devices: devices, admitted: len(pods)}
	for _, uid := range pods {
		n.pods = append(n.pods, newPod(uid, nil))
	}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	if err := devices.Start(klog.Background(), n.active, ready, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		return err
	}
	plugins := kubelet.New(dir, nil)
	plugins.AddHandler(registration.DevicePlugin, devices.GetWatcherHandler())
	if err := plugins.Start(ctx); err != nil {
		return err
	}
	if err := n.servePodResources(ctx); err != nil {
		return err
	}
	go n.report()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := n.execute(ctx, lines.Text()); err != nil {
			n.print(map[string]string{"error": err.Error()})
		}
	}
	return errors.Join(plugins.Close(ctx), devices.Stop(klog.Background()))
}

func hideVarLib(ctx context.Context, home string) error {
	mine, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return err
	}
	if parents, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", os.Getppid())); err != nil || mine == parents {
		return fmt.Errorf("it needs a mount namespace of its own (unshare --mount): %w", errors.Join(err, unix.EPERM))
	}
	if err := mountns.DropCopies(); err != nil {
		return err
	}
	at, err := os.Open(cmp.Or(home, "/")) // it can be below the directory that is about to be hidden
	if err != nil {
		return err
	}
	defer at.Close()
	if err := unix.Mount("tmpfs", "/var/lib", "tmpfs", 0, "size=16m"); err != nil || home == "" {
		return err
	}
	if err := os.Mkdir("/var/lib/kubelet", 0o755); err != nil {
		return err
	}
	return unix.Mount(fmt.Sprintf("/proc/self/fd/%d", at.Fd()), "/var/lib/kubelet", "", unix.MS_BIND, "")
}

// node is the kubelet as its device manager sees it.
type node struct {
	devices *devicemanager.ManagerImpl

	mu       sync.Mutex
	pods     []*core.Pod
	admitted int
	out      sync.Mutex
}

func (n *node) active() []*core.Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.pods)
}

func (n *node) print(line any) {
	n.out.Lock()
	defer n.out.Unlock()
	_ = json.NewEncoder(os.Stdout).Encode(line)
}

// report prints capacity and allocatable whenever they change. It polls, as the
// kubelet does: there is no notification.
func (n *node) report() {
	var last map[string][2]int64
	for range time.Tick(10 * time.Millisecond) {
		capacity, allocatable, _ := n.devices.GetCapacity(klog.Background())
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

func (n *node) execute(ctx context.Context, line string) error {
	if uid, isEnd := strings.CutPrefix(line, "end "); isEnd {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.pods = slices.DeleteFunc(n.pods, func(p *core.Pod) bool { return string(p.UID) == uid })
		return nil
	}
	return n.admit(ctx, line)
}

func newPod(uid string, ask core.ResourceList) *core.Pod {
	return &core.Pod{
		ObjectMeta: meta.ObjectMeta{Name: "pod-" + uid, Namespace: "default", UID: types.UID(uid)},
		Spec:       core.PodSpec{Containers: []core.Container{{Name: "c", Resources: core.ResourceRequirements{Limits: ask, Requests: ask}}}},
	}
}

// admit admits a pod with devices as the kubelet does.
func (n *node) admit(ctx context.Context, line string) error {
	var name string
	var count int64
	if _, err := fmt.Sscan(line, &name, &count); err != nil {
		return fmt.Errorf("%q: want RESOURCE COUNT: %w", line, err)
	}
	ask := core.ResourceList{core.ResourceName(name): *resource.NewQuantity(count, resource.DecimalSI)}
	n.mu.Lock()
	uid := strconv.Itoa(n.admitted)
	n.admitted++
	pod := newPod(uid, ask)
	n.pods = append(n.pods, pod)
	n.mu.Unlock()
	container := &pod.Spec.Containers[0]
	if err := n.devices.Allocate(ctx, pod, container, lifecycle.AddOperation); err != nil {
		_ = n.execute(ctx, "end "+uid)
		return err
	}
	options, err := n.devices.GetDeviceRunContainerOptions(ctx, pod, container)
	if err != nil {
		return err
	}
	n.print(map[string]any{"container": options, "pod": uid})
	return nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/sriov/pool"
)

// sriovKubelet says whom to ask which pod has which device.
type sriovKubelet struct {
	dir          string
	podResources string
}

func (k *sriovKubelet) add(e *pflag.FlagSet) {
	e.StringVar(&k.dir, "kubelet-dir", kubeletDir, "the kubelet's directory; without a kubelet nobody tells of pods")
	e.StringVar(&k.podResources, "pod-resources-socket", "", "socket on which the kubelet tells which pod has which device; by default pod-resources/kubelet.sock of --kubelet-dir")
}

// sriovHolders are the pods that have devices.
type sriovHolders struct {
	known bool // the kubelet has told
	all   []podresources.Holder
	why   string // not known, though a kubelet seems to be there
}

// sriovKubeletBound is how long the kubelet may take to tell of its pods.
const sriovKubeletBound = 5 * time.Second

// ask asks the kubelet. A machine without one has no pods, which is no error.
func (k *sriovKubelet) ask(ctx context.Context, cmd *cobra.Command) (h sriovHolders, err error) {
	socket := k.podResources
	if socket == "" {
		socket = filepath.Join(k.dir, "pod-resources", "kubelet.sock")
	}
	if socket, err = filepath.Abs(socket); err != nil {
		return h, err
	}
	ctx, cancel := context.WithTimeout(ctx, sriovKubeletBound)
	defer cancel()
	c := podresources.New(socket)
	h.all, err = c.Held(ctx)
	h.known = err == nil
	given := cmd.Flags().Changed("kubelet-dir") || cmd.Flags().Changed("pod-resources-socket")
	if err != nil && (given || !errors.Is(err, podresources.ErrNobody)) {
		h.why = err.Error()
	}
	return h, c.Close()
}

// held is what pods have, as an assignment takes it.
func (h sriovHolders) held() []pool.Held {
	var all []pool.Held
	for _, holder := range h.all {
		all = append(all, pool.Held{Resource: holder.Resource, ID: holder.ID})
	}
	return all
}

// sriovPod is a container that has a device.
type sriovPod struct {
	Namespace string `json:"namespace"`
	Pod       string `json:"pod"`
	Container string `json:"container"`
	Resource  string `json:"resource"` // that it got the device from
}

// of are the containers that have a device.
func (h sriovHolders) of(id string) []sriovPod {
	var pods []sriovPod
	for _, holder := range h.all {
		if holder.ID == id {
			pods = append(pods, sriovPod{holder.Namespace, holder.Pod, holder.Container, holder.Resource})
		}
	}
	return pods
}

// podNames are the pods for a cell of a table.
func podNames(pods []sriovPod) string {
	var names []string
	for _, p := range pods {
		name := p.Namespace + "/" + p.Pod
		if len(names) == 0 || names[len(names)-1] != name {
			names = append(names, name)
		}
	}
	return strings.Join(names, ",")
}

func (p sriovPod) describe() string {
	return fmt.Sprintf("%s/%s, container %s, as %s", p.Namespace, p.Pod, p.Container, p.Resource)
}

// parsePod is --pod: NAMESPACE/NAME, or nothing.
func parsePod(text string) (podresources.Pod, error) {
	if text == "" {
		return podresources.Pod{}, nil
	}
	namespace, name, _ := strings.Cut(text, "/")
	if len(validation.IsDNS1123Label(namespace)) > 0 || len(validation.IsDNS1123Subdomain(name)) > 0 {
		return podresources.Pod{}, fmt.Errorf("--pod %q is no pod: want NAMESPACE/NAME, as kube-system/cleat-x7f2q", text)
	}
	return podresources.Pod{Namespace: namespace, Name: name}, nil
}

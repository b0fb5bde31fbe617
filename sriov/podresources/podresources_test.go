package podresources

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	podresourcesv1 "k8s.io/kubelet/pkg/apis/podresources/v1"
)

// The kubelet lists pods in any order, and the devices of a container once for
// each NUMA node, all of them again where a device has several nodes.
func TestHeld(t *testing.T) {
	two := &podresourcesv1.PodResources{Namespace: "b", Name: "p2", Containers: []*podresourcesv1.ContainerResources{
		{Name: "x", Devices: append(devices("intel.com/a", "0000:3b:02.1"), append(devices("intel.com/a", "0000:3b:02.0", "0000:3b:02.1"), devices("nvidia.com/gpu", "GPU-1")...)...)},
		{Name: "none"},
		{Name: "side", Devices: devices("intel.com/a", "0000:3b:02.1")},
	}}
	c := asking(t, listing(two, &podresourcesv1.PodResources{Namespace: "a", Name: "empty"}, pod("a", "p1", "intel.com/b", "mlx5_core.sf.4")))
	got, err := c.Held(t.Context())
	want := []Holder{
		{"intel.com/a", "0000:3b:02.0", "b", "p2", "x"},
		{"intel.com/a", "0000:3b:02.1", "b", "p2", "side"},
		{"intel.com/a", "0000:3b:02.1", "b", "p2", "x"},
		{"intel.com/b", "mlx5_core.sf.4", "a", "p1", "main"},
		{"nvidia.com/gpu", "GPU-1", "b", "p2", "x"},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, holders (-want +got):\n%s", err, diff)
	}
}

func TestNobodyHoldsAnything(t *testing.T) {
	c := asking(t, listing())
	if got, err := c.Held(t.Context()); len(got) != 0 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

// A kubelet that has just started says that nobody holds anything.
func TestPodThatIsNotListed(t *testing.T) {
	static, own := pod("kube-system", "static", ""), Pod{"a", "own"}
	for name, c := range map[string]struct {
		pods []*podresourcesv1.PodResources
		want error
	}{
		"none":      {nil, ErrStarting},
		"of a file": {[]*podresourcesv1.PodResources{static}, ErrStarting},
		"namesake":  {[]*podresourcesv1.PodResources{pod("b", "own", "")}, ErrStarting},
		"it is":     {[]*podresourcesv1.PodResources{static, pod("a", "own", "")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			plain := asking(t, listing(c.pods...))
			if _, err := plain.Held(t.Context()); err != nil {
				t.Errorf("who is in no pod is told %v", err)
			}
			inside := NewInPod(plain.socket, own)
			defer inside.Close()
			if got, err := inside.Held(t.Context()); !errors.Is(err, c.want) || c.want == nil && err != nil {
				t.Errorf("%v, %v; want %v", got, err, c.want)
			}
		})
	}
}

func TestOffered(t *testing.T) {
	c := asking(t, &kubelet{offered: func(context.Context) (*podresourcesv1.AllocatableResourcesResponse, error) {
		return &podresourcesv1.AllocatableResourcesResponse{Devices: append(append(append(
			devices("intel.com/a", "2", "0"), devices("intel.com/b", "9")...), devices("intel.com/a", "1", "2")...), devices("intel.com/none")...)}, nil
	}})
	got, err := c.Offered(t.Context())
	if diff := cmp.Diff(map[string][]string{"intel.com/a": {"0", "1", "2"}, "intel.com/b": {"9"}}, got); diff != "" || err != nil {
		t.Errorf("%v, offered (-want +got):\n%s", err, diff)
	}
}

// More than gRPC takes by itself arrives; more than the bound is an error.
func TestHugeAnswers(t *testing.T) {
	many := func(ids int) *kubelet {
		p := pod("ns", "p", "intel.com/a")
		for i := range ids {
			p.Containers[0].Devices[0].DeviceIds = append(p.Containers[0].Devices[0].DeviceIds, fmt.Sprintf("%060d", i))
		}
		return listing(p)
	}
	if got, err := asking(t, many(200_000)).Held(t.Context()); len(got) != 200_000 || err != nil { // 12.4 MB
		t.Errorf("%d holders, %v", len(got), err)
	}
	c := asking(t, many(280_000)) // 17.4 MB
	if got, err := c.Held(t.Context()); status.Code(err) != codes.ResourceExhausted || got != nil {
		t.Errorf("%d holders, %v", len(got), err)
	}
	if _, err := c.Offered(t.Context()); status.Code(err) != codes.Unimplemented {
		t.Errorf("the client does not work on: %v", err)
	}
}

// What others chose as names goes through as it stands.
func TestHostileStrings(t *testing.T) {
	words := []string{"", "../../etc/passwd", "a\x00b", "\n\r\t\x1b[2J", "%s%n", strings.Repeat("x", 100_000), "\u202e\ufffd"}
	for _, w := range words {
		got, err := asking(t, listing(pod(w, w, w, w))).Held(t.Context())
		if diff := cmp.Diff([]Holder{{w, w, w, w, "main"}}, got); diff != "" || err != nil {
			t.Errorf("%.20q: %v, holders (-want +got):\n%.300s", w, err, diff)
		}
	}
}

// Lists within the answer may hold nothing at all.
func TestHolesInAnswers(t *testing.T) {
	c := asking(t, listing(&podresourcesv1.PodResources{Containers: []*podresourcesv1.ContainerResources{{Devices: []*podresourcesv1.ContainerDevices{{}}}, {}}}))
	if got, err := c.Held(t.Context()); len(got) != 0 || err != nil {
		t.Errorf("%v, %v", got, err)
	}
}

package remote

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/kubelet/handler/device"
)

func TestDevices(t *testing.T) {
	r := newRig(t)
	if all, err := r.remote.Devices(t.Context(), ""); err != nil || len(all) != 0 {
		t.Errorf("of no plugin: %+v, %v", all, err)
	}
	gpu := Resource{Name: "example.com/gpu", Endpoint: "/run/gpu.sock", Current: true, Devices: []device.Device{
		{ID: "a", Healthy: true, NUMA: []int64{0, 1}}, {ID: "b", Holder: "pod"},
	}}
	nic := Resource{Name: "example.com/nic", Endpoint: "/run/nic.sock", Error: "the list broke off", Devices: []device.Device{}}
	r.service.Resources = func() []device.Resource {
		var all []device.Resource
		for _, x := range []Resource{gpu, nic} {
			all = append(all, device.Resource{Name: x.Name, Endpoint: x.Endpoint, Current: x.Current, Error: x.Error, Devices: x.Devices})
		}
		return all
	}
	for name, want := range map[string][]Resource{"": {gpu, nic}, nic.Name: {nic}} {
		got, err := r.remote.Devices(t.Context(), name)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%q: %v %s", name, err, diff)
		}
	}
	if _, err := r.remote.Devices(t.Context(), "example.com/gpo"); codeOf(err) != codes.NotFound || err.Error() !=
		`no device plugin offers "example.com/gpo" (did you mean "example.com/gpu"?); there are example.com/gpu, example.com/nic` {
		t.Errorf("%v", err)
	}
}

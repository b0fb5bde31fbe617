package device

import (
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"pgregory.net/rapid"

	"github.com/cleatproject/cleat/test/testkit"
)

func TestNames(t *testing.T) {
	for name, want := range map[string]string{
		"example.com/gpu":                        "",
		"nvidia.com/gpu":                         "",
		"intel.com/sriov_VF.1-a":                 "",
		"a/b":                                    "",
		"foo.kubernetes.org/bar":                 "",
		"":                                       "no domain",
		"gpu":                                    "no domain",
		"kubernetes.io/gpu":                      "is reserved for Kubernetes",
		"alpha.kubernetes.io/gpu":                "is reserved for Kubernetes",
		"mykubernetes.io/gpu":                    "is reserved for Kubernetes",
		"requests.example.com/gpu":               "for quotas",
		"example.com/gpu/a":                      "label key",
		"Example.com/gpu":                        "prefix part",
		"/gpu":                                   "prefix part",
		"example.com/":                           "name part must be non-empty",
		"example.com/-gpu":                       "name part",
		"example.com/gp u":                       "name part",
		"example.com/" + strings.Repeat("g", 63): "",
		"example.com/" + strings.Repeat("g", 64): "63",
		// With the prefix "requests." the domain has at most 253 characters.
		strings.Repeat("a", 244) + "/g": "",
		strings.Repeat("a", 245) + "/g": "253",
	} {
		err := checkName(name)
		if want == "" && err != nil {
			t.Errorf("%q: %v", name, err)
		}
		if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want something with %q", name, err, want)
		}
	}
}

// FuzzName: an accepted name has the form domain/name.
func FuzzName(f *testing.F) {
	for _, seed := range []string{"example.com/gpu", "gpu", "a/b/c", "kubernetes.io/x", "requests.a/b", "É/x", "a./b", "a/b\n"} {
		f.Add(seed)
	}
	form := regexp.MustCompile(`\A[a-z0-9.-]+/[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?\z`)
	f.Fuzz(func(t *testing.T, name string) {
		if checkName(name) == nil && (!form.MatchString(name) || strings.Contains(name, "kubernetes.io/") || len(name) > 244+1+63) {
			t.Errorf("%q was taken", name)
		}
	})
}

// FuzzList: whatever a plugin sends, the list is sorted, without duplicates,
// and has the last state of each device.
func FuzzList(f *testing.F) {
	seed := testkit.Value(proto.Marshal(&api.ListAndWatchResponse{Devices: []*api.Device{
		{ID: "b", Health: api.Healthy, Topology: &api.TopologyInfo{Nodes: []*api.NUMANode{{ID: 1}, nil}}}, {ID: "a"}, {ID: "b"}, {},
	}}))(f)
	f.Add(seed)
	f.Fuzz(func(t *testing.T, wire []byte) {
		var list api.ListAndWatchResponse
		if proto.Unmarshal(wire, &list) != nil {
			return
		}
		want := map[string]bool{}
		for _, d := range list.GetDevices() {
			if d.GetID() != "" {
				want[d.GetID()] = d.GetHealth() == "Healthy"
			}
		}
		got := map[string]bool{}
		devices := parseDevices(list.GetDevices())
		for _, d := range devices {
			got[d.ID] = d.Healthy
		}
		if diff := cmp.Diff(want, got); diff != "" || len(got) != len(devices) {
			t.Errorf("%d devices: %s", len(devices), diff)
		}
		if !slices.IsSortedFunc(devices, func(a, b Device) int { return strings.Compare(a.ID, b.ID) }) {
			t.Errorf("not in order: %v", devices)
		}
	})
}

// calls is a simple model of the allocations: every call that was not refused,
// and its result.
type calls []*call

type call struct {
	holder   string
	ids      []string
	ended    bool
	refused  bool // by the plugin
	released bool
}

// holder returns the holder of a device, and whether a call for it is in
// flight.
func (all calls) holder(id string) (holder string, running bool) {
	for _, c := range all {
		if slices.Contains(c.ids, id) && !c.released && !c.refused {
			holder, running = c.holder, running || !c.ended
		}
	}
	return holder, running
}

func (all calls) running() (running []*call) {
	for _, c := range all {
		if !c.ended {
			running = append(running, c)
		}
	}
	return running
}

// For any sequence of calls, overlaps and failures, the allocations match the
// history.
func TestAllocationsMatchHistory(t *testing.T) {
	devices := []string{"a", "b", "c", "d"}
	rapid.Check(t, func(t *rapid.T) {
		b, history := allocations{}, calls{}
		holders := rapid.SampledFrom([]string{"me", "you"})
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				c := &call{holder: holders.Draw(t, "holder")}
				c.ids = rapid.SliceOfNDistinct(rapid.SampledFrom(devices), 1, 3, rapid.ID).Draw(t, "ids")
				var want error
				for _, id := range c.ids {
					if holder, running := history.holder(id); running {
						want = first(want, ErrBusy)
					} else if holder != "" && holder != c.holder {
						want = first(want, ErrHeld)
					}
				}
				if err := b.reserve(c.holder, c.ids); !errors.Is(err, want) || (err == nil) != (want == nil) {
					t.Fatalf("reserve %v for %s: got %v, want %v", c.ids, c.holder, err, want)
				}
				if want == nil {
					history = append(history, c)
				}
			case 1:
				running := history.running()
				if len(running) == 0 {
					continue
				}
				c := rapid.SampledFrom(running).Draw(t, "call")
				c.ended, c.refused = true, rapid.Bool().Draw(t, "refused")
				b.finish(c.ids, !c.refused)
			case 2:
				holder := holders.Draw(t, "holder")
				busy := slices.ContainsFunc(history.running(), func(c *call) bool { return c.holder == holder })
				ids, err := b.heldBy(holder)
				if busy != errors.Is(err, ErrBusy) {
					t.Fatalf("release %s: %v, with a call under way: %v", holder, err, busy)
				}
				for _, id := range ids {
					delete(b, id)
				}
				for _, c := range history {
					if c.holder == holder && !busy {
						c.released = true
					}
				}
			}
			want := map[string]string{}
			for _, id := range devices {
				if holder, _ := history.holder(id); holder != "" {
					want[id] = holder
				}
			}
			got := map[string]string{}
			for id := range maps.Keys(b) {
				got[id] = b[id].holder
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatal(diff)
			}
		}
	})
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

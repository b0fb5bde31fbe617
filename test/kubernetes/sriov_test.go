package kubernetes

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

// Pods get functions of the chart's plugin exclusively, and keep them while the
// plugin is replaced or killed.
func TestSRIOVPlugin(t *testing.T) {
	t.Parallel()
	s := newSpace(t)
	c := newCard(s, "plain", 29830, 2)
	began := time.Now()
	s.install(release{name: c.release, values: c.values("/var/lib/sriov", "")})
	c.allocatable(2)
	t.Logf("2 functions allocatable %.1f s after the installation began", time.Since(began).Seconds())

	s.run("one", c.wanting(1))
	s.run("two", c.wanting(1))
	s.start("three", c.wanting(1))
	one, two := c.given("one"), c.given("two")
	if want := c.tree.Virtual(c.pf.Address); !slices.Equal(slices.Sorted(slices.Values([]string{one, two})), want) {
		t.Fatalf("two pods have %s and %s, want %q", one, two, want)
	}
	s.unschedulable("three", "Insufficient "+c.resource)
	s.why("pod/three", "Pods have all of "+c.resource, "kubectl describe nodes")

	for _, trouble := range []struct {
		name string
		do   func()
	}{
		{"rollout", func() {
			name := "daemonset/" + c.release + "-cleat-sriov-plugin"
			for _, args := range [][]string{{"restart", name}, {"status", name, "--timeout=120s"}} {
				testkit.Value(testCluster.Kubectl(t.Context(), "", append([]string{"-n", system, "rollout"}, args...)...))(t)
			}
		}},
		{"SIGKILL", func() { c.processOf(c.argument(c.ports[0]), c.kill(c.ports[0])) }},
	} {
		stop := c.gaps(2)
		trouble.do()
		c.offers(2)
		c.allocatable(2)
		kubelet, api := stop()
		t.Logf("%s: functions were away for %s in the kubelet, for %s in the API", trouble.name, kubelet, api)
		// Two to five seconds on a machine that does nothing else.
		if limit := 2 * time.Minute; kubelet > limit || api > limit {
			t.Errorf("%s: functions were away for %s in the kubelet, %s in the API", trouble.name, kubelet, api)
		}
		s.undisturbed("one")
		s.undisturbed("two")
		if got, want := c.holders(), map[string]string{one: "one", two: "two"}; !maps.Equal(got, want) {
			t.Errorf("%s: the kubelet reports devices of pods %v, want %v", trouble.name, got, want)
		}
		s.unschedulable("three", "Insufficient "+c.resource)
	}

	s.drop("one")
	s.running("three")
	if got := c.given("three"); got != one {
		t.Errorf("the waiting pod got %s, want %s of the pod that ended", got, one)
	}
	s.undisturbed("two")
}

// given checks the environment and device nodes of a pod with one function, and
// returns the function.
func (c *card) given(name string) string {
	c.Helper()
	all := c.functions(name)
	if len(all) != 1 {
		c.Fatalf("pod %s requested one function, got %q", name, all)
	}
	index := slices.Index(c.tree.Virtual(c.pf.Address), all[0])
	if index < 0 {
		c.Fatalf("pod %s has %q, which is not a function of the card", name, all[0])
	}
	group := fmt.Sprintf("/dev/vfio/%d", 1000+index)
	variable := "PCIDEVICE_EXAMPLE_COM_" + strings.ToUpper(strings.TrimPrefix(c.resource, "example.com/")) + "_INFO"
	var info map[string]struct {
		Generic struct{ DeviceID string }
		VFIO    map[string]string
	}
	text := c.exec(name, "printf %s \"$"+variable+"\"")
	if err := json.Unmarshal([]byte(text), &info); err != nil {
		c.Fatalf("%s of pod %s is %q: %v", variable, name, text, err)
	}
	if got := info[all[0]]; got.Generic.DeviceID != all[0] || got.VFIO["mount"] != "/dev/vfio/vfio" || got.VFIO["dev-mount"] != group {
		c.Errorf("%s of pod %s is %s", variable, name, text)
	}
	// The device node is the null device.
	if got, want := c.exec(name, "cd /dev/vfio; stat -c '%n %F %t:%T' *; echo x >"+group), strings.TrimPrefix(group, "/dev/vfio/")+" character special file 1:3\nvfio character special file 1:3"; got != want {
		c.Errorf("pod %s has the device nodes %q, want %q", name, got, want)
	}
	return all[0]
}

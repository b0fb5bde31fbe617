package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cleatproject/cleat/sriov/gate"
	"github.com/cleatproject/cleat/sriov/grants"
	"github.com/cleatproject/cleat/sriov/plugin"
	"github.com/cleatproject/cleat/sriov/plugin/plugintest"
	"github.com/cleatproject/cleat/sriov/podresources"
	"github.com/cleatproject/cleat/test/soak"
)

// The device plugin with the device manager of a real kubelet.

func TestSriovNothingBeforeEnable(t *testing.T) {
	t.Parallel()
	n := newSriovNode(t, 4)
	n.startPlugin()
	if _, err := n.plugin.Disable(t.Context(), ""); err != nil { // the plugin is up
		t.Fatal(err)
	}
	n.kubelet.mu.Lock()
	if counts, known := n.kubelet.counts[sriovResource]; known {
		t.Errorf("the kubelet has %v before the first Enable", counts)
	}
	n.kubelet.mu.Unlock()
	s := n.enable(1)
	n.awaitCounts(4, 4)
	s.Close()
	n.awaitAllocatable(0)
	n.awaitCounts(0, 0) // the empty list, a second later
	n.enable(2)
	n.awaitCounts(4, 4)
	n.enable(3) // the devices stay with a new generation
	d, err := n.plugin.Disable(t.Context(), "")
	if err != nil || !d.Acknowledged || !d.Confirmed {
		t.Fatalf("Disable: %+v, %v; want OK, confirmed", d, err)
	}
	n.await("no device is allocatable", func(k *sriovKubelet) bool { return k.counts[sriovResource][1] == 0 })
	if answer := n.admit(1); answer["error"] == nil {
		t.Errorf("a pod was admitted after Disable: %s", answer)
	}
}

// held is a Memory whose Put blocks, to keep an Allocate in progress.
type held struct {
	entered chan struct{}
	proceed chan struct{}
}

func (h *held) Put(ctx context.Context, _ []grants.Record) error {
	select {
	case h.entered <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	<-h.proceed
	return nil
}

func (*held) Remove(context.Context, []grants.Record) error { return nil }
func (*held) All() []grants.Record                          { return nil }

// Trap A: kubelets from 1.34 on panic when the list becomes empty during an
// Allocate.
func TestSriovWithdrawalDuringAllocate(t *testing.T) {
	t.Parallel()
	for name, withdraw := range map[string]func(n *sriovNode, s *plugintest.Stream){
		"the stream closes": func(_ *sriovNode, s *plugintest.Stream) { s.Close() },
		"disabled":          func(n *sriovNode, _ *plugintest.Stream) { go func() { _, _ = n.plugin.Disable(n.t.Context(), "") }() },
		"the plugin ends":   func(n *sriovNode, _ *plugintest.Stream) { go func() { _ = n.plugin.Stop(n.t.Context()) }() },
		"the VFs are removed": func(n *sriovNode, _ *plugintest.Stream) {
			if err := n.tree.Write("bus/pci/devices/"+sriovPF+"/sriov_numvfs", "0"); err != nil {
				n.t.Error(err)
			}
			n.plugin.Rescan()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newSriovNode(t, 4)
			h := &held{entered: make(chan struct{}), proceed: make(chan struct{})}
			n.config.Memory = h
			n.startPlugin()
			s := n.enable(1)
			n.awaitCounts(4, 4)
			n.kubelet.say(sriovResource + " 2")
			<-h.entered
			withdraw(n, s)
			n.awaitAllocatable(0) // unhealthy during the call
			// Longer than the list stays full without a call in progress.
			pause := time.NewTimer(1500 * time.Millisecond)
			defer pause.Stop()
			<-pause.C
			n.lives()
			close(h.proceed)
			n.await("an answer to the pod", func(k *sriovKubelet) bool { return len(k.answers) == 1 })
			if answer := n.kubelet.answers[0]; answer["error"] == nil {
				t.Errorf("the pod was admitted: %s", answer)
			}
			n.awaitCounts(0, 0)
			n.lives()
		})
	}
}

// serves waits until the kubelet streams from the plugin: earlier counts can be
// about the previous process.
func (n *sriovNode) serves(after string) {
	n.t.Helper()
	until(n.t, "served after "+after, func() (bool, string) {
		s := n.plugin.Status()
		return s.State == gate.Serving && s.Devices > 0, fmt.Sprintf("%+v", s)
	})
}

// Trap B: the kubelet loses the race with a plugin that stops and starts at
// once, unless it gets enough time.
func TestSriovFastRestarts(t *testing.T) {
	t.Parallel()
	restarts := 8
	if soak.Enabled {
		restarts = 40
	}
	for way, stop := range map[string]func(*sriovNode){"stopped": (*sriovNode).stopPlugin, "killed": (*sriovNode).killPlugin} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			n := newSriovNode(t, 8)
			n.config.Controlled = false
			for i := range restarts {
				n.startPlugin()
				n.serves(fmt.Sprintf("restart %d", i))
				n.awaitAllocatable(8)
				stop(n)
			}
			n.startPlugin()
			n.serves("the last restart")
			n.awaitCounts(8, 8)
			// On a busy machine the kubelet can close the new connection with the
			// old one; the plugin then registers again.
			until(t, "a pod that asks for all is admitted", func() (bool, string) {
				answer := n.admit(8)
				return answer["error"] == nil, string(answer["error"])
			})
		})
	}
}

// From 1.37 on, the kubelet refuses a socket's path for ever if a process
// registers it while it has a connection there: it forgets the connection, and
// not that it has one. The plugin's next process uses another name.
func TestSriovSocketWithAConnection(t *testing.T) {
	t.Parallel()
	n := newSriovNode(t, 8)
	n.awaitServing() // otherwise its start can make the plugin register twice
	n.config.Controlled = false
	n.startPlugin()
	n.serves("the start")
	n.awaitCounts(8, 8)
	refusal := n.tryRegister(sriovResource, plugin.SocketName(sriovResource))
	if refusal == nil || !strings.Contains(refusal.Error(), "device plugin already connected") {
		t.Errorf("the kubelet answers %v to the same socket, want that it is connected", refusal)
	}
	n.killPlugin()
	n.startPlugin()
	n.serves("the restart")
	n.awaitCounts(8, 8)
	n.stopPlugin()
	n.awaitCounts(0, 0)
}

// Running pods keep their devices through withdrawals and restarts of the
// plugin and of the kubelet.
func TestSriovPodsKeepTheirDevices(t *testing.T) {
	t.Parallel()
	n := newSriovNode(t, 8)
	n.startPlugin()
	s := n.enable(1)
	n.awaitCounts(8, 8)
	var options struct {
		Envs []struct{ Name, Value string }
	}
	answer := n.admit(2)
	if err := json.Unmarshal(answer["container"], &options); err != nil {
		t.Fatalf("%v in %s", err, answer)
	}
	mine := ""
	for _, e := range options.Envs {
		if e.Name == "PCIDEVICE_EXAMPLE_COM_VF" {
			mine = e.Value
		}
	}
	if len(strings.Split(mine, ",")) != 2 {
		t.Fatalf("the container got %+v, want two devices", options)
	}
	holds := func(when string) {
		t.Helper()
		var holders []podresources.Holder
		until(t, when+": the kubelet answers", func() (bool, string) { // a call has a timeout of 5 s
			var err error
			holders, err = n.pods.Held(t.Context())
			return err == nil, fmt.Sprint(err)
		})
		if len(holders) != 2 {
			t.Fatalf("%s: pods have %v; want two devices", when, holders)
		}
		for _, h := range holders {
			if !strings.Contains(mine, h.ID) {
				t.Errorf("%s: a pod has %s, want one of %s", when, h.ID, mine)
			}
		}
	}
	holds("at first")
	d, err := n.plugin.Disable(t.Context(), "")
	if err != nil || len(d.InUse) != 2 {
		t.Errorf("Disable returned %+v, %v; want the two devices in use", d, err)
	}
	s.Close()
	n.awaitCounts(0, 0)
	holds("after a withdrawal")
	n.enable(2)
	n.awaitCounts(8, 8)
	holds("after it was enabled again")
	n.stopPlugin()
	n.startPlugin()
	n.enable(3)
	n.awaitCounts(8, 8)
	holds("after a restart of the plugin")
	n.kubelet.stop()
	n.startKubelet("0")
	n.awaitCounts(8, 8)
	holds("after a restart of the kubelet")
	for i := range 6 {
		if answer := n.admit(1); answer["error"] != nil {
			t.Errorf("pod %d of 6 is refused: %s", i, answer["error"])
		}
	}
	if answer := n.admit(1); answer["error"] == nil {
		t.Errorf("a pod got a device that another has: %s", answer)
	}
}

// The kubelet restarts in every state of the plugin.
func TestSriovKubeletRestarts(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"never offered", "offered", "withdrawn"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			n := newSriovNode(t, 4)
			n.startPlugin()
			want := int64(0)
			if state != "never offered" {
				s := n.enable(1)
				n.awaitCounts(4, 4)
				want = 4
				if state == "withdrawn" {
					s.Close()
					n.awaitCounts(0, 0)
					want = 0
				}
			}
			n.kubelet.stop()
			n.startKubelet()
			n.awaitAllocatable(want)
			n.enable(2)
			n.awaitCounts(4, 4)
		})
	}
}

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/retry"
)

// sriovCheck lets a config.json with a slip be checked, and writes the right one.
func sriovCheck(ctx context.Context, w *walk) (string, error) {
	if err := os.MkdirAll(w.sriovPath(), 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(w.sriovConfig(), []byte(sriovConfigText("pfName")), 0o600); err != nil {
		return "", err
	}
	said, err := w.runCleat(ctx, "sriov", "validate", w.sriovConfig())
	if err == nil {
		return "", fmt.Errorf("cleat sriov validate takes the key \"pfName\", which selects nothing: %s", said)
	}
	if want := w.sriovConfig() + ":5:"; !strings.Contains(string(said), want) || !strings.Contains(string(said), `"pfNames"`) {
		return "", fmt.Errorf("cleat sriov validate should name line 5, and pfNames; it says: %s (%w)", said, err)
	}
	if err := os.WriteFile(w.sriovConfig(), []byte(sriovConfigText("pfNames")), 0o600); err != nil {
		return "", err
	}
	_, err = w.runCleat(ctx, "sriov", "validate", w.sriovConfig())
	return `"pfName" is refused in line 5, and pfNames proposed; with that it is right`, err
}

// sriovStart starts the double and the plugin, and looks that nothing is offered.
func sriovStart(ctx context.Context, w *walk) (string, error) {
	w.sriov = &sriovState{}
	if err := w.startNode(); err != nil {
		return "", err
	}
	err := retry.For(ctx, startBound, func() (bool, error) {
		_, err := w.tellNode(ctx, nodeOrder{Do: "look"})
		return err != nil, err
	})
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := w.startSRIOVPlugin(); err != nil {
		return "", err
	}
	if err := w.checkWaiting(ctx); err != nil {
		return "", err
	}
	ready := time.Since(began)
	if err := w.checkRefused(ctx); err != nil {
		return "", err
	}
	a, err := w.tellNode(ctx, nodeOrder{Do: "look"})
	if err == nil && (len(a.Functions) != sriovAtBoot || a.Registrations > 0) {
		err = fmt.Errorf("the machine should come with %d virtual functions, and none be registered; it has %q, %d registrations", sriovAtBoot, a.Functions, a.Registrations)
	}
	return fmt.Sprintf("it waits for a daemon, after %s; the machine has %d functions, the kubelet hears of none", short(ready), len(a.Functions)), err
}

// checkWaiting wants the plugin to tell people that it waits for a daemon.
func (w *walk) checkWaiting(ctx context.Context) error {
	said, err := w.runCleat(ctx, "sriov", "status", "--control-socket", w.controlSocket(), "--wait", "INITIALIZING", "--timeout", "30s", "-o", "json")
	if err != nil {
		return err
	}
	var s struct {
		Control string
		Devices int
	}
	if err := json.Unmarshal(said, &s); err != nil || s.Control != "waiting" || s.Devices != 0 {
		return fmt.Errorf("cleat sriov status should say that the plugin waits for a daemon and offers nothing: %s (%v)", said, err)
	}
	return nil
}

// sriovEnable starts the daemon with a node state that the machine is not in.
func sriovEnable(ctx context.Context, w *walk) (string, error) {
	if err := w.wantFunctions(1, sriovFirst); err != nil {
		return "", err
	}
	began := time.Now()
	if err := w.startSRIOVDaemon(); err != nil {
		return "", err
	}
	a, err := w.awaitOffered(ctx, sriovFirst)
	if err != nil {
		return "", err
	}
	if err := checkChanges(a, 0, 0, sriovFirst); err != nil {
		return "", err
	}
	last := a.Changes[len(a.Changes)-1]
	return fmt.Sprintf("it made %d functions of %d, MTU 9000, while none was offered; %d offered %s after they were made, %s after its start",
		sriovFirst, sriovAtBoot, a.Offered, short(a.At.Sub(last.At)), short(a.At.Sub(began))), nil
}

// sriovPod gives a pod devices and looks at what its container would see.
func sriovPod(ctx context.Context, w *walk) (string, error) {
	const name = "PCIDEVICE_EXAMPLE_COM_VF"
	began := time.Now()
	a, err := w.tellNode(ctx, nodeOrder{Do: "start", Pod: sriovGuest, Count: sriovOfPod})
	if err != nil {
		return "", err
	}
	if a.Refused != "" || len(a.Devices) != sriovOfPod {
		return "", fmt.Errorf("%d functions are offered, and a pod that wants %d gets %q: %s", a.Offered, sriovOfPod, a.Devices, a.Refused)
	}
	got := strings.Split(a.Env[name], ",")
	slices.Sort(got)
	if !slices.Equal(got, slices.Sorted(slices.Values(a.Devices))) || !json.Valid([]byte(a.Env[name+"_INFO"])) {
		return "", fmt.Errorf("a pod with %q should find them in %s and %[2]s_INFO; it has %v", a.Devices, name, a.Env)
	}
	if len(a.Env) != 2 || len(a.Nodes) != 1+sriovOfPod || a.Nodes[0] != "/dev/vfio/vfio" {
		return "", fmt.Errorf("a pod with two functions of vfio-pci should get two variables, /dev/vfio/vfio and a group for each; it gets %q and %q", slices.Sorted(maps.Keys(a.Env)), a.Nodes)
	}
	return fmt.Sprintf("%s=%s, and %s, in %s", name, a.Env[name], strings.Join(a.Nodes, " "), short(a.At.Sub(began))), nil
}

// sriovKill lets the daemon crash, and start again.
func sriovKill(ctx context.Context, w *walk) (string, error) {
	before, err := w.tellNode(ctx, nodeOrder{Do: "look"})
	if err != nil {
		return "", err
	}
	killed := time.Now()
	if err := w.sriov.daemon.kill(); err != nil {
		return "", err
	}
	gone, err := w.awaitOffered(ctx, 0)
	if err != nil {
		return "", err
	}
	if err := w.checkRefused(ctx); err != nil {
		return "", err
	}
	again := time.Now()
	if err := w.startSRIOVDaemon(); err != nil {
		return "", err
	}
	back, err := w.awaitOffered(ctx, sriovFirst)
	if err == nil {
		err = checkChanges(back, len(before.Changes))
	}
	return fmt.Sprintf("all taken back within %s, Allocate refused; offered again %s after its start, and no function was touched",
		short(gone.At.Sub(killed)), short(back.At.Sub(again))), err
}

// sriovHang stops the daemon, whose connection stays.
func sriovHang(ctx context.Context, w *walk) (string, error) {
	daemon := w.sriov.daemon.cmd.Process
	if err := daemon.Signal(unix.SIGSTOP); err != nil {
		return "", err
	}
	stopped := time.Now()
	gone, err := w.awaitOffered(ctx, 0)
	if took := gone.At.Sub(stopped); err == nil && took > sriovLate {
		err = fmt.Errorf("the daemon stood still with a lease of %s, and its functions were taken back after %s only", sriovLease, short(took))
	}
	if err == nil {
		err = w.checkRefused(ctx)
	}
	again := time.Now()
	if err := errors.Join(err, daemon.Signal(unix.SIGCONT)); err != nil {
		return "", err
	}
	back, err := w.awaitOffered(ctx, sriovFirst)
	return fmt.Sprintf("SIGSTOP; all taken back after %s, with a lease of %s, Allocate refused; SIGCONT: offered again after %s",
		short(gone.At.Sub(stopped)), sriovLease, short(back.At.Sub(again))), err
}

// sriovKubelet restarts the kubelet, which forgets all plugins and removes their
// sockets.
func sriovKubelet(ctx context.Context, w *walk) (string, error) {
	before, err := w.tellNode(ctx, nodeOrder{Do: "look"})
	if err != nil {
		return "", err
	}
	began := time.Now()
	if _, err := w.tellNode(ctx, nodeOrder{Do: "restart"}); err != nil {
		return "", err
	}
	back, err := w.tellNode(ctx, nodeOrder{Do: "await", Offered: sriovFirst, Past: before.Registrations})
	if err == nil {
		err = checkChanges(back, len(before.Changes))
	}
	return fmt.Sprintf("it forgot the plugin and its socket; registered and %d offered again after %s", back.Offered, short(back.At.Sub(began))), err
}

// sriovChange wants another number of functions while a pod has two.
func sriovChange(ctx context.Context, w *walk) (string, error) {
	before, err := w.tellNode(ctx, nodeOrder{Do: "look"})
	if err != nil {
		return "", err
	}
	began := time.Now()
	if err := w.wantFunctions(2, sriovSecond); err != nil {
		return "", err
	}
	gone, err := w.awaitOffered(ctx, 0)
	if err != nil {
		return "", err
	}
	err = retry.For(ctx, startBound, func() (bool, error) {
		phase, err := w.daemonPhase(ctx)
		if err == nil && phase != "blocked" {
			err = fmt.Errorf("a pod has two functions; the daemon should wait for it, and is %q", phase)
		}
		return err != nil, err
	})
	if err != nil {
		return "", err
	}
	ended, err := w.tellNode(ctx, nodeOrder{Do: "end", Pod: sriovGuest})
	if err == nil {
		err = checkChanges(ended, len(before.Changes))
	}
	if err != nil {
		return "", err
	}
	back, err := w.awaitOffered(ctx, sriovSecond)
	if err == nil {
		err = checkChanges(back, len(before.Changes), 0, sriovSecond)
	}
	return fmt.Sprintf("all taken back within %s; nothing was touched until the pod was gone; %d offered %s after that",
		short(gone.At.Sub(began)), back.Offered, short(back.At.Sub(ended.At))), err
}

// sriovStop ends the plugin first, so that the kubelet learns it from nobody else.
func sriovStop(ctx context.Context, w *walk) (string, error) {
	began := time.Now()
	if err := w.sriov.plugin.stop(); err != nil {
		return "", err
	}
	took := time.Since(began)
	none := 0 // the kubelet may read the last list after the plugin has ended
	a, err := w.tellNode(ctx, nodeOrder{Do: "await", Capacity: &none})
	if err != nil {
		return "", err
	}
	if a.Offered+a.Capacity > 0 {
		return "", fmt.Errorf("the plugin has ended, and the kubelet still offers %d functions and shows %d", a.Offered, a.Capacity)
	}
	for _, p := range []*process{w.sriov.daemon, w.sriov.double} {
		if err := p.stop(); err != nil {
			return "", err
		}
	}
	sockets, err := socketsBelow(w.sriovPath())
	if err == nil && len(sockets) > 0 {
		err = fmt.Errorf("plugin, daemon and double have ended, and these sockets are still there: %q", sockets)
	}
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("SIGTERM; allocatable and capacity 0 after %s; both ended with exit code 0, no socket is left", short(took)), os.RemoveAll(w.sriovPath())
}

package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cleatproject/cleat/internal/linux/retry"
)

// dpuCreate makes the devices, twice, and looks at them from all sides.
func dpuCreate(ctx context.Context, w *walk) (string, error) {
	w.dpu.devices = w.dpuWanted()
	for _, d := range w.dpu.devices {
		var err error
		if d.name, err = w.dpu.client.Create(ctx, d.request); err != nil {
			return "", err
		}
	}
	if err := w.makeAgain(ctx); err != nil {
		return "", err
	}
	if err := w.checkShare(); err != nil {
		return "", err
	}
	held, err := w.snapHolds(ctx)
	if err != nil {
		return "", err
	}
	controllers := count(held, "controller") - count(w.dpu.before, "controller")
	if w.config.DPU.Socket == "" && controllers != 1 {
		return "", fmt.Errorf("two namespaces of one subsystem should have one controller; SNAP holds %q", held)
	}
	return fmt.Sprintf("%s; asked twice, made once", w.dpuWords(controllers)), nil
}

// dpuWords tell of the devices.
func (w *walk) dpuWords(controllers int) string {
	var words []string
	namespaces := 0
	for _, d := range w.dpu.devices {
		switch {
		case d.request.Contexts.Volume["file"] == dpuFile:
			words = append(words, "a file")
		case d.request.Contexts.Volume["file"] == dpuShare:
			words = append(words, "a directory as file system")
		default:
			namespaces++
		}
	}
	switch {
	case namespaces == 1:
		words = append([]string{"an NVMe namespace"}, words...)
	case namespaces > 1:
		words = append([]string{fmt.Sprintf("%d NVMe namespaces on %d controller", namespaces, controllers)}, words...)
	}
	return strings.Join(words, ", ")
}

// makeAgain asks for devices that are there and wants the same ones.
func (w *walk) makeAgain(ctx context.Context) error {
	for _, d := range w.dpu.devices {
		again, err := w.dpu.client.Create(ctx, d.request)
		if err != nil {
			return err
		}
		if again != d.name {
			return fmt.Errorf("volume %s has device %s, and the same request gave %s", d.request.Volume, d.name, again)
		}
	}
	return w.checkDevices(ctx)
}

// checkDevices wants each device to be there for GetDevice, for ListDevices and
// in SNAP.
func (w *walk) checkDevices(ctx context.Context) error {
	held, err := w.snapHolds(ctx)
	if err != nil {
		return err
	}
	var want []string
	for _, d := range w.dpu.devices {
		if _, err := w.dpu.client.Get(ctx, d.request.Volume, d.name); err != nil {
			return err
		}
		// SPDK's own releases do not tell of file system devices.
		told := d.request.Mode == "Block" || w.config.DPU.Socket == ""
		if told && !slices.ContainsFunc(held, func(h string) bool { return strings.HasSuffix(h, "device "+d.name) }) {
			return fmt.Errorf("the plugin has device %s of volume %s, and SNAP holds %q", d.name, d.request.Volume, held)
		}
		want = append(want, d.request.Volume+" "+d.name)
	}
	listed, err := w.dpuListed(ctx)
	if err != nil {
		return err
	}
	slices.Sort(want)
	if !slices.Equal(listed, want) {
		return fmt.Errorf("ListDevices tells %q, want %q", listed, want)
	}
	return nil
}

// dpuListed returns volumes and devices, sorted.
func (w *walk) dpuListed(ctx context.Context) ([]string, error) {
	var all []string
	for token := ""; ; {
		page, next, err := w.dpu.client.List(ctx, 2, token) // in more than one page
		if err != nil {
			return nil, err
		}
		for _, e := range page {
			all = append(all, e.Volume+" "+e.Device)
		}
		if token = next; token == "" {
			slices.Sort(all)
			return all, nil
		}
	}
}

// checkShare reads where SNAP would what the host's directory holds.
func (w *walk) checkShare() error {
	if !w.dpu.offers.Filesystem {
		return nil
	}
	path := w.dpuPath("volumes", dpuShared, dpuLetter)
	text, err := os.ReadFile(path)
	if err == nil && string(text) != dpuText {
		err = fmt.Errorf("%s holds %q, want %q", path, text, dpuText)
	}
	return err
}

// checkAbsent wants no device to be there.
func (w *walk) checkAbsent(ctx context.Context) error {
	for _, d := range w.dpu.devices {
		if err := w.checkNoDevice(ctx, d.request.Volume, d.name); err != nil {
			return err
		}
	}
	listed, err := w.dpuListed(ctx)
	if err == nil && len(listed) > 0 {
		err = fmt.Errorf("SNAP has none of the devices, and ListDevices tells %q", listed)
	}
	return err
}

func (w *walk) checkNoDevice(ctx context.Context, volume, name string) error {
	_, err := w.dpu.client.Get(ctx, volume, name)
	if status.Code(err) != codes.NotFound {
		return fmt.Errorf("GetDevice of volume %s, which SNAP has no device of, should answer NOT_FOUND; it answers %s: %v", volume, status.Code(err), err)
	}
	return nil
}

// dpuKill kills the plugin while a CreateDevice waits: its controller is
// attached, and its namespace does not come.
func dpuKill(ctx context.Context, w *walk) (string, error) {
	before, err := w.snapHolds(ctx)
	if err != nil {
		return "", err
	}
	late := blockDevice(dpuLate, dpuNamespace(dpuLateNQN, 3))
	answer := make(chan error, 1)
	caller := w.dpu.client
	go func() {
		_, err := caller.Create(ctx, late.request)
		answer <- err
	}()
	err = retry.For(ctx, startBound, func() (bool, error) {
		held, err := w.snapHolds(ctx)
		if err == nil && len(held) <= len(before) {
			err = fmt.Errorf("the slow CreateDevice has not got to SNAP, which holds %q", held)
		}
		return err != nil, err
	})
	killed := time.Now()
	err = errors.Join(err, w.endPlugin((*process).kill))
	if cut := <-answer; err == nil && cut == nil {
		err = errors.New("CreateDevice was answered by a plugin that was killed before it could be")
	}
	if err != nil {
		return "", err
	}
	if _, err := w.startPlugin(ctx); err != nil {
		return "", err
	}
	err = retry.For(ctx, startBound, func() (bool, error) {
		held, err := w.snapHolds(ctx)
		if err == nil && !slices.Equal(held, before) {
			return true, fmt.Errorf("before the CreateDevice that was cut off SNAP held %q, and after the start %q", before, held)
		}
		return false, err
	})
	back := time.Since(killed)
	if err == nil {
		err = w.checkNoDevice(ctx, dpuLate, "")
	}
	if err == nil {
		err = w.checkDevices(ctx)
	}
	return fmt.Sprintf("in a CreateDevice that had attached its controller; started again, all taken back within %s", short(back)), err
}

// dpuRestart lets SNAP lose all that it held.
func dpuRestart(ctx context.Context, w *walk) (string, error) {
	full, err := w.snapHolds(ctx)
	if err != nil {
		return "", err
	}
	if _, err := io.WriteString(w.dpu.double.orders, "restart\n"); err != nil {
		return "", fmt.Errorf("order a restart of the double: %w", err)
	}
	err = retry.For(ctx, startBound, func() (bool, error) {
		held, err := w.snapHolds(ctx)
		if err == nil && !slices.Equal(held, w.dpu.before) {
			err = fmt.Errorf("SNAP should have forgotten everything, and holds %q", held)
		}
		return err != nil, err
	})
	if err == nil {
		err = w.checkAbsent(ctx)
	}
	if err != nil {
		return "", err
	}
	took, err := timed(func() error { return w.makeAgain(ctx) })
	if err != nil {
		return "", err
	}
	held, err := w.snapHolds(ctx)
	if err == nil && !slices.Equal(held, full) {
		err = fmt.Errorf("before the restart SNAP held %q, and now that all is made again %q", full, held)
	}
	return fmt.Sprintf("GetDevice answered NOT_FOUND; CreateDevice made all %d again within %s, under their names", len(w.dpu.devices), short(took)), err
}

// dpuDelete deletes the devices, twice, and ends plugin and double.
func dpuDelete(ctx context.Context, w *walk) (string, error) {
	for range 2 { // what is deleted is deleted
		for _, d := range w.dpu.devices {
			if err := w.dpu.client.Delete(ctx, d.request.Volume, d.name); err != nil {
				return "", err
			}
		}
	}
	if err := w.checkAbsent(ctx); err != nil {
		return "", err
	}
	held, err := w.snapHolds(ctx)
	if err != nil {
		return "", err
	}
	for _, d := range w.dpu.devices {
		if slices.ContainsFunc(held, func(h string) bool { return strings.HasSuffix(h, " "+d.name) }) {
			return "", fmt.Errorf("device %s is deleted, and SNAP still holds it, among %q", d.name, held)
		}
	}
	if w.config.DPU.Socket == "" && !slices.Equal(held, w.dpu.before) {
		return "", fmt.Errorf("all is deleted, and SNAP holds %q", held)
	}
	n := len(w.dpu.devices)
	w.dpu.devices = nil
	return fmt.Sprintf("%d devices; SNAP holds none, no mount is left; the plugin ended with exit code 0", n), w.dpuEnd(ctx)
}

// dpuEnd ends the plugin and the double, and removes their files.
func (w *walk) dpuEnd(ctx context.Context) error {
	mounts, err := left(ctx, w.dpuPath())
	if err != nil {
		return err
	}
	if len(mounts) > 0 {
		return fmt.Errorf("all devices are deleted, and the kernel still holds %v", mounts)
	}
	if err := w.endPlugin((*process).stop); err != nil {
		return err
	}
	if w.dpu.double != nil {
		if err := w.dpu.double.stop(); err != nil {
			return err
		}
	}
	for _, socket := range []string{w.pluginSocket(), w.doubleSocket()} {
		if _, err := os.Lstat(socket); err == nil {
			return fmt.Errorf("the plugin and the double have ended, and the socket %s is still there", socket)
		}
	}
	return os.RemoveAll(w.dpuPath())
}

// snapHolds asks SNAP itself, past the plugin and its client, what it holds.
func (w *walk) snapHolds(ctx context.Context) ([]string, error) {
	var all []string
	for _, list := range []struct{ method, what string }{
		{"bdev_get_bdevs", "block device"}, {"bdev_nvme_get_controllers", "controller"},
		{"fsdev_get_fsdevs", "file system device"}, {"nvme_subsystem_list", "emulated subsystem"},
	} {
		var found []struct{ Name, NQN string }
		known, err := askSNAP(ctx, w.snapSocket(), list.method, &found)
		if err != nil {
			return nil, err
		}
		if !known && list.method == "bdev_get_bdevs" {
			return nil, fmt.Errorf("what listens on %s knows no bdev_get_bdevs: it is no SNAP", w.snapSocket())
		}
		for _, f := range found {
			all = append(all, list.what+" "+f.Name+f.NQN)
		}
	}
	slices.Sort(all)
	return all, nil
}

func count(held []string, what string) (n int) {
	for _, h := range held {
		if strings.HasPrefix(h, what+" ") {
			n++
		}
	}
	return n
}

// askSNAP calls a method without parameters; known is false when SNAP has none
// of that name.
func askSNAP(ctx context.Context, socket, method string, result any) (known bool, err error) {
	const noSuchMethod = -32601
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return false, fmt.Errorf("SNAP does not answer: %w", err)
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	var answer struct {
		Result json.RawMessage
		Error  *struct {
			Code    int
			Message string
		}
	}
	err = json.NewEncoder(conn).Encode(map[string]any{"jsonrpc": "2.0", "id": 1, "method": method})
	if err == nil {
		err = json.NewDecoder(conn).Decode(&answer)
	}
	switch {
	case err != nil:
		return false, fmt.Errorf("SNAP does not answer %s: %w", method, err)
	case answer.Error != nil && answer.Error.Code == noSuchMethod:
		return false, nil
	case answer.Error != nil:
		return false, fmt.Errorf("SNAP answers %s with %d: %s", method, answer.Error.Code, answer.Error.Message)
	}
	return true, json.Unmarshal(answer.Result, result)
}

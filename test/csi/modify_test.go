package csi_test

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csi "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/test/testkit"
)

func (d *disk) modify(parameters map[string]string) error {
	_, err := d.controller().ControllerModifyVolume(d.Context(), &csi.ControllerModifyVolumeRequest{VolumeId: d.id, MutableParameters: parameters})
	return err
}

// queue reads a kernel queue setting of a mounted volume's device.
func (d *disk) queue(attribute string) string {
	d.Helper()
	e, ok, err := mount.At(d.Context(), d.staging)
	if err != nil || !ok {
		d.Fatalf("%s is not mounted: %v", d.staging, err)
	}
	text := testkit.Value(os.ReadFile(filepath.Join("/sys/block", filepath.Base(e.Source), "queue", attribute)))(d)
	return strings.TrimSpace(string(text))
}

// TestModify: changes of mutable parameters take effect immediately.
func TestModify(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	address := filepath.Join(dir, "metrics", "metrics.sock")
	r := makeRig(t, "csi", dir, "--metrics-address", address)
	r.start()
	d := r.create("modified", mounted("ext4")).attach()
	r.sub(t, "read-ahead", func(r *rig) {
		testkit.Must(r, d.modify(map[string]string{"readAheadKiB": "768"}))
		if got := d.queue("read_ahead_kb"); got != "768" {
			r.Errorf("read-ahead of the live device is %s KiB", got)
		}
		d.detach()
		d.attach()
		if got := d.queue("read_ahead_kb"); got != "768" {
			r.Errorf("read-ahead after the next attach is %s KiB", got)
		}
	})
	r.sub(t, "metrics", func(r *rig) {
		testkit.Must(r, os.Remove(filepath.Join(r.pool, "volumes", d.id)))
		text := r.scrape(address, "/metrics", http.StatusOK)
		for _, want := range []string{
			`cleat_volume_health{reason="BackingFileDeleted",status=`, d.id, "cleat_node_volumes 1", "cleat_pool_bytes{",
			`cleat_rpc_calls_total{code="OK",method="csi.v1.Node/NodeStageVolume"} 2`,
		} {
			if !strings.Contains(text, want) {
				r.Errorf("the metrics lack %s", want)
			}
		}
		for _, path := range []string{"/healthz", "/readyz", "/status"} {
			r.scrape(address, path, http.StatusOK)
		}
	})
	d.drop()
}

// scrape reads from the metrics socket.
func (r *rig) scrape(socket, path string, code int) string {
	r.Helper()
	got, text, err := testkit.Page(r.Context(), testkit.UNIX(socket), http.MethodGet, path)
	if err != nil || got != code {
		r.Errorf("%s: %d, %v: %s", path, got, err, text)
	}
	return text
}

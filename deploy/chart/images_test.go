package chart

import (
	"fmt"
	"strings"
	"testing"
)

// An image pinned by digest is pinned in every pod, and the others use tags.
func TestPinnedImages(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0123456789abcdef", 4)
	images := map[string]string{"driver": "cleat.local/cleat", "csi-provisioner": "registry.k8s.io/sig-storage/csi-provisioner", "csi-resizer": "registry.k8s.io/sig-storage/csi-resizer",
		"csi-snapshotter": "registry.k8s.io/sig-storage/csi-snapshotter", "csi-attacher": "registry.k8s.io/sig-storage/csi-attacher", "csi-addons": "quay.io/csiaddons/k8s-sidecar"}
	for pinned, value := range map[string]string{
		"driver":          "image: {tag: v9, digest: %q}",
		"csi-provisioner": "sidecars: {provisioner: {digest: %q}}",
		"csi-resizer":     "sidecars: {resizer: {digest: %q}}",
		"csi-snapshotter": "sidecars: {snapshotter: {digest: %q}}",
		"csi-attacher":    "sidecars: {attacher: {digest: %q}}",
		"csi-addons":      "sidecars: {addons: {digest: %q}}",
	} {
		t.Run(pinned, func(t *testing.T) {
			found := false
			for _, w := range workloads(render(t, release{values: controllerMode + fmt.Sprintf(value, digest), apis: apis})) {
				for _, c := range w.containers() {
					want := images[c.Name] + ":"
					if c.Name == pinned {
						want, found = images[c.Name]+"@"+digest, true
					}
					if !strings.HasPrefix(c.Image, want) || strings.Contains(c.Image, "@") != (c.Name == pinned) {
						t.Errorf("%s/%s has image %s, want %s", w.name, c.Name, c.Image, want)
					}
				}
			}
			if !found {
				t.Error("no pod has the image")
			}
		})
	}
}

// imageRegistry replaces the registry of all images.
func TestImageRegistry(t *testing.T) {
	for _, w := range workloads(render(t, release{values: controllerMode + theOthers + "imageRegistry: registry.example.com:5000/mirror\nimage: {tag: v9}", apis: apis})) {
		for _, c := range w.containers() {
			path, ok := strings.CutPrefix(c.Image, "registry.example.com:5000/mirror/")
			if want := map[string]string{"csi-provisioner": "sig-storage/csi-provisioner:", "csi-addons": "csiaddons/k8s-sidecar:", "driver": "cleat:v9"}[c.Name]; !ok || !strings.HasPrefix(path, want) {
				t.Errorf("%s/%s has image %s", w.name, c.Name, c.Image)
			}
		}
	}
	// A repository without a registry keeps its whole path.
	for repository, want := range map[string]string{"cleat": "r/cleat:0.1.0", "team/cleat": "r/team/cleat:0.1.0", "localhost/cleat": "r/cleat:0.1.0", "a.b:5000/c/d": "r/c/d:0.1.0"} {
		w := workloads(render(t, release{values: "imageRegistry: r\nimage: {repository: " + repository + "}"}))[0]
		if got := w.template.Spec.InitContainers[0].Image; got != want {
			t.Errorf("%s: got %s, want %s", repository, got, want)
		}
	}
}

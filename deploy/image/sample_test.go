package image

import (
	"strings"
	"testing"
)

// NVIDIA's chart runs a storage vendor's plugin by these paths in any image.
func TestCommandsOfNVIDIAChart(t *testing.T) {
	root := unpacked(t)
	for path, plugin := range map[string]string{
		"/block-storage-vendor-dpu-plugin": "nvidia", "/storage-vendor-dpu-plugin": "nvidia",
		"/fs-storage-vendor-dpu-plugin": "nvidia-fs", "/nfs-storage-vendor-dpu-plugin": "nvidia-nfs",
	} {
		out, err := inside(t, root, path, "--help")
		if err != nil || !strings.Contains(out, "nvidia.storage.plugins.v1") || !strings.Contains(out, `(default "`+plugin+`")`) {
			t.Errorf("%s --help: %v\n%s", path, err, out)
		}
	}
}

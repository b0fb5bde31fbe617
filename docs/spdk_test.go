package docs

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/cleatproject/cleat/internal/spdkconf"
	"github.com/cleatproject/cleat/test/markdown"
	"github.com/cleatproject/cleat/test/testkit"
)

// The driver reads the targets of the pages, in both forms, with their passwords.
func TestSPDKTargets(t *testing.T) {
	files := map[string]string{}
	for _, block := range markdown.Blocks(page(t, "docs/start-spdk.md")+page(t, "docs/spdk.md"), "yaml") {
		if strings.HasPrefix(block, "targets:") {
			files["targets.yaml"] = block
		}
		for _, part := range separator.Split(block, -1) {
			switch {
			case strings.Contains(part, "kind: ConfigMap\n"):
				var m corev1.ConfigMap
				testkit.Must(t, yaml.UnmarshalStrict([]byte(part), &m))
				files["config.json"] = m.Data["config.json"]
			case strings.Contains(part, "kind: Secret\n"):
				var s corev1.Secret
				testkit.Must(t, yaml.UnmarshalStrict([]byte(part), &s))
				files["secret.json"] = s.StringData["secret.json"]
			}
		}
	}
	dir := t.TempDir()
	for name, text := range files {
		testkit.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for config, secret := range map[string]string{"targets.yaml": "", "config.json": filepath.Join(dir, "secret.json")} {
		targets := testkit.Value(spdkconf.Read(filepath.Join(dir, config), secret))(t)
		if len(targets) != 1 || targets[0].Name != "storage-1" || (targets[0].User != "") != (secret != "") {
			t.Errorf("%s: got %+v", config, targets)
		}
	}
}

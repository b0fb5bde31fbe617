package main

import (
	"strings"
	"testing"
)

// Values of enumerations, and paths where a path is expected.
func TestCompletion(t *testing.T) {
	t.Setenv("CLEAT_ENDPOINT", "unix:///nonexistent/csi.sock")
	for line, want := range map[string]string{
		"volume list -o":                       "table json yaml :4",
		"volume create v --fs-type":            "ext4 xfs btrfs :4",
		"volume attach v /mnt --fs-type":       "ext4 xfs btrfs :4",
		"volume attach v /mnt --access-mode":   "single-node-writer",
		"volume attach v":                      ":0", // paths
		"volume attach v /mnt":                 ":4",
		"volume detach v":                      ":0",
		"volume detach":                        ":0", // the driver does not answer, and a path is possible
		"volume create":                        ":4",
		"volume expand v":                      ":4",
		"version -o":                           "table json yaml :4",
		"csi --engine":                         "local ceph cephfs none spdk :4",
		"csi --services":                       "all controller node :4",
		"csi --log-level":                      "debug info warn error :4",
		"dpu --tcp-transport":                  "auto TCP NVDA_TCP :4",
		"dpu --log-format":                     "text json :4",
		"fence serve --ports":                  "nfs",
		"fence add -o":                         "table json yaml :4",
		"host -o":                              "table json none :4",
		"sriov plugin --registration":          "auto register watcher :4",
		"sriov daemon --mode":                  "apply follow :4",
		"sriov daemon -o":                      "table json yaml :4",
		"sriov list -o":                        "table json yaml :4",
		"sriov status --wait":                  "SERVING",
		"plugins wait x --type":                "CSIPlugin",
		"device create v --access-mode":        "RWO ROX RWX RWOP :4",
		"device create v --mode":               "block filesystem :4",
		"snapshot show s -o":                   "table json yaml :4",
		"completion":                           "bash",
		"volume create v --secrets-file":       ":0",
		"volume attach v /mnt --context":       ":0",
		"volume snapshot v --name n --timeout": ":0",
	} {
		out, _ := cleat(t, append(append([]string{"__complete"}, strings.Fields(line)...), "")...)
		got := strings.Join(strings.Fields(out), " ")
		if isWhole := strings.Contains(want, ":"); isWhole && got != want || !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", line, got, want)
		}
	}
	if _, err := cleat(t, "completion", "foo"); err == nil {
		t.Error("the completion of an unknown shell succeeded")
	}
	if _, err := cleat(t, "volume", "list", "-o", "xml"); err == nil || !strings.Contains(err.Error(), "table, json, yaml") {
		t.Errorf("an unknown output format: %v", err)
	}
}

package main

import (
	"log/slog"
	"path/filepath"
	"testing"

	"github.com/cleatproject/cleat/test/testkit"
)

// Under the command names of NVIDIA's sample plugins cleat runs as cleat dpu with the
// defaults of that sample, also if the chart's variables are empty.
func TestSampleCommands(t *testing.T) {
	for command, want := range map[string]string{
		"/block-storage-vendor-dpu-plugin": "nvidia", "/storage-vendor-dpu-plugin": "nvidia", "/fs-storage-vendor-dpu-plugin": "nvidia-fs", "/nfs-storage-vendor-dpu-plugin": "nvidia-nfs",
	} {
		args := commandLine([]string{command, "--node", "n"})
		if len(args) != 3 || args[0] != "dpu" {
			t.Errorf("%s: the command line is %q", command, args)
		}
		for _, given := range []bool{true, false} {
			f := dpuServer{node: "n", sample: filepath.Base(command)}
			f.answerWithin, f.lossTimeout, f.reconnectDelay = 1, -1, 2
			name, provider := want, "nvidia"
			if given {
				name, provider = "my-vendor", "snap"
				f.plan.Plugin, f.service.Provider = name, provider
			}
			if err := f.Complete(); err != nil {
				t.Fatalf("%s: %v", command, err)
			}
			if f.pluginSocket != snapDir+"/plugins/"+name+"/dpu.sock" || f.snapSocket != snapDir+"/providers/"+provider+"/snap.sock" || f.service.Provider != provider {
				t.Errorf("%s: socket %s, SNAP at %s of provider %q", command, f.pluginSocket, f.snapSocket, f.service.Provider)
			}
		}
	}
	if got := commandLine([]string{"/usr/bin/cleat", "csi"}); len(got) != 1 || got[0] != "csi" {
		t.Errorf("cleat csi: the command line is %q", got)
	}
}

// NVIDIA's chart sets no node name, and each pod has another host name: the first one
// is kept, since the host NQN is derived from it.
func TestDPUKeepsFirstHostName(t *testing.T) {
	dir := t.TempDir()
	node := func(given, hostname string) string {
		t.Helper()
		s := dpuServer{node: given, hostname: hostname, answerWithin: 1, lossTimeout: -1, reconnectDelay: 2}
		s.StateDir, s.plan.Plugin, s.Logger = dir, "p", slog.New(slog.DiscardHandler)
		testkit.Must(t, s.Complete())
		testkit.Value(s.openRecord(t.Context()))(t)
		testkit.Must(t, s.Close(t.Context()))
		return s.node
	}
	for _, c := range [][3]string{{"given", "pod-a", "given"}, {"", "pod-a", "pod-a"}, {"", "pod-b", "pod-a"}, {"given", "pod-b", "given"}} {
		if got := node(c[0], c[1]); got != c[2] {
			t.Errorf("--node %q on host %s: the node is %q, want %s", c[0], c[1], got, c[2])
		}
	}
}

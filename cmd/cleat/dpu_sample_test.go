package main

import (
	"log/slog"
	"path/filepath"
	"testing"
)

// Under the command names of NVIDIA's chart cleat is cleat dpu, with the defaults
// of the sample of that name, also where the chart's variables are empty.
func TestSampleCommands(t *testing.T) {
	for command, want := range map[string]string{
		"/block-storage-vendor-dpu-plugin": "nvidia", "/storage-vendor-dpu-plugin": "nvidia", "/fs-storage-vendor-dpu-plugin": "nvidia-fs", "/nfs-storage-vendor-dpu-plugin": "nvidia-nfs",
	} {
		args := commandLine([]string{command, "--node", "n"})
		if len(args) != 3 || args[0] != "dpu" {
			t.Errorf("%s: the command line is %q", command, args)
		}
		for _, given := range []bool{true, false} {
			f := dpuFlags{node: "n", sample: filepath.Base(command)}
			f.answerWithin, f.lossTimeout, f.reconnectDelay = 1, -1, 2
			name, provider := want, "nvidia"
			if given {
				name, provider = "my-vendor", "snap"
				f.pluginName, f.providerName = name, provider
			}
			if err := f.complete(); err != nil {
				t.Fatalf("%s: %v", command, err)
			}
			if f.pluginSocket != snapDir+"/plugins/"+name+"/dpu.sock" || f.snapSocket != snapDir+"/providers/"+provider+"/snap.sock" || f.providerName != provider {
				t.Errorf("%s: socket %s, SNAP at %s of provider %q", command, f.pluginSocket, f.snapSocket, f.providerName)
			}
		}
	}
	if got := commandLine([]string{"/usr/bin/cleat", "csi"}); len(got) != 1 || got[0] != "csi" {
		t.Errorf("cleat csi: the command line is %q", got)
	}
}

// NVIDIA's chart gives no name of the node, and each pod has a host name of its
// own: the first one stays the node's, or targets would meet another host.
func TestHostNameIsKept(t *testing.T) {
	dir := t.TempDir()
	node := func(given, hostname string) string {
		t.Helper()
		f := dpuFlags{node: given, hostname: hostname, stateDir: dir, pluginName: "p", answerWithin: 1, lossTimeout: -1, reconnectDelay: 2}
		if err := f.complete(); err != nil {
			t.Fatal(err)
		}
		s := dpuServer{flags: f, logger: slog.New(slog.DiscardHandler)}
		var err error
		if s.store, err = s.openStore(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer s.store.Close()
		if err := s.keepNode(t.Context()); err != nil {
			t.Fatal(err)
		}
		return s.flags.node
	}
	for _, c := range [][3]string{{"given", "pod-a", "given"}, {"", "pod-a", "pod-a"}, {"", "pod-b", "pod-a"}, {"given", "pod-b", "given"}} {
		if got := node(c[0], c[1]); got != c[2] {
			t.Errorf("--node %q on host %s: the node is %q, want %s", c[0], c[1], got, c[2])
		}
	}
}
